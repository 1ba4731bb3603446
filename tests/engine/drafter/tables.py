"""A model whose next token depends on the last one alone, by a table: exact distributions follow from it."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from engine.cache import KVCache
from engine.draw import distribution
from engine.format import Format
from engine.grammar import Grammar, Grammars
from engine.inputs import Inputs
from engine.request import SamplingParams
from tests.engine.fakes import config
from tests.engine.grammar.languages import END, allowed

Output = tuple[int, ...]


class TableModel:
    """Logits [vocab, vocab] by the last token, of the given spread."""

    def __init__(self, vocab_size: int, *, seed: int, spread: float = 1.5) -> None:
        self.config = config(vocab_size)
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(vocab_size, vocab_size, generator=generator) * spread

    def disturbed(self, seed: int, spread: float) -> TableModel:
        """Another model that mostly agrees with this one."""
        other = TableModel(self.config.vocab_size, seed=seed, spread=spread)
        other.table += self.table
        return other

    def forward(self, inputs: Inputs, cache: KVCache) -> Tensor:
        return inputs.token_ids[inputs.logit_rows].float()[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.table[hidden[:, 0].long()]


def exact(
    model: TableModel,
    prompt: int,
    sampling: SamplingParams,
    *,
    backend: Grammars | None = None,
    format: Format | None = None,
) -> dict[Output, float]:
    """The probability of every output of up to max_tokens tokens, end-of-sequence tokens left out."""
    found: dict[Output, float] = collections.defaultdict(float)
    grammar = backend.start(format) if backend is not None and format is not None else None

    def walk(output: Output, last: int, chance: float) -> None:
        if len(output) == sampling.max_tokens or (grammar is not None and grammar.finished):
            found[output] += chance
            return
        logits = model.table[last].clone()
        if grammar is not None and backend is not None:
            fitting = sorted(allowed(backend, grammar))
            logits = torch.full_like(logits, -torch.inf).index_copy_(0, torch.tensor(fitting), logits[fitting])
        probs = distribution(logits[None], [sampling])[0]
        for token in probs.nonzero()[:, 0].tolist():
            if token == END:
                found[output] += chance * float(probs[token])
                continue
            with_token(grammar, token, lambda token=token: walk((*output, token), token, chance * float(probs[token])))

    walk((), prompt, 1.0)
    return found


def with_token(grammar: Grammar | None, token: int, action: collections.abc.Callable[[], None]) -> None:
    if grammar is None:
        action()
        return
    assert grammar.accept([token]) == 1
    action()
    grammar.rollback(1)


def surprise(outputs: Iterable[Output], expected: dict[Output, float]) -> float:
    """How far counts lie from what is expected, in standard deviations: Pearson's chi-square, through Wilson and
    Hilferty's normal approximation. Outputs expected less than ten times are taken together."""
    counts = collections.Counter(outputs)
    assert not set(counts) - set(expected), "an output that cannot be came out"
    total = sum(counts.values())
    rare = [output for output, chance in expected.items() if chance * total < 10]
    cells = [(counts[output], chance * total) for output, chance in expected.items() if chance * total >= 10]
    if rare:
        cells.append((sum(counts[output] for output in rare), sum(expected[output] for output in rare) * total))
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells if wanted > 0)
    freedom = len(cells) - 1
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def total_variation(outputs: Iterable[Output], expected: dict[Output, float]) -> float:
    """Half the sum of the differences between shares and probabilities."""
    counts = collections.Counter(outputs)
    total = sum(counts.values())
    return sum(abs(counts[output] / total - chance) for output, chance in expected.items()) / 2
