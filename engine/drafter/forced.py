"""ForcedDrafter: what the grammar forces."""

from __future__ import annotations

from collections.abc import Sequence as Items

from engine.drafter.drafter import NONE, Context, Guess
from engine.grammar.grammar import Backend
from engine.sequence import Sequence

CERTAIN, LIKELY = 0, 1


class ForcedDrafter:
    """Tokens that the format forces (kind CERTAIN), then the tokens of forced text whose last ones a longer token
    could still cover (LIKELY)."""

    name = "grammar"
    costly = False
    priors = (0.95, 0.7)

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def guess(self, contexts: Items[Context]) -> list[Guess]:
        return [self._guess(context) for context in contexts]

    def finish(self, sequence: Sequence) -> None:
        """Nothing is kept of a sequence."""

    def _guess(self, context: Context) -> Guess:
        grammar = context.sequence.grammar
        if grammar is None:
            return NONE
        certain = grammar.forced()
        text = grammar.forced_text() if len(certain) < context.room else b""
        if not text:
            return Guess(certain, [CERTAIN] * len(certain))
        tokens = self._backend.tokens_of(text)
        if tokens[: len(certain)] != certain:
            return Guess(certain, [CERTAIN] * len(certain))
        return Guess(tokens, [CERTAIN] * len(certain) + [LIKELY] * (len(tokens) - len(certain)))
