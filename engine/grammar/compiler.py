"""Grammars: formats compiled by llguidance, each once; masks of many outputs filled at once."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence as Items

from llguidance import LLExecutor, LLMatcher, LLTokenizer

from engine.format import Format
from engine.grammar.grammar import Bitmask, Fill
from engine.grammar.source import refusal, source

CACHED = 256  # compiled formats; a schema of a few properties takes a quarter of a megabyte once it has been used
MOST_THREADS = 16


class MatcherGrammar:
    """A Grammar (see grammar.py) by llguidance's matcher."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher

    @property
    def finished(self) -> bool:
        return self.matcher.is_stopped() and not self.matcher.is_error()

    @property
    def error(self) -> str:
        return self.matcher.get_error().split("\n")[0] if self.matcher.is_error() else ""

    def accept(self, tokens: Items[int]) -> int:
        return self.matcher.try_consume_tokens(list(tokens))

    def rollback(self, count: int) -> None:
        if count:
            self.matcher.rollback(count)

    def forced(self) -> list[int]:
        return self.matcher.compute_ff_tokens()

    def forced_text(self) -> bytes:
        return self.matcher.compute_ff_bytes()


class Grammars:
    """A Backend (see grammar.py). What is compiled is kept, the least recently used dropped, and every output gets a
    copy of the compiled state, which shares all that is learnt about the format while masks are filled.

    Any thread may `check` or `start`; `fill` belongs to the engine."""

    def __init__(self, vocabulary: LLTokenizer, *, cached: int = CACHED, num_threads: int | None = None) -> None:
        self._vocabulary = vocabulary
        self._cached = cached
        self._executor = LLExecutor(num_threads or min(os.cpu_count() or 1, MOST_THREADS))
        self._compiled: OrderedDict[Format, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()  # of the table: who finds a format there must not lose it to another's compiling

    @property
    def vocab_size(self) -> int:
        return self._vocabulary.vocab_size

    @property
    def num_compiled(self) -> int:
        """Compiled formats that are kept now."""
        return len(self._compiled)

    def check(self, format: Format) -> None:
        self._compile(format)

    def start(self, format: Format) -> MatcherGrammar:
        return MatcherGrammar(self._compile(format).deep_copy())

    def fill(self, fills: Items[Fill], mask: Bitmask) -> None:
        plain: list[tuple[LLMatcher, int]] = []
        drafted: list[tuple[LLMatcher, int, list[int]]] = []
        for grammar, row, draft in fills:
            assert isinstance(grammar, MatcherGrammar), "grammars come from the backend that fills their masks"
            if draft:
                drafted.append((grammar.matcher, row, draft))
            else:
                plain.append((grammar.matcher, row))
        rows, words = mask.shape
        assert mask.flags.c_contiguous, "the library writes rows one after the other"
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, mask.ctypes.data, 4 * words, rows)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, mask.ctypes.data, 4 * words, rows)

    def tokens_of(self, text: bytes) -> list[int]:
        return self._vocabulary.tokenize_bytes(text)

    def _compile(self, format: Format) -> LLMatcher:
        with self._lock:
            matcher = self._compiled.get(format)
            if matcher is None:
                matcher = LLMatcher(self._vocabulary, source(format), log_level=0)
                if matcher.is_error():
                    raise refusal(format, matcher.get_error())
                self._compiled[format] = matcher
                while len(self._compiled) > self._cached:
                    self._compiled.popitem(last=False)
            else:
                self._compiled.move_to_end(format)
            return matcher
