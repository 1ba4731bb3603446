"""label with `multi_label`: one text -> every label of a closed list that applies.

Each label is asked about by itself. The engine computes the exact log-probabilities of the answers "LABEL: yes" and
"LABEL: no"; what they have in common, the label, cancels out, and

    log-odds = log P("LABEL: yes") - log P("LABEL: no")

is the model's opinion whether the label applies, whatever it thinks of the other labels. All labels of a row are one
request: their answers are one tree of tokens behind one prompt. Calibration subtracts the mean log-odds of the label
over content-free texts (contextual) or a sample of the job's rows (batch), so that

    probability = 1 / (1 + exp(-(log-odds - mean log-odds)))

is 0.5 where the label is as likely as it is for those. A label applies where this reaches the threshold.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from db.specs import Example, Label
from engine.tokenizer import Tokenizer
from worker.recipes.label import BATCH_ROWS, ask, by_label, few_shot, label_tokens, prior_texts
from worker.recipes.recipe import Answer, Message, Row, Score, text_of

SYSTEM = (
    "Labels: {labels}.{descriptions} Read the text and say of a label whether it applies: answer with the label, "
    "a colon, and yes or no."
)
VERDICT = "{label}: {verdict}"
THRESHOLD = 0.5


class MultiLabelRecipe:
    choice_margin = None  # a label's two answers are weighed against each other, however improbable both are
    default_max_tokens = 1  # not read: with choices the engine's limit is the longest choice

    def __init__(self, spec: Label, tokenizer: Tokenizer, prepared: Mapping[str, object]) -> None:
        self._spec = spec
        self._head = few_shot(spec, SYSTEM, self._verdicts)
        answers = [VERDICT.format(label=label, verdict=v) for label in spec.labels for v in ("yes", "no")]
        self.choices = label_tokens(answers, tokenizer)
        mean = prepared.get("label_log_odds")
        self._mean = mean if isinstance(mean, list) else [0.0] * len(spec.labels)
        self.sample_rows = BATCH_ROWS if spec.calibration == "batch" else 0

    def _verdicts(self, example: Example) -> str:
        return "\n".join(
            VERDICT.format(label=label, verdict="yes" if label in example.labels else "no")
            for label in self._spec.labels
        )

    def text(self, row: Row) -> str:
        return text_of(row, self._spec.column)

    def beginning(self, row: Row, text: str) -> str:
        return text

    def messages(self, row: Row, text: str) -> list[Message]:
        return [*self._head, ask(text)]

    def read(self, answer: Answer) -> dict[str, object]:
        assert answer.choice_logprobs is not None, "a request with choices is answered with their log-probabilities"
        odds = log_odds(answer.choice_logprobs)
        probabilities = [sigmoid(own - mean) for own, mean in zip(odds, self._mean, strict=True)]
        threshold = THRESHOLD if self._spec.threshold is None else self._spec.threshold
        labels = [label for label, p in zip(self._spec.labels, probabilities, strict=True) if p >= threshold]
        output = json.dumps(labels, ensure_ascii=False)
        return {"output": output, "labels": labels, **by_label(self._spec, probabilities)}

    def prepare(self, sample: Sequence[str], score: Score) -> dict[str, object]:
        """The mean log-odds by label: {"label_log_odds": numbers, "label_prior_of": number of texts}, or {}."""
        if self._spec.calibration == "none":
            return {}
        odds = [log_odds(scores) for scores in score(prior_texts(self._spec, sample))]
        return {
            "label_log_odds": [sum(column) / len(odds) for column in zip(*odds, strict=True)],
            "label_prior_of": len(odds),
        }


def log_odds(scores: Sequence[float]) -> list[float]:
    """From the log-probabilities of yes and no, label after label."""
    return [yes - no for yes, no in zip(scores[::2], scores[1::2], strict=True)]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
