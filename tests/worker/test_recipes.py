"""Recipes: prompts, choices, calibration, and what they refuse."""

from __future__ import annotations

import math

import pytest

from db.errors import InvalidJob
from db.specs import Chat, Example, Extract, Generate, Label, Summarize
from tests.worker.fakes import END, FakeTokenizer
from worker.recipes import Answer, AnswerRefused, Recipe, RowRefused, build
from worker.recipes.label import label_tokens


def made(spec: Summarize | Label | Generate | Chat | Extract, **prepared: object) -> Recipe:
    return build(spec, FakeTokenizer(), max_chars=100, prepared=prepared)


def scored(*probabilities: float) -> Answer:
    return Answer("", choice_logprobs=tuple(map(math.log, probabilities)))


def refusal(recipe: Recipe, row: dict[str, object]) -> tuple[str, str]:
    with pytest.raises(RowRefused) as caught:
        recipe.text(row)
    return caught.value.code, caught.value.message


def test_summarize() -> None:
    recipe = made(Summarize(max_words=50))
    assert recipe.messages({}, "Long.") == [
        {"role": "system", "content": "Summarize the text in at most 50 words. Write the summary only."},
        {"role": "user", "content": "Long."},
    ]
    assert recipe.default_max_tokens == 96
    assert recipe.read(Answer(" A summary.\n")) == {"output": "A summary."}
    assert refusal(recipe, {"text": None}) == ("null_text", "the column 'text' is null")
    assert refusal(recipe, {"text": " \n"}) == ("empty_text", "the column 'text' is empty")


def test_instruction_replaces_the_recipes_own() -> None:
    recipe = made(Summarize(instruction="TL;DR {max_words}"))
    assert recipe.messages({}, "x")[0] == {"role": "system", "content": "TL;DR {max_words}"}


def test_generate() -> None:
    recipe = made(Generate(template="{{ a }} and {{ b }}", system="Be brief.", columns=("a", "b")))
    assert recipe.text({"a": 1, "b": "two"}) == "1 and two"
    assert recipe.messages({}, "t") == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "t"}]
    assert refusal(recipe, {"a": None, "b": 1})[0] == "template_error"
    assert refusal(recipe, {"a": "x" * 100, "b": 1}) == ("template_error", "the text is longer than 100 characters")
    assert refusal(made(Generate(template="{{ a }}")), {"a": " "}) == ("empty_text", "the template gives an empty text")
    assert made(Generate(template="x")).messages({}, "t") == [{"role": "user", "content": "t"}]


def test_improbable_labels_are_left_unfinished_unless_all_are_wanted() -> None:
    labels = ("a", "b")
    assert made(Label(labels=labels, calibration="none")).choice_margin == pytest.approx(math.log(1e6))
    assert made(Label(labels=labels, calibration="none", label_probs=True)).choice_margin is None
    assert made(Label(labels=labels, calibration="batch")).choice_margin is None, "the prior is still to be measured"
    calibrated = made(Label(labels=labels, calibration="batch"), label_prior=[0.9, 0.1])
    assert calibrated.choice_margin == pytest.approx(math.log(9e6)), "the prior may turn the order round"
    assert made(Summarize()).choice_margin is None


CONVERSATION = [{"role": "system", "content": "S"}, {"role": "user", "content": "longest"}]


def test_chat() -> None:
    recipe = made(Chat())
    assert recipe.text({"messages": CONVERSATION}) == "longest"
    assert recipe.messages({"messages": CONVERSATION}, "cut") == [CONVERSATION[0], {"role": "user", "content": "cut"}]
    assert recipe.text({"messages": '[{"role": "user", "content": "json", "name": "ignored"}]'}) == "json"


@pytest.mark.parametrize(
    ("messages", "code", "message"),
    [
        (None, "null_text", "the column 'messages' is null"),
        ([], "empty_text", "the list of messages is empty"),
        ([{"role": "user", "content": " "}], "empty_text", "every message is empty"),
        ("{", "invalid_messages", "not JSON: Expecting property name enclosed in double quotes"),
        ("[" * 100_000, "invalid_messages", "not JSON: maximum recursion depth exceeded"),
        ('{"role": "user"}', "invalid_messages", "a list of messages is wanted, not dict"),
        (["hi"], "invalid_messages", "message 0 is not an object"),
        ([{"role": "robot", "content": "x"}], "invalid_messages", "message 0 has the role 'robot'"),
        ([{"role": "user", "content": None}], "invalid_messages", "message 0 has no text as its content"),
        ('[{"role": "user", "content": "\\ud800"}]', "invalid_messages", "message 0 is not Unicode text"),
    ],
)
def test_chat_refuses(messages: object, code: str, message: str) -> None:
    got = refusal(made(Chat()), {"messages": messages})
    assert got[0] == code
    assert got[1].startswith(message)


SENTIMENT = Label(labels=("good", "bad"), descriptions={"good": "praise"}, examples=(Example(text="meh", label="bad"),))


def test_label_prompt() -> None:
    recipe = made(SENTIMENT)
    assert recipe.messages({}, "nice") == [
        {
            "role": "system",
            "content": "Labels: good, bad. good: praise. "
            "Read the text and answer with exactly one label from the list, and nothing else.",
        },
        {"role": "user", "content": "Text: meh\nLabel:"},
        {"role": "assistant", "content": "bad"},
        {"role": "user", "content": "Text: nice\nLabel:"},
    ]
    assert recipe.choices == (tuple(b"good"), tuple(b"bad"))


def test_label_without_calibration() -> None:
    values = made(SENTIMENT).read(scored(0.1, 0.3))
    assert values == {"output": "bad", "label": "bad", "confidence": pytest.approx(0.75), "abstained": False}


def test_label_divides_the_prior_out() -> None:
    """0.4 against a prior of 0.2 beats 0.6 against 0.8: 2 to 0.75."""
    values = made(SENTIMENT, label_prior=[0.2, 0.8]).read(scored(0.4, 0.6))
    assert values == {
        "output": "good",
        "label": "good",
        "confidence": pytest.approx(2 / 2.75),
        "abstained": False,
    }


def test_label_probs() -> None:
    recipe = made(SENTIMENT.model_copy(update={"label_probs": True}))
    assert recipe.read(scored(0.1, 0.3))["label_probs"] == [
        {"label": "good", "prob": pytest.approx(0.25)},
        {"label": "bad", "prob": pytest.approx(0.75)},
    ]


def test_a_label_below_the_bar_is_no_label() -> None:
    recipe = made(SENTIMENT.model_copy(update={"abstain_below": 0.76}))
    expected = {"output": None, "label": None, "confidence": pytest.approx(0.75), "abstained": True}
    assert recipe.read(scored(0.1, 0.3)) == expected
    assert recipe.read(scored(0.1, 0.9))["label"] == "bad"


TOPICS = Label(
    labels=("sport", "money"),
    multi_label=True,
    label_probs=True,
    examples=(Example(text="a match", label=("sport",)), Example(text="nothing", label=())),
)


def test_multi_label_prompt() -> None:
    recipe = made(TOPICS)
    assert recipe.messages({}, "a club for sale") == [
        {
            "role": "system",
            "content": "Labels: sport, money. Read the text and say of a label whether it applies: answer with the "
            "label, a colon, and yes or no.",
        },
        {"role": "user", "content": "Text: a match\nLabel:"},
        {"role": "assistant", "content": "sport: yes\nmoney: no"},
        {"role": "user", "content": "Text: nothing\nLabel:"},
        {"role": "assistant", "content": "sport: no\nmoney: no"},
        {"role": "user", "content": "Text: a club for sale\nLabel:"},
    ]
    assert recipe.choices == tuple(map(tuple, (b"sport: yes", b"sport: no", b"money: yes", b"money: no")))


@pytest.mark.parametrize(
    ("update", "labels"),
    [({}, ["sport"]), ({"threshold": 0.1}, ["sport", "money"]), ({"threshold": 0.9}, [])],
)
def test_multi_label_asks_of_every_label_by_itself(update: dict[str, object], labels: list[str]) -> None:
    """However little the model likes to say `sport` at all: it says yes three times as often as no."""
    recipe = made(TOPICS.model_copy(update=update))
    assert recipe.read(scored(0.003, 0.001, 0.1, 0.4)) == {
        "output": str(labels).replace("'", '"'),
        "labels": labels,
        "label_probs": [
            {"label": "sport", "prob": pytest.approx(0.75)},
            {"label": "money", "prob": pytest.approx(0.2)},
        ],
    }


def test_multi_label_calibration() -> None:
    learnt = made(TOPICS).prepare([], lambda texts: [tuple(map(math.log, (0.3, 0.1, 0.2, 0.2)))] * len(texts))
    assert learnt == {"label_log_odds": [pytest.approx(math.log(3)), 0.0], "label_prior_of": 3}
    recipe = made(TOPICS, label_log_odds=[math.log(3), 0.0])
    assert recipe.read(scored(0.3, 0.1, 0.9, 0.1))["label_probs"] == [
        {"label": "sport", "prob": pytest.approx(0.5)},
        {"label": "money", "prob": pytest.approx(0.9)},
    ]
    assert made(TOPICS.model_copy(update={"calibration": "none"})).prepare([], lambda texts: []) == {}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"threshold": 0.7}, "threshold means nothing without multi_label"),
        ({"multi_label": True, "abstain_below": 0.7}, "abstain_below has no place beside multi_label"),
        ({"examples": [{"text": "x", "label": ["a", "b"]}]}, "without multi_label an example has one label"),
        ({"examples": [{"text": "x", "label": "c"}]}, "not among labels: c"),
    ],
)
def test_label_options_that_contradict(values: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Label.model_validate({"labels": ["a", "b"], **values})


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}


def test_extract() -> None:
    recipe = made(Extract(json_schema=PERSON))
    words = "Read the text and answer with what it says, as JSON of this JSON Schema, and nothing else."
    schema = '{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}}}'
    assert recipe.messages({}, "t") == [
        {"role": "system", "content": f"{words}\n{schema}"},
        {"role": "user", "content": "t"},
    ]
    assert recipe.read(Answer('{"name":"Ä"}', {"name": "Ä"})) == {"output": '{"name":"Ä"}', "name": "Ä", "age": None}
    with pytest.raises(AnswerRefused, match="age: 1000000000000000000000000000000 does not fit 64 bits"):
        recipe.read(Answer("", {"age": 10**30}))


def test_extract_with_a_schema_per_row() -> None:
    recipe = made(Extract(schema_column="s", instruction="Do."))
    assert recipe.messages({"s": "{}"}, "t")[0] == {"role": "system", "content": "Do.\n{}"}
    assert recipe.read(Answer('{"a":1}', {"a": 1})) == {"output": '{"a":1}'}


def test_a_label_that_begins_another_ends_with_the_end() -> None:
    assert label_tokens(("no", "not", "yes"), FakeTokenizer()) == ((*b"no", END), tuple(b"not"), tuple(b"yes"))


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (("a", ""), "the label '' has no tokens"),
        (("a", "A"), "'A' and 'a' are the same to the tokenizer"),
    ],
)
def test_labels_the_tokenizer_cannot_tell_apart(labels: tuple[str, ...], reason: str) -> None:
    class Lower(FakeTokenizer):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.lower())

    with pytest.raises(InvalidJob) as caught:
        label_tokens(labels, Lower())
    assert caught.value.reason == reason


def prior(calibration: str, sample: list[str]) -> tuple[dict[str, object], list[str]]:
    seen: list[str] = []

    def score(texts: list[str]) -> list[tuple[float, ...]]:
        seen.extend(texts)
        return [(math.log(0.2), math.log(0.6)) if text else (math.log(0.3), math.log(0.1)) for text in texts]

    return made(SENTIMENT.model_copy(update={"calibration": calibration})).prepare(sample, score), seen


def test_calibration() -> None:
    sample = ["x"] * 16
    assert prior("none", sample) == ({}, [])
    learnt, seen = prior("batch", sample)
    assert (learnt["label_prior"], learnt["label_prior_of"]) == (pytest.approx([0.25, 0.75]), 16)
    assert seen == sample
    # Too few rows for a mean over rows: content-free texts, two of which have the odds 1:3 and one 3:1.
    learnt, seen = prior("batch", sample[:15])
    assert seen == ["N/A", "", "[MASK]"]
    odds = (1 / 3 * 1 / 3 * 3) ** (1 / 3)  # the geometric mean
    assert learnt["label_prior"] == pytest.approx([odds / (1 + odds), 1 / (1 + odds)])
    assert prior("contextual", sample)[1] == seen
