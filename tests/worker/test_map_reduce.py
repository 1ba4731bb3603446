"""Map-reduce: a long text is summarised chunk by chunk, nothing of it is lost, and what cannot end says why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from db.errors import InvalidJob
from db.specs import JobSpec
from engine.request import FinishReason, Output, Request
from tests.worker.fakes import FakeTokenizer, complete
from worker.map_reduce import Level, MapReduceRowMaker
from worker.recipes import RowRefused, build
from worker.rows import Asking, Result

FRAME = 6  # tokens around the text: the instruction, a byte of its own, and the markers


def maker(room: int = 14, max_tokens: int = 6, **sampling: object) -> MapReduceRowMaker:
    """Prompts have room for so many bytes of text."""
    job = JobSpec.model_validate(
        {
            "input": "in",
            "model": "fake",
            "recipe": {"kind": "summarize", "instruction": "S"},
            "on_long": "map_reduce",
            "sampling": {"max_tokens": max_tokens, **sampling},
        }
    )
    tokenizer: Any = FakeTokenizer()
    recipe = build(job.recipe, tokenizer, max_chars=1000)
    length = room + FRAME + max_tokens
    return MapReduceRowMaker(job, recipe, tokenizer, max_model_len=length, max_prompt_bytes=100_000, group="job")


def text_of(request: Request) -> str:
    return bytes(request.prompt[4:-2]).decode()


def settle(
    made: MapReduceRowMaker, text: str, answer: Callable[[Request], Output] = complete
) -> tuple[Result, list[list[str]]]:
    """The row's result, and what it asked level by level."""
    asking: Asking | Result = made.asking(7, {}, text)
    levels = []
    while isinstance(asking, Asking):
        levels.append([text_of(request) for request in asking.requests])
        asking = made.answer(asking, [answer(request) for request in asking.requests])
    return asking, levels


def words(request: Request) -> Output:
    """An answer that ends by itself: the first four bytes."""
    return replace(
        complete(request), tokens=tuple(request.prompt[4:8]), finish_reason=FinishReason.STOP, num_output_tokens=4
    )


def test_a_text_that_fits_is_one_chunk() -> None:
    made = maker()
    asking = made.asking(7, {}, "One two.")
    assert asking.requests == (made.ask(7, asking.requests[0].prompt),)
    result, levels = settle(made, "One two.", words)
    assert levels == [["One two."]]
    assert result == Result({"output": "One", "chunks": 1}, "stop", None, 8 + FRAME, 0, 4)


def test_chunks_then_their_summaries() -> None:
    result, levels = settle(maker(), "First thing here. Second one.", words)
    assert levels == [["First thing", " here. Second", " one."], ["Firs\n\nher\n\none"]]
    prompts = 3 * FRAME + 29 + FRAME + 14
    assert result == Result({"output": "Firs", "chunks": 3}, "stop", None, prompts, 0, 4 * 4)


def test_levels_until_one_is_left() -> None:
    """Ten chunks give ten summaries of four bytes at most, and so on; the ids of a row's requests never come twice."""
    made = maker()
    asking: Asking | Result = made.asking(7, {}, "A sentence now. " * 8)
    ids: list[object] = []
    sizes = []
    while isinstance(asking, Asking):
        sizes.append(len(asking.requests))
        ids += [request.id for request in asking.requests]
        assert isinstance(asking, Level)
        assert asking.asked == len(ids) - len(asking.requests)
        asking = made.answer(asking, [words(request) for request in asking.requests])
    assert sizes == [10, 5, 2, 1]
    assert ids == [(7, place) for place in range(18)]
    assert asking.error is None
    assert asking.values["chunks"] == 10
    assert asking.truncated_tokens == 0


def test_chunks_are_the_whole_text() -> None:
    text = "Ünï cödé, wörds. Möre of it! " * 9
    _, levels = settle(maker(), text, words)
    assert "".join(levels[0]) == text


def test_a_summary_that_was_cut_shows_in_the_row() -> None:
    """The fake answers with the text itself, cut at six tokens; the last answer alone ends by itself."""

    def answer(request: Request) -> Output:
        return words(request) if "\n\n" in text_of(request) else complete(request)

    result, levels = settle(maker(), "First thing here. Sec", answer)
    assert (len(levels), result.finish_reason, result.values["output"]) == (2, "length", "FIRS")


def test_each_request_draws_from_a_stream_of_its_own() -> None:
    made = maker(temperature=1.0, seed=5)
    asking = made.asking(7, {}, "First thing here. Second one.")
    assert len({request.sampling.seed for request in asking.requests}) == 3
    again = made.asking(7, {}, "First thing here. Second one.")
    assert again.requests == asking.requests


def test_a_chunk_that_fails_fails_the_row_and_what_was_computed_counts() -> None:
    def answer(request: Request) -> Output:
        if request.id != (7, 1):
            return words(request)
        return Output(request.id, (), FinishReason.ERROR, 0, 0, 0, error="broke", error_code="invalid_logits")

    result, _ = settle(maker(), "First thing here. Second one.", answer)
    assert (result.error, result.finish_reason) == (("invalid_logits", "chunk 2 of 3: broke"), "error")
    assert (result.values, result.prompt_tokens, result.output_tokens) == ({}, 11 + 5 + 2 * FRAME, 2 * 4)


def test_a_chunk_that_nothing_is_said_about_fails_the_row() -> None:
    def answer(request: Request) -> Output:
        return replace(words(request), tokens=(32,)) if request.id == (7, 0) else words(request)

    result, _ = settle(maker(), "First thing here. Second one.", answer)
    assert result.error == ("invalid_output", "chunk 1 of 3: the model answered with nothing")


def test_summaries_that_do_not_get_shorter() -> None:
    """Each answers with more than it was given."""

    def answer(request: Request) -> Output:
        return replace(words(request), tokens=tuple(b"longer and longer"))

    result, levels = settle(maker(), "First thing here. Second one.", answer)
    assert len(levels) == 1
    assert result.error is not None
    assert result.error[0] == "too_long"
    assert result.error[1].startswith("the 3 summaries of level 1 have 55 tokens, were made of 29 and do not fit")


def test_levels_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.map_reduce.MOST_LEVELS", 2)
    result, levels = settle(maker(), "A sentence now. " * 8, words)
    assert [len(level) for level in levels] == [10, 5]
    assert result.error is not None
    assert "does not get short enough in 2 levels" in result.error[1]


def test_chunks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.map_reduce.MOST_CHUNKS", 2)
    with pytest.raises(RowRefused) as caught:
        maker().asking(7, {}, "First thing here. Second one.")
    message = "its 29 tokens are more than the 2 chunks of 14 that a row may have"
    assert (caught.value.code, caught.value.message) == ("too_long", message)


def test_a_character_that_no_prompt_has_room_for() -> None:
    with pytest.raises(RowRefused, match="has no room for a chunk"):
        maker(room=3, max_tokens=1).asking(7, {}, "😀😀")


def test_room_for_two_summaries_is_asked_for_beforehand() -> None:
    maker().check()
    with pytest.raises(InvalidJob) as caught:
        maker(room=13).check()
    assert caught.value.field == "on_long"
    assert "two summaries of up to 6 tokens into one prompt, which has room for 11 tokens" in caught.value.reason


def test_a_level_knows_of_its_row() -> None:
    level = maker().asking(7, {}, "First thing here. Second one.")
    assert isinstance(level, Level)
    assert (level.asked, level.chunks, level.num_tokens, level.final) == (0, 3, 29, False)
    assert (level.num_prompt, level.too_long) == (29 + 3 * FRAME, True)
    assert not maker().asking(7, {}, "First.").too_long
