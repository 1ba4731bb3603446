"""Labels against people's: accuracy, expected calibration error and a reliability plot over two sets.

The rows go the way of a job: recipe, chat template, calibration by a sample of the job's own rows, engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from api.cli.scores import LabelScores, score_labels
from db.specs import JobSpec
from engine import LoadedModel
from worker.recipes import build
from worker.recipes.label import BATCH_ROWS
from worker.rows import RowMaker
from worker.samples import picks

DATA = Path(__file__).parent / "data"
NUM_BINS = 10
BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Quality:
    name: str
    scores: LabelScores
    confidences: list[float]
    right: list[bool]


def judge(name: str, path: Path, loaded: LoadedModel, *, most: int | None = None) -> Quality:
    """Label a file with the columns text and label, and compare."""
    rows = pq.read_table(path, columns=["text", "label"]).to_pylist()
    # Evenly spread, as the sets are sorted by nothing that is known.
    rows = rows if most is None or len(rows) <= most else [rows[i * len(rows) // most] for i in range(most)]
    labels = sorted({row["label"] for row in rows})
    spec = JobSpec.model_validate({"input": str(path), "model": "-", "recipe": {"kind": "label", "labels": labels}})
    prepared = _prepared(spec, rows, loaded)
    recipe = build(spec.recipe, loaded.tokenizer, max_chars=BYTES, prepared=prepared)
    maker = _maker(spec, recipe, loaded)
    requests = [maker.asking(index, row, maker.text(row)).requests[0] for index, row in enumerate(rows)]
    results = {output.id: maker.result(output).values for output in loaded.engine.generate(requests)}
    answers = [str(results[index]["label"]) for index in range(len(rows))]
    confidences = [_number(results[index]["confidence"]) for index in range(len(rows))]
    truth = [row["label"] for row in rows]
    right = [true == answer for true, answer in zip(truth, answers, strict=True)]
    return Quality(name, score_labels(truth, answers, confidences), confidences, right)


def _prepared(spec: JobSpec, rows: Sequence[dict[str, Any]], loaded: LoadedModel) -> dict[str, object]:
    """The label prior as split learns it: over rows taken evenly."""
    recipe = build(spec.recipe, loaded.tokenizer, max_chars=BYTES)
    maker = _maker(spec, recipe, loaded)
    _, wanted = picks(len(rows), min(BATCH_ROWS, len(rows)))
    texts = [maker.text(rows[index]) for index in sorted(wanted)]

    def score(texts: Sequence[str]) -> list[tuple[float, ...]]:
        requests = [maker.ask(index, maker.prompt({}, text).tokens) for index, text in enumerate(texts)]
        found = {output.id: output.choice_logprobs for output in loaded.engine.generate(requests)}
        return [scores for index in range(len(texts)) if (scores := found[index]) is not None]

    return recipe.prepare(texts, score)


def _maker(spec: JobSpec, recipe: Any, loaded: LoadedModel) -> RowMaker:
    length = loaded.engine.max_model_len
    return RowMaker(spec, recipe, loaded.tokenizer, max_model_len=length, max_prompt_bytes=BYTES, group="bench")


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


def bins(quality: Quality) -> list[tuple[float, float, int]]:
    """Mean confidence, accuracy and rows of each bin of confidences that has any."""
    found: dict[int, list[tuple[float, bool]]] = {}
    for confidence, right in zip(quality.confidences, quality.right, strict=True):
        found.setdefault(min(NUM_BINS - 1, int(confidence * NUM_BINS)), []).append((confidence, right))
    return [
        (sum(c for c, _ in rows) / len(rows), sum(r for _, r in rows) / len(rows), len(rows))
        for _, rows in sorted(found.items())
    ]


def plot(qualities: Sequence[Quality], path: Path) -> None:
    """A reliability diagram per set: on the diagonal, a confidence of 0.8 is right in 8 of 10 rows."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": "nightmill", "svg.fonttype": "none"})  # the same numbers, the same bytes
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(qualities), figsize=(4.5 * len(qualities), 4.2), layout="constrained")
    for axis, quality in zip(axes, qualities, strict=True):
        points = bins(quality)
        axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
        axis.plot([c for c, _, _ in points], [a for _, a, _ in points], marker="o", color="tab:blue")
        for confidence, accuracy, rows in points:
            axis.annotate(f"{rows}", (confidence, accuracy), textcoords="offset points", xytext=(6, -10), fontsize=8)
        scores = quality.scores
        axis.set_title(
            f"{quality.name}: accuracy {scores.accuracy:.3f}, calibration error {scores.calibration_error:.3f}",
            fontsize=9,
        )
        axis.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy (rows beside each point)")
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
