"""Scoring of closed lists: the exact log-probability of every choice through ordinary slices. No torch here.

The choices form a trie. Every inner node is a beginning that some choices share; the logits after it give the
log-probability of each token that may follow. A depth-first walk puts the path to one deepest inner node after the
prompt at a time, so that walking on from it recomputes nothing that the next path shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Path = tuple[int, ...]


class ChoiceTree:
    """What follows from the choices alone: computed once, shared by all requests with the same list."""

    def __init__(self, choices: tuple[Path, ...]) -> None:
        self.choices = choices
        followers: dict[Path, dict[int, None]] = {}
        for choice in choices:
            for depth, token in enumerate(choice):
                followers.setdefault(choice[:depth], {})[token] = None
        self.followers: Mapping[Path, tuple[int, ...]] = {node: tuple(tokens) for node, tokens in followers.items()}
        nodes = sorted(followers)  # lexicographic: neighbours share the longest beginnings
        following = [*nodes[1:], None]
        self.paths: tuple[Path, ...] = tuple(
            node for node, after in zip(nodes, following, strict=True) if after is None or after[: len(node)] != node
        )


class Scoring:
    """The walk of one request through its tree, and the log-probabilities met so far.

    With a margin, paths are left out that only lead to choices less probable than the best whole one by more than it:
    a beginning's log-probability bounds that of all that go on from it.
    """

    __slots__ = ("_logprobs", "_margin", "_walked", "tree")

    def __init__(self, tree: ChoiceTree, margin: float | None = None) -> None:
        self.tree = tree
        self._margin = margin
        self._logprobs: dict[tuple[Path, int], float] = {}
        self._walked = 0

    @property
    def path(self) -> Path:
        """The tokens that stand after the prompt now."""
        return self.tree.paths[self._walked]

    def followers(self, depth: int) -> tuple[int, ...]:
        """The tokens whose log-probability is wanted after the first `depth` tokens of the path."""
        return self.tree.followers[self.path[:depth]]

    def record(self, depth: int, logprobs: Sequence[float]) -> None:
        """The log-probabilities of followers(depth), in that order."""
        node = self.path[:depth]
        for token, logprob in zip(self.tree.followers[node], logprobs, strict=True):
            self._logprobs[node, token] = logprob

    def walk(self) -> int | None:
        """Go on to the next path that is of interest. Returns how many of its tokens the last one shares; None: the
        walk is over."""
        last = self.path
        self._walked += 1
        if self._margin is not None and self._walked < len(self.tree.paths):
            least = self._best() - self._margin
            while self._walked < len(self.tree.paths) and self._total(self.path) < least:
                self._walked += 1
        if self._walked == len(self.tree.paths):
            return None
        shared = 0
        for old, new in zip(last, self.path, strict=False):
            if old != new:
                break
            shared += 1
        return shared

    def totals(self) -> tuple[float, ...]:
        """The log-probability of every choice, in the order of the request; of one that was left out, that of its
        beginning as far as it is known. The walk must be over."""
        return tuple(map(self._total, self.tree.choices))

    def _total(self, tokens: Path) -> float:
        """The log-probability of tokens, as far as it is known: what is not known counts as certain."""
        return sum(self._logprobs.get((tokens[:depth], token), 0.0) for depth, token in enumerate(tokens))

    def _best(self) -> float:
        """The log-probability of the most probable choice that is known whole."""
        whole = (choice for choice in self.tree.choices if (choice[:-1], choice[-1]) in self._logprobs)
        return max(map(self._total, whole), default=-math.inf)
