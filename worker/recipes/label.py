"""label: one text -> one label of a closed list, with the label's probability among the list.

The model never writes freely: the engine computes the exact log-probability of every label as the answer, so nothing
outside the list can come out. A small model likes some labels whatever the text says; that prior is measured once per
job and divided out:

- contextual calibration (Zhao et al. 2021, "Calibrate Before Use"): the mean over content-free texts;
- batch calibration (Zhou et al. 2023, "Batch Calibration"): the mean over a sample of the job's own rows.

The mean is the geometric one: it shifts the scores themselves, and a few over-confident answers do not rule it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from db.errors import InvalidJob
from db.specs import Example, Label
from engine.tokenizer import Tokenizer
from worker.recipes.recipe import Answer, Message, Row, Score, text_of

# The words of the prompt, in one place. Examples follow the system text as turns of their own. Seen with SmolLM2-135M
# on 400 tweets: 0.80 with these words, before any calibration; other orders and wordings gave 0.52 to 0.80.
SYSTEM = (
    "Labels: {labels}.{descriptions} Read the text and answer with exactly one label from the list, and nothing else."
)
TEXT = "Text: {text}\nLabel:"
DESCRIPTION = " {label}: {description}."
CONTENT_FREE = ("N/A", "", "[MASK]")

BATCH_ROWS = 128
# The mean over a few rows is mostly those rows' own answers: dividing by it would wash the labels out.
LEAST_BATCH_ROWS = 16
LEAST_PRIOR = 1e-6
UNFINISHED = 1e-6


class LabelRecipe:
    default_max_tokens = 1  # not read: with choices the engine's limit is the longest choice

    def __init__(self, spec: Label, tokenizer: Tokenizer, prepared: Mapping[str, object]) -> None:
        self._spec = spec
        self._head = few_shot(spec, SYSTEM, lambda example: example.labels[0])
        self.choices = label_tokens(spec.labels, tokenizer)
        prior = prepared.get("label_prior")
        self._log_prior = [math.log(max(p, LEAST_PRIOR)) for p in prior] if isinstance(prior, list) else None
        self.sample_rows = BATCH_ROWS if spec.calibration == "batch" else 0
        self.choice_margin = self._margin()

    def _margin(self) -> float | None:
        """None where every label's probability is wanted: in the output, or for the prior. Otherwise a label that is
        left unfinished is less than UNFINISHED times as probable as the best one, whatever the prior makes of both."""
        if self._spec.label_probs or (self._spec.calibration != "none" and self._log_prior is None):
            return None
        spread = max(self._log_prior) - min(self._log_prior) if self._log_prior is not None else 0.0
        return spread - math.log(UNFINISHED)

    def text(self, row: Row) -> str:
        return text_of(row, self._spec.column)

    def beginning(self, row: Row, text: str) -> str:
        return text

    def messages(self, row: Row, text: str) -> list[Message]:
        return [*self._head, ask(text)]

    def read(self, answer: Answer) -> dict[str, object]:
        scores = answer.choice_logprobs
        assert scores is not None, "a request with choices is answered with their log-probabilities"
        prior = self._log_prior or [0.0] * len(scores)
        probabilities = softmax([score - bias for score, bias in zip(scores, prior, strict=True)])
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        abstained = probabilities[best] < (self._spec.abstain_below or 0.0)
        label = None if abstained else self._spec.labels[best]
        values = {"output": label, "label": label, "confidence": probabilities[best], "abstained": abstained}
        return {**values, **by_label(self._spec, probabilities)}

    def prepare(self, sample: Sequence[str], score: Score) -> dict[str, object]:
        """The prior over the labels: {"label_prior": probabilities, "label_prior_of": number of texts}, or {}."""
        if self._spec.calibration == "none":
            return {}
        answers = [log_softmax(scores) for scores in score(prior_texts(self._spec, sample))]
        prior = softmax([sum(column) / len(answers) for column in zip(*answers, strict=True)])
        return {"label_prior": prior, "label_prior_of": len(answers)}


def few_shot(spec: Label, system: str, answer: Callable[[Example], str]) -> tuple[Message, ...]:
    """What stands before a row's own text: the system text, and the examples as turns."""
    descriptions = "".join(
        DESCRIPTION.format(label=label, description=text.rstrip(". ")) for label, text in spec.descriptions.items()
    )
    words = spec.instruction or system.format(labels=", ".join(spec.labels), descriptions=descriptions)
    turns: list[Message] = [{"role": "system", "content": words}]
    for example in spec.examples:
        turns += [ask(example.text), {"role": "assistant", "content": answer(example)}]
    return tuple(turns)


def ask(text: str) -> Message:
    return {"role": "user", "content": TEXT.format(text=text)}


def prior_texts(spec: Label, sample: Sequence[str]) -> Sequence[str]:
    """The texts whose mean answer is the prior."""
    return sample if spec.calibration == "batch" and len(sample) >= LEAST_BATCH_ROWS else CONTENT_FREE


def by_label(spec: Label, probabilities: Sequence[float]) -> dict[str, object]:
    """The cell of the column `label_probs`, where the job asks for it."""
    if not spec.label_probs:
        return {}
    pairs = zip(spec.labels, probabilities, strict=True)
    return {"label_probs": [{"label": label, "prob": probability} for label, probability in pairs]}


def label_tokens(labels: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Each label as the tokens of an answer. Raises InvalidJob for labels the tokenizer cannot tell apart.

    A label that begins another one ("neutral", "neutral-ish") ends with the end-of-sequence token, or it would win by
    being shorter; the others need none, which saves a position.
    """
    tokens = [tuple(tokenizer.encode(label)) for label in labels]
    by_tokens: dict[tuple[int, ...], str] = {}
    for label, ids in zip(labels, tokens, strict=True):
        if not ids:
            raise InvalidJob("recipe.labels", f"the label {label!r} has no tokens")
        if ids in by_tokens:
            raise InvalidJob("recipe.labels", f"{label!r} and {by_tokens[ids]!r} are the same to the tokenizer")
        by_tokens[ids] = label
    starts = {ids[:n] for ids in tokens for n in range(1, len(ids))}
    if starts.isdisjoint(tokens):
        return tuple(tokens)
    end = end_of_answer(tokenizer)
    return tuple((*ids, end) if ids in starts else ids for ids in tokens)


def end_of_answer(tokenizer: Tokenizer) -> int:
    """The end-of-sequence token that closes an answer of this model: what its chat template puts behind one."""
    if tokenizer.has_chat_template:
        turns = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": "c"},
        ]
        ends = [token for token in tokenizer.encode_chat(turns) if token in tokenizer.eos_token_ids]
        if ends:
            return ends[-1]
    return min(tokenizer.eos_token_ids)


def log_softmax(scores: Sequence[float]) -> list[float]:
    most = max(scores)
    total = most + math.log(sum(math.exp(score - most) for score in scores))
    return [score - total for score in scores]


def softmax(scores: Sequence[float]) -> list[float]:
    return [math.exp(score) for score in log_softmax(scores)]
