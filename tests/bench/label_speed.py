"""Labels scored against labels written: rows per second of one engine, and the labels against exhaustive scoring.

w1 is recast as a choice among the labels that its prompts list. `scored` asks the engine for the probability of every
label (what the recipe `label` does), `written` has it write one token by token under a choice format, `free` has it
write up to 8 tokens as it likes. `prompts` computes the prompts and one token, with no format: no way to label can be
faster, as every prompt must be read, so its rate over that of `written` is the most that scoring can gain. Repetitions
alternate, because the machine's speed drifts.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine import Format, LoadedModel, Output, Request, SamplingParams
from tests.bench.workloads import Item, load, salted
from worker.recipes.label import UNFINISHED, label_tokens

FREE_TOKENS = 8
MARGIN = -math.log(UNFINISHED)  # what the recipe asks for where no prior shifts the scores
TIE = 1e-4  # log-probabilities closer than this are equal: sums of fp32 in another order


@dataclass(frozen=True, slots=True)
class Speed:
    """Rows per second, the median of some repetitions; and tokens that went through the model per row."""

    rows: float
    tokens: float

    def __str__(self) -> str:
        return f"{self.rows:.1f} rows/s ({self.tokens:.1f} tokens computed per row)"


@dataclass(frozen=True, slots=True)
class Speeds:
    scored: Speed
    written: Speed
    free: Speed
    prompts: Speed
    same_as_written: float  # share of the rows that get the same label either way

    @property
    def ratio(self) -> float:
        return self.scored.rows / self.written.rows

    @property
    def ceiling(self) -> float:
        return self.prompts.rows / self.written.rows


@dataclass(frozen=True, slots=True)
class Agreement:
    """How the scores of all labels together compare with those of each label as a request by itself."""

    rows: int
    equal: int  # rows with the same best label, ties within TIE included
    largest_difference: float  # of a log-probability


def labels_of(items: Sequence[Item], loaded: LoadedModel) -> list[str]:
    """The list that every prompt of w1 holds."""
    text = loaded.tokenizer.decode(items[0].prompt_ids)
    return text.partition("Labels: ")[2].partition(".\n")[0].split(", ")


def measure(loaded: LoadedModel, rows: int, repetitions: int) -> Speeds:
    items = load("w1")[:rows]
    labels = labels_of(items, loaded)
    choices = label_tokens(labels, loaded.tokenizer)
    longest = SamplingParams(max_tokens=max(map(len, choices)) + 1)
    format = Format.choice(labels)
    kinds: dict[str, Callable[[int, Item], Request]] = {
        "scored": lambda number, item: Request(number, item.prompt_ids, choices=choices, choice_margin=MARGIN),
        "written": lambda number, item: Request(number, item.prompt_ids, longest, format=format, group="w1"),
        "free": lambda number, item: Request(number, item.prompt_ids, SamplingParams(max_tokens=FREE_TOKENS)),
        "prompts": lambda number, item: Request(number, item.prompt_ids, SamplingParams(max_tokens=1)),
    }
    speeds: dict[str, list[float]] = {kind: [] for kind in kinds}
    tokens: dict[str, float] = {}
    answers: dict[str, list[str]] = {}
    for repetition in range(-1, repetitions):  # the first one warms up
        for kind, request in kinds.items():
            # Every run has prompts of its own, or the prefix cache would answer the later ones.
            run = salted(items, len(kinds) * (repetition + 1) + list(kinds).index(kind))
            before, computed = time.perf_counter(), loaded.engine.stats().computed_tokens
            outputs = ordered(loaded, [request(number, item) for number, item in enumerate(run)])
            seconds = time.perf_counter() - before
            if repetition >= 0:
                speeds[kind].append(len(items) / seconds)
            tokens[kind] = (loaded.engine.stats().computed_tokens - computed) / len(items)
    for kind in ("scored", "written"):
        outputs = ordered(loaded, [kinds[kind](number, item) for number, item in enumerate(items)])
        answers[kind] = [loaded.tokenizer.decode(output.tokens) for output in outputs]
    same = sum(one == other for one, other in zip(answers["scored"], answers["written"], strict=True)) / len(items)
    found = {kind: Speed(statistics.median(speeds[kind]), tokens[kind]) for kind in kinds}
    return Speeds(**found, same_as_written=same)


def ordered(loaded: LoadedModel, requests: Sequence[Request]) -> list[Output]:
    outputs = {output.id: output for output in loaded.engine.generate(requests)}
    return [outputs[request.id] for request in requests]


def agree(together: LoadedModel, apart: LoadedModel, rows: int) -> Agreement:
    """All labels as one tree against one request per label, which `apart` may answer without sharing anything."""
    items = load("w1")[:rows]
    choices = label_tokens(labels_of(items, together), together.tokenizer)
    scored = ordered(together, [Request(i, item.prompt_ids, choices=choices) for i, item in enumerate(items)])
    pairs = [(i, j) for i in range(len(items)) for j in range(len(choices))]
    alone = ordered(apart, [Request((i, j), items[i].prompt_ids, choices=(choices[j],)) for i, j in pairs])
    equal, largest = 0, 0.0
    for i, output in enumerate(scored):
        mine = output.choice_logprobs
        theirs = [alone[i * len(choices) + j].choice_logprobs for j in range(len(choices))]
        assert mine is not None
        single = [scores[0] for scores in theirs if scores is not None]
        largest = max(largest, *(abs(a - b) for a, b in zip(mine, single, strict=True)))
        best = max(range(len(mine)), key=mine.__getitem__)
        equal += single[best] >= max(single) - TIE
    return Agreement(len(items), equal, largest)
