"""Sequence: one request in flight. No torch here."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Items

import numpy as np
from numpy.typing import NDArray

from engine.choices import Scoring
from engine.grammar.grammar import Grammar
from engine.history import History
from engine.request import FinishReason, Request, TokenLogprobs

NO_TOKENS: frozenset[int] = frozenset()
UNREAD = -1  # stands for a token that is known on the device alone


class Sequence:
    """Known tokens (prompt, output, draft), how many of them are computed, and the blocks that hold them.

    `computed` counts the known tokens whose keys and values lie in the cache. The logits of the last token of prompt
    and output give the next token, so a sequence at rest has exactly one token pending. A draft is proposed and not
    yet part of the output: a step computes it with the rest and `append` settles it. With choices, the draft is the
    path whose continuations are being scored, and the output stays empty until the end.

    A promised token is part of a step that is being computed, and not read yet. It follows the output and stands before
    nothing: a sequence with a draft, or whose next token needs the host, is not planned again before it is read.
    """

    __slots__ = (
        "admitted",
        "arrived",
        "blocks",
        "chances",
        "computed",
        "draft",
        "error",
        "finish_reason",
        "grammar",
        "history",
        "logprobs",
        "num_cached",
        "num_prompt",
        "num_sealed",
        "origins",
        "plain",
        "prefilled",
        "promised",
        "request",
        "row",
        "scoring",
        "seed",
        "simple",
        "stop_ids",
        "stopped_by",
        "tail",
        "tokens",
        "unaided",
    )

    def __init__(
        self,
        request: Request,
        *,
        seed: int = 0,
        eos_token_ids: frozenset[int] = NO_TOKENS,
        scoring: Scoring | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        """`seed` is used where the request has none; `grammar` is the state of its format at no output."""
        sampling = request.sampling
        self.request = request
        self.seed = sampling.seed if sampling.seed is not None else seed
        self.tokens: list[int] = list(request.prompt)  # prompt and output
        self.num_prompt = len(self.tokens)
        self.draft: list[int] = []
        self.origins: list[int] = []  # where each token of a proposed draft comes from, as speculation counts them
        self.chances: Items[NDArray[np.float32] | None] = ()  # of a proposed draft, see engine.drafter.Guess
        self.blocks = array("i")
        self.row = -1  # where a device keeps what it knows of the sequence; below 0: it is not running
        self.computed = 0
        self.promised = 0  # tokens that steps under way will give
        self.num_sealed = 0  # leading blocks that the pool has published for reuse
        # Readings of time.perf_counter; None: not yet. Preemption changes neither.
        self.arrived = time.perf_counter()
        self.admitted: float | None = None
        self.prefilled: float | None = None  # the step that computed the last of the prompt has ended
        self.num_cached: int | None = None  # prompt tokens found in the cache when first admitted; None: not yet
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        self.error: tuple[str, str] | None = None  # code and message
        self.grammar = grammar  # has accepted the output, end-of-sequence tokens excluded
        self.scoring = scoring
        if scoring is not None:
            self.draft = list(scoring.path)
        self.tail = b""  # the last bytes of the output, where a stop string may have begun
        stops = NO_TOKENS if sampling.ignore_eos else eos_token_ids
        self.stop_ids = stops.union(sampling.stop_token_ids) if sampling.stop_token_ids else stops
        penalised = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)
        self.history = History(request.prompt) if penalised and scoring is None else None
        self.logprobs: list[TokenLogprobs] | None = None if sampling.logprobs is None or scoring else []
        # Nothing that the host knows beside the parameters has a part in the choice of an unaided sequence's tokens.
        self.unaided = (
            scoring is None
            and grammar is None
            and not penalised
            and sampling.logprobs is None
            and sampling.min_tokens == 0
        )
        # Nothing but the most probable token is ever asked of a plain sequence.
        self.plain = (
            scoring is None
            and sampling.greedy
            and not penalised
            and sampling.logprobs is None
            and sampling.min_tokens == 0
        )
        # Nor is anything but its end looked for in the tokens of a simple one.
        self.simple = self.plain and grammar is None and not sampling.stop

    @property
    def num_known(self) -> int:
        return len(self.tokens) + self.promised + len(self.draft)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def pending(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) + self.promised + len(self.draft) - self.computed

    @property
    def promised_last(self) -> bool:
        """Whether a promised token ends the output, so that it is never computed."""
        return self.promised > 0 and self.num_output + self.promised >= self.request.sampling.max_tokens

    @property
    def draft_room(self) -> int:
        """The most draft tokens that can still be of use: one token of the output always comes from the model."""
        return 0 if self.scoring else self.request.sampling.max_tokens - self.num_output - 1

    def known(self, start: int, stop: int) -> list[int]:
        """The known tokens [start, stop), UNREAD for promised ones."""
        own = len(self.tokens)
        if stop <= own:
            return self.tokens[start:stop]
        if self.promised:
            return self.tokens[start:] + [UNREAD] * (stop - max(start, own))
        return self.tokens[start:] + self.draft[max(start - own, 0) : stop - own]

    def admit(self, num_cached: int) -> None:
        """It runs for the first time; so many tokens of its prompt are there already."""
        self.num_cached, self.admitted = num_cached, time.perf_counter()

    def propose(
        self, tokens: Iterable[int], origins: Iterable[int], chances: Items[NDArray[np.float32] | None] = ()
    ) -> None:
        """A draft, instead of the one before."""
        self.draft[:] = tokens
        self.origins[:] = origins
        self.chances = chances

    def drop_proposal(self) -> None:
        """Give the draft up, unless it is a path of choices."""
        if self.scoring is None:
            self.propose((), ())

    def append(self, tokens: Iterable[int]) -> None:
        """More of the output. Ends the draft: what was computed beyond the tokens accepted from it is void."""
        first = len(self.tokens)
        self.tokens.extend(tokens)
        self.propose((), ())
        self.computed = min(self.computed, len(self.tokens) + self.promised - 1)
        if self.history is not None:
            for token in self.tokens[first:]:
                self.history.add(token)

    def walk(self) -> None:
        """The path is scored: put the next one after the prompt, or finish."""
        assert self.scoring is not None, "only a sequence with choices walks"
        shared = self.scoring.walk()
        if shared is None:
            self.draft.clear()
            self.finish(FinishReason.STOP)
        else:
            self.draft[:] = self.scoring.path
        self.computed = min(self.computed, self.num_prompt + (shared or 0))

    def restart(self) -> None:
        """Forget all that is computed (the blocks are gone); what is known stays, except a mere proposal."""
        self.computed = self.num_sealed = 0
        self.drop_proposal()

    def finish(self, reason: FinishReason, stopped_by: str | int | None = None) -> None:
        assert self.finish_reason is None, "a sequence ends once"
        self.finish_reason = reason
        self.stopped_by = stopped_by
