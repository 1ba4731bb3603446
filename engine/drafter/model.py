"""ModelDrafter: a smaller model with the same vocabulary runs ahead (Leviathan et al. 2023)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.batch import Batch, Slice
from engine.blocks import BlockPool
from engine.cache import KVCache
from engine.choice import choice_of
from engine.config import EngineConfig
from engine.drafter.drafter import NONE, Context, Guess
from engine.draw import distribution, pick
from engine.errors import InvalidRequest
from engine.grammar.grammar import Backend, Fill
from engine.models import Model
from engine.philox import DRAFT, uniform
from engine.request import Request
from engine.runners import runner_of
from engine.sequence import Sequence

AHEAD = 4  # tokens


class Ahead:
    """One context that the draft model runs ahead of. `shadow` is its text as the draft model knows it."""

    __slots__ = ("chances", "context", "ended", "shadow", "tokens")

    def __init__(self, context: Context, shadow: Sequence) -> None:
        self.context = context
        self.shadow = shadow
        self.tokens: list[int] = []
        self.chances: list[NDArray[np.float32]] = []
        self.ended = False

    @property
    def random(self) -> bool:
        """Whether tokens are drawn at random, to be verified by rejection."""
        sampling = self.context.sequence.request.sampling
        return not sampling.greedy and sampling.seed is None

    def take(self, token: int, chances: NDArray[np.float32] | None) -> None:
        """The draft model's next token; the grammar follows."""
        sequence = self.context.sequence
        grammar = sequence.grammar
        if token in sequence.stop_ids or (grammar is not None and grammar.accept([token]) == 0):
            self.ended = True
            return
        self.tokens.append(token)
        if chances is not None:
            self.chances.append(chances)
        self.shadow.tokens.append(token)
        self.ended = len(self.tokens) >= self.context.room

    def guess(self) -> Guess:
        """What came out, the grammar back where it was."""
        if self.context.sequence.grammar is not None:
            self.context.sequence.grammar.rollback(len(self.tokens))
        planned = min(AHEAD, self.context.room) if self.random else 0
        return Guess(self.tokens, [0] * len(self.tokens), self.chances, planned)


class ModelDrafter:
    """Computes up to AHEAD tokens for all contexts together, held to their formats and drawn with their parameters.

    A greedy row gets the most probable token. A row with a temperature and no seed of its own gets tokens drawn at
    random, to be verified by rejection. One with a seed gets what the seed's own numbers draw from the draft model, to
    be verified by what they draw from the target, so that its output stays a function of the seed.
    """

    name = "model"
    costly = True
    priors = (0.6,)

    def __init__(self, model: Model, config: EngineConfig, *, vocab_size: int, grammars: Backend | None = None) -> None:
        """`config` sizes the draft model's own cache. Raises InvalidRequest when the vocabularies differ in size, and
        OutOfCache."""
        if model.config.vocab_size != vocab_size:
            reason = f"the draft model's vocabulary is not the target's of {vocab_size}"
            raise InvalidRequest("draft_model", model.config.vocab_size, reason)
        cache = KVCache.fit(model.config, config)
        self._max_position = model.config.max_position
        self._words = -(-vocab_size // 32)
        self._pool = BlockPool(cache.num_blocks, cache.block_size, prefix_caching=False)
        self._runner = runner_of(model, cache, config)
        self._choice = choice_of(config)
        self._grammars = grammars
        self._shadows: OrderedDict[Hashable, Sequence] = OrderedDict()  # by request id, the least recently used first

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        started: set[Hashable] = set()
        runs = [self._start(context, started) for context in contexts]
        for _ in range(AHEAD):
            growing = [run for run in runs if run is not None and not run.ended]
            if not growing:
                break
            for row, run in enumerate(growing):
                run.shadow.row = row
            slices = [Slice(run.shadow, run.shadow.computed, len(run.shadow.tokens)) for run in growing]
            inputs = self._runner.prepare(Batch(tuple(slices)))
            logits = self._runner.logits(self._runner.run(inputs))
            for run in growing:
                run.shadow.computed = len(run.shadow.tokens)
            self._choose(logits, growing)
        return [NONE if run is None else run.guess() for run in runs]

    def finish(self, sequence: Sequence) -> None:
        self._drop(sequence.request.id)

    def _start(self, context: Context, started: set[Hashable]) -> Ahead | None:
        """Bring the shadow of a context up to its text and take blocks for what comes; None: there is no room."""
        request_id = context.sequence.request.id
        text = context.sequence.tokens + context.draft
        if len(text) + AHEAD > self._max_position:
            return None
        shadow = self._shadows.get(request_id)
        if shadow is None:
            shadow = self._shadows[request_id] = Sequence(Request(request_id, tuple(text)))
        self._shadows.move_to_end(request_id)
        started.add(request_id)
        pairs = enumerate(zip(shadow.tokens, text, strict=False))
        same = next((i for i, (old, new) in pairs if old != new), len(text))
        shadow.computed = min(shadow.computed, same, len(text) - 1)
        shadow.tokens[:] = text
        missing = self._pool.num_blocks_of(len(text) + AHEAD) - len(shadow.blocks)
        while missing > self._pool.num_available:
            oldest = next(iter(self._shadows))
            if oldest in started:
                return None
            self._drop(oldest)
        shadow.blocks.extend(self._pool.take(max(missing, 0)))
        return Ahead(context, shadow)

    def _drop(self, request_id: Hashable) -> None:
        shadow = self._shadows.pop(request_id, None)
        if shadow is not None:
            self._pool.release(shadow.blocks)

    @torch.inference_mode()
    def _choose(self, logits: Tensor, runs: list[Ahead]) -> None:
        """The next token of each run, by its row of logits."""
        self._hold(logits, runs)
        tokens: list[int] = logits.argmax(-1).tolist()
        chances: list[NDArray[np.float32] | None] = [None] * len(runs)
        sampling = [run.context.sequence.request.sampling for run in runs]
        possible = logits.amax(-1).isfinite().tolist()
        for run, going_on in zip(runs, possible, strict=True):
            run.ended = not going_on  # its output is whole
        random = [line for line, run in enumerate(runs) if run.random and possible[line]]
        seeded = [line for line, run in enumerate(runs) if not (run.random or sampling[line].greedy)]
        if random:
            tables = distribution(logits[random], [sampling[line] for line in random])
            uniforms = torch.from_numpy(uniform(*_places(runs, random), DRAFT))
            drawn = pick(tables, uniforms.to(logits.device))
            for line, token, table in zip(random, drawn.tolist(), tables.cpu().numpy(), strict=True):
                tokens[line], chances[line] = token, table
        if seeded:
            drawn = self._choice.draw(logits[seeded], [sampling[line] for line in seeded], *_places(runs, seeded))
            for line, token in zip(seeded, drawn.tolist(), strict=True):
                tokens[line] = token
        for run, token, table in zip(runs, tokens, chances, strict=True):
            if not run.ended:
                run.take(token, table)

    def _hold(self, logits: Tensor, runs: list[Ahead]) -> None:
        """Rule out, in place, what formats do not allow, and the end where tokens are drawn at random: that draft goes
        on for as long as was planned, whatever is drawn."""
        for line, run in enumerate(runs):
            if run.random:
                logits[line, list(run.context.sequence.stop_ids)] = -torch.inf
        fills: list[Fill] = []
        lines: list[int] = []
        for line, run in enumerate(runs):
            grammar = run.context.sequence.grammar
            if grammar is not None:
                fills.append(Fill(grammar, len(fills), []))
                lines.append(line)
        if fills:
            assert self._grammars is not None, "formats come with grammars"
            mask = np.empty((len(fills), self._words), np.int32)
            self._grammars.fill(fills, mask)
            rows = torch.tensor(lines, device=logits.device)
            self._choice.apply_token_bitmask(logits, rows, torch.from_numpy(mask).to(logits.device))


def _places(runs: list[Ahead], lines: list[int]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Seeds and positions of the next tokens of some runs."""
    seeds = np.array([runs[line].context.sequence.seed for line in lines], np.uint64)
    positions = np.array([len(runs[line].shadow.tokens) for line in lines], np.uint64)
    return seeds, positions
