"""HistoryDrafter: outputs of a batch job resemble one another (after SuffixDecoding, Oliaro et al. 2024)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from collections.abc import Sequence as Items

from engine.drafter.drafter import NONE, Context, Guess
from engine.request import FinishReason
from engine.sequence import Sequence

RUNS = (6, 3, 1)  # lengths of the runs of tokens that are remembered, the longest first
MOST_GROUPS = 8
MOST_RUNS = 1 << 17  # remembered per group, at about 200 bytes each
BEFORE = -1  # stands before an output's first token, so that beginnings are remembered as well


class HistoryDrafter:
    """Continues with what most often followed the same run of tokens in the finished outputs of the group.

    Kinds: for each length of run, whether it was seen once, or how large the continuation's share was: below 0.75,
    below 0.95, from 0.95 on.
    """

    name = "history"
    costly = False
    priors = (0.6, 0.6, 0.8, 0.92, 0.4, 0.4, 0.7, 0.85, 0.1, 0.1, 0.4, 0.7)

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, Runs] = OrderedDict()

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        return [self._guess(context) for context in contexts]

    def finish(self, sequence: Sequence) -> None:
        if sequence.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH) or sequence.scoring is not None:
            return
        group = sequence.request.group
        runs = self._groups.pop(group, None) or Runs()
        self._groups[group] = runs
        if len(self._groups) > MOST_GROUPS:
            self._groups.popitem(last=False)
        runs.learn(sequence.tokens[sequence.num_prompt :])

    def _guess(self, context: Context) -> Guess:
        sequence = context.sequence
        runs = self._groups.get(sequence.request.group)
        if runs is None:
            return NONE
        own = sequence.tokens[max(sequence.num_prompt, len(sequence.tokens) - RUNS[0]) :] + context.draft
        text = [BEFORE] * max(RUNS[0] - len(own), 0) + own
        tokens: list[int] = []
        kinds: list[int] = []
        while len(tokens) < context.room:
            found = runs.next(text)
            if found is None:
                break
            token, kind = found
            tokens.append(token)
            kinds.append(kind)
            text.append(token)
        return Guess(tokens, kinds)


class Runs:
    """What followed each run of tokens, and how often. Forgets in two generations: runs not seen for long go.

    Keyed by the runs' hashes: should two collide, a guess gets worse and nothing else happens.
    """

    __slots__ = ("_new", "_old")

    def __init__(self) -> None:
        self._new: dict[int, list[int]] = {}  # hash of a run -> [the favourite next token, its lead, times seen]
        self._old: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._new) + len(self._old)

    def learn(self, output: Items[int]) -> None:
        text = [BEFORE] * RUNS[0] + list(output)
        for place in range(RUNS[0], len(text)):
            for length in RUNS:
                self._count(hash(tuple(text[place - length : place])), text[place])
        if len(self._new) > MOST_RUNS // 2:
            self._old, self._new = self._new, {}

    def next(self, text: list[int]) -> tuple[int, int] | None:
        """The favourite after the end of a text, and its kind."""
        for level, length in enumerate(RUNS):
            key = hash(tuple(text[-length:]))
            entry = self._new.get(key) or self._old.get(key)
            if entry is not None:
                token, lead, seen = entry
                share = (1 + lead / seen) / 2  # with two candidates, exactly the favourite's share
                grade = 0 if seen == 1 else 1 if share < 0.75 else 2 if share < 0.95 else 3
                return token, 4 * level + grade
        return None

    def _count(self, key: int, token: int) -> None:
        entry = self._new.get(key)
        if entry is None:
            entry = self._new[key] = self._old.pop(key, [token, 0, 0])
        if entry[0] == token:
            entry[1] += 1
        elif entry[1] > 0:
            entry[1] -= 1
        else:
            entry[0], entry[1] = token, 1
        entry[2] += 1
