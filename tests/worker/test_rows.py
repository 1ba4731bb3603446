"""Rows: requests with their cuts, results with their texts, counts and errors."""

from __future__ import annotations

import json

import pytest

from db.sampling import SamplingSpec
from db.specs import Generate, JobSpec, Label, Summarize
from engine.request import FinishReason, Output, Request, SamplingParams, TokenLogprobs
from tests.worker.fakes import ROLES, FakeTokenizer
from worker.recipes import RowRefused, build
from worker.rows import Result, RowMaker, prompt_tokens, refused

ECHO = Generate(template="{{ text }}", columns=("text",))
FRAME = 3  # tokens of the fake chat template around one message


def maker(max_model_len: int = 100, max_prompt_bytes: int = 1000, **spec: object) -> RowMaker:
    job = JobSpec.model_validate({"input": "in", "recipe": ECHO, "model": "fake", **spec})
    tokenizer = FakeTokenizer()
    recipe = build(job.recipe, tokenizer, max_chars=10_000)
    return RowMaker(job, recipe, tokenizer, max_model_len=max_model_len, max_prompt_bytes=max_prompt_bytes, group="job")


def request_of(made: RowMaker, index: int, row: dict[str, object]) -> tuple[Request, int]:
    """The row's request, and how many tokens were cut."""
    asking = made.asking(index, row, made.text(row))
    (request,) = asking.requests
    return request, asking.truncated_tokens


def refusal(made: RowMaker, text: str | None) -> tuple[str, str]:
    with pytest.raises(RowRefused) as caught:
        request_of(made, 0, {"text": text})
    return caught.value.code, caught.value.message


def test_request() -> None:
    request, truncated = request_of(maker(sampling=SamplingSpec(max_tokens=7, stop=("x",))), 42, {"text": "hi"})
    assert (request.id, truncated) == (42, 0)
    assert request.prompt == (ROLES["user"], *b"hi", 256, ROLES["assistant"])
    assert request.sampling == SamplingParams(max_tokens=7, stop=("x",))
    assert request.choices == ()


def test_default_max_tokens_is_the_recipes() -> None:
    made = maker(1000, recipe=Summarize(max_words=10))
    assert request_of(made, 0, {"text": "hi"})[0].sampling.max_tokens == 32
    assert made.max_prompt_tokens == 968


def test_choices_need_room_for_the_longest() -> None:
    made = maker(1000, recipe=Label(labels=("yes", "never")))
    assert made.max_prompt_tokens == 995
    assert request_of(made, 0, {"text": "x"})[0].choices == (tuple(b"yes"), tuple(b"never"))


def test_a_seed_gives_every_row_its_own() -> None:
    made = maker(sampling=SamplingSpec(temperature=1.0, seed=3, max_tokens=5))
    seeds = [request_of(made, index, {"text": "x"})[0].sampling.seed for index in (0, 1, 0)]
    assert seeds[0] == seeds[2] != seeds[1]
    greedy = maker(sampling=SamplingSpec(seed=3, max_tokens=5))
    assert request_of(greedy, 9, {"text": "x"})[0].sampling.seed == 3


def test_too_large() -> None:
    made = maker(max_prompt_bytes=4)
    assert refusal(made, "ééé") == ("text_too_large", "the text has 6 bytes; the limit is 4")


def test_too_long_is_an_error_by_default() -> None:
    made = maker(20, sampling=SamplingSpec(max_tokens=5))
    assert request_of(made, 0, {"text": "x" * 12})[1] == 0
    assert refusal(made, "x" * 13) == ("too_long", "the prompt has 16 tokens; there is room for 15")


@pytest.mark.parametrize(
    ("on_long", "kept"),
    [("truncate_head", "opqrstuvwxyz"), ("truncate_tail", "abcdefghijkl"), ("truncate_middle", "abcdefuvwxyz")],
)
def test_truncation_keeps_what_fits(on_long: str, kept: str) -> None:
    made = maker(20, sampling=SamplingSpec(max_tokens=5), on_long=on_long)
    request, truncated = request_of(made, 0, {"text": "abcdefghijklmnopqrstuvwxyz"})
    assert bytes(request.prompt[1:-2]).decode() == kept
    assert len(request.prompt) == made.max_prompt_tokens == 15
    assert truncated == 14


@pytest.mark.parametrize(
    ("on_long", "kept"), [("truncate_head", "éb"), ("truncate_tail", "aé"), ("truncate_middle", "ab")]
)
def test_truncation_leaves_no_broken_character(on_long: str, kept: str) -> None:
    """Room for four bytes of a, é, é, b (1 + 2 + 2 + 1), so that each cut falls into a character."""
    made = maker(12, sampling=SamplingSpec(max_tokens=5), on_long=on_long)
    request, truncated = request_of(made, 0, {"text": "aééb"})
    assert bytes(request.prompt[1:-2]).decode() == kept
    assert truncated == 2


def test_truncation_of_a_prompt_that_never_fits() -> None:
    made = maker(
        12, sampling=SamplingSpec(max_tokens=5), on_long="truncate_tail", recipe=Summarize(instruction="long " * 9)
    )
    assert refusal(made, "abc")[0] == "too_long"


def test_no_chat_template() -> None:
    plain = FakeTokenizer(has_chat_template=False)
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert bytes(prompt_tokens(plain, messages)) == b"S\n\nU\n\n"
    assert prompt_tokens(FakeTokenizer(has_chat_template=False, bos_token_id=7), messages)[0] == 7


def output(**values: object) -> Output:
    given = {"tokens": tuple(b"ONE two"), "finish_reason": FinishReason.STOP, "num_prompt_tokens": 9}
    return Output(**{"id": 0, "num_cached_tokens": 4, "num_output_tokens": 8, **given, **values})


def test_result() -> None:
    assert maker().result(output(), 3) == Result({"output": "ONE two"}, "stop", None, 9, 4, 8, 3)


def test_text_is_cut_at_the_stop_string_but_not_at_a_stop_token() -> None:
    assert maker().result(output(stopped_by=" t")).values == {"output": "ONE"}
    assert maker().result(output(stopped_by=32)).values == {"output": "ONE two"}


def test_logprobs_are_json() -> None:
    logprobs = (TokenLogprobs(79, -0.5, ((79, -0.5), (80, -1.5))),)
    text = maker().result(output(tokens=(79,), logprobs=logprobs)).logprobs
    assert text is not None
    assert json.loads(text) == [
        {
            "token": "O",
            "id": 79,
            "logprob": -0.5,
            "top": [{"token": "O", "id": 79, "logprob": -0.5}, {"token": "P", "id": 80, "logprob": -1.5}],
        }
    ]


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"error_code": "request_too_long", "error": "99 tokens"}, ("too_long", "99 tokens")),
        ({"error_code": "invalid_request", "error": "bad"}, ("engine_error", "bad")),
        ({"finish_reason": FinishReason.CANCELLED}, ("engine_error", "the request ended as cancelled")),
    ],
)
def test_error_outputs(values: dict[str, object], error: tuple[str, str]) -> None:
    result = maker().result(output(**{"finish_reason": FinishReason.ERROR, **values}))
    assert result == Result({}, "error", error, 9, 4, 8, 0)


def test_refused() -> None:
    assert refused(RowRefused("null_text", "m")) == Result({}, "error", ("null_text", "m"))
