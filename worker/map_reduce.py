"""Map-reduce: a text too long for the model is summarised chunk by chunk, then its summaries are, until one is left."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from db.errors import InvalidJob
from engine.request import FinishReason, Output, Request
from worker.chunks import cut
from worker.recipes import Row, RowRefused
from worker.rows import Asking, Result, RowMaker

MOST_CHUNKS = 1024  # of a row's text, and so of its requests at a time
MOST_LEVELS = 16  # summaries of summaries; with summaries of a tenth of a prompt, four do for the most chunks
JOINT = "\n\n"  # between two chunks' summaries


@dataclass(frozen=True, slots=True, kw_only=True)
class Level(Asking):
    """The requests of one level: of the row's text itself, or of the summaries that the level before gave."""

    index: int  # of the row
    chunks: int  # of the row's text
    num_tokens: int  # of what is summarised at this level
    final: bool  # it is summarised as a whole
    depth: int = 0  # 0: the row's text
    asked: int = 0  # requests of the row before these
    counts: tuple[int, int, int] = (0, 0, 0)  # of all levels before: tokens of prompts, of those cached, of outputs
    shortened: bool = False  # a summary of a level before was cut by max_tokens

    @property
    def num_prompt(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def too_long(self) -> bool:
        return self.chunks > 1


class MapReduceRowMaker(RowMaker):
    """A RowMaker whose rows are asked for level by level: `answer` gives the next one until a summary is the last."""

    def check(self) -> None:
        """Raises InvalidJob where two summaries could not be made one, whatever they say."""
        with contextlib.suppress(RowRefused):  # then no row gets an answer, and each says why
            room = self.max_prompt_tokens - len(self._summary_of(JOINT))
            longest = self._sampling.max_tokens
            if room < 2 * longest:
                reason = (
                    f"map_reduce puts at least two summaries of up to {longest} tokens into one prompt, which has room "
                    f"for {max(room, 0)} tokens of text; ask for shorter ones (max_words, max_tokens) or give the "
                    "model a larger context"
                )
                raise InvalidJob("on_long", reason)

    def asking(self, index: int, row: Row, text: str) -> Level:
        tokens = self._summary_of(text)
        if len(tokens) <= self.max_prompt_tokens:
            whole = (self.ask(index, tokens),)
            return Level(whole, index=index, chunks=1, num_tokens=len(tokens), final=True)
        ids = self._tokenizer.encode(text)
        requests = self._chunked(index, 0, ids, len(tokens) - len(ids))
        return Level(requests, index=index, chunks=len(requests), num_tokens=len(ids), final=False)

    def _summary_of(self, text: str) -> tuple[int, ...]:
        """The prompt that asks for a text's summary: nothing else of a row is in it."""
        return self._render({}, text)

    def _chunked(self, index: int, first: int, ids: list[int], frame: int) -> tuple[Request, ...]:
        """A request per chunk; `frame`: how many tokens a prompt has around its text. Raises RowRefused."""
        requests: list[Request] = []
        start, room = 0, self.max_prompt_tokens - frame
        while start < len(ids):
            if len(requests) == MOST_CHUNKS:
                reason = f"its {len(ids)} tokens are more than the {MOST_CHUNKS} chunks of {room} that a row may have"
                raise RowRefused("too_long", reason)
            stop, tokens = self._fitting(ids, start, room)
            requests.append(self.ask((index, first + len(requests)), tokens))
            start = stop
        return tuple(requests)

    def _fitting(self, ids: list[int], start: int, room: int) -> tuple[int, tuple[int, ...]]:
        """Where the chunk from `start` on ends, and its prompt. Tokens at its seams with the prompt may merge
        differently from what the room was reckoned by, so what fits is found by trying."""
        while room > 0:
            stop = cut(self._tokenizer, ids, start, room)
            if stop is None:
                break
            tokens = self._summary_of(self._tokenizer.decode(ids[start:stop]))
            if len(tokens) <= self.max_prompt_tokens:
                return stop, tokens
            room = stop - start - (len(tokens) - self.max_prompt_tokens)
        raise RowRefused("too_long", f"a prompt of {self.max_prompt_tokens} tokens has no room for a chunk of the text")

    def answer(self, asking: Asking, outputs: Sequence[Output]) -> Result | Asking:
        """The row's summary, or what is to be asked next. A chunk that failed, or that nothing was said about, fails
        the row."""
        assert isinstance(asking, Level), asking
        results = [self.result(output) for output in outputs]
        spent = _spent(asking, results)
        for place, result in enumerate(results, 1):
            error = result.error
            if error is None and not asking.final and not result.values["output"]:
                error = ("invalid_output", "the model answered with nothing")
            if error is not None:
                of = "" if asking.final else f"{_name(asking.depth)} {place} of {len(results)}: "
                return Result({}, FinishReason.ERROR.value, (error[0], of + error[1]), *spent.counts)
        if asking.final:
            (last,) = results
            values = {**last.values, "chunks": asking.chunks}
            reason = FinishReason.LENGTH.value if spent.shortened else last.finish_reason
            return Result(values, reason, None, *spent.counts, logprobs=last.logprobs)
        try:
            return self._next(spent, JOINT.join(str(result.values["output"]) for result in results))
        except RowRefused as error:
            return Result({}, FinishReason.ERROR.value, (error.code, error.message), *spent.counts)

    def _next(self, done: Level, text: str) -> Level:
        """What to ask about the summaries of a level. Raises RowRefused."""
        tokens, ids, depth = self._summary_of(text), self._tokenizer.encode(text), done.depth + 1
        final = len(tokens) <= self.max_prompt_tokens
        if not final and (len(ids) >= done.num_tokens or depth == MOST_LEVELS):
            reason = (
                f"the {len(done.requests)} summaries of level {depth} have {len(ids)} tokens, were made of "
                f"{done.num_tokens} and do not fit one prompt: the text does not get short enough in {MOST_LEVELS} "
                "levels; ask for shorter summaries or give the model a larger context"
            )
            raise RowRefused("too_long", reason)
        asked = done.asked + len(done.requests)
        if final:
            requests: tuple[Request, ...] = (self.ask((done.index, asked), tokens),)
        else:
            requests = self._chunked(done.index, asked, ids, len(tokens) - len(ids))
        return replace(done, requests=requests, asked=asked, depth=depth, num_tokens=len(ids), final=final)


def _name(depth: int) -> str:
    return "chunk" if depth == 0 else f"summaries of level {depth}, chunk"


def _spent(level: Level, results: Sequence[Result]) -> Level:
    """The level with what its results cost added to what the levels before did."""
    prompt, cached, written = level.counts
    counts = (
        prompt + sum(result.prompt_tokens for result in results),
        cached + sum(result.cached_tokens for result in results),
        written + sum(result.output_tokens for result in results),
    )
    cut_short = any(result.finish_reason == FinishReason.LENGTH.value for result in results)
    return replace(level, counts=counts, shortened=level.shortened or cut_short)
