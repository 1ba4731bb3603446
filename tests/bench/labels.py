"""Labels with confidence: how fast, how exact, how good (SmolLM2-135M, this machine).

    python -m tests.bench.labels [--rows N] [--repetitions N] [--plot docs/label_reliability.svg]

Every label is scored as a request by itself as well, for some rows by an engine without a prefix cache. Exits 1 unless
all labels are the same, and scoring gives at least 3 times the rows per second of writing the label token by token.
Prints the speeds last.
"""

from __future__ import annotations

import argparse
import sys
from importlib.resources import as_file, files
from pathlib import Path

from db import model_files
from db.settings import Settings
from engine import EngineConfig, LoadedModel, load
from tests.bench.label_quality import DATA, Quality, judge, plot
from tests.bench.label_speed import agree, measure

LEAST_RATIO = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256, help="rows of w1")
    parser.add_argument("--unshared", type=int, default=16, help="of them, rows also scored without a prefix cache")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--most", type=int, default=None, help="rows of each labelled set; all of them otherwise")
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "int8"])
    parser.add_argument("--plot", type=Path, default=None, help="where the reliability plot goes")
    options = parser.parse_args()
    loaded = model(options.dtype, sharing=True)
    qualities = quality(loaded, options.most)
    if options.plot is not None:
        plot(qualities, options.plot)
    agreements = (
        agree(loaded, loaded, options.rows),
        agree(loaded, model(options.dtype, sharing=False), min(options.rows, options.unshared)),
    )
    for agreement in agreements:
        print(
            f"exhaustive scoring: {agreement.equal} of {agreement.rows} labels equal, "
            f"log-probabilities within {agreement.largest_difference:.1e}"
        )
    equal = all(agreement.equal == agreement.rows for agreement in agreements)
    speeds = measure(loaded, options.rows, options.repetitions)
    print(f"scored and written labels are the same in {speeds.same_as_written:.1%} of the rows")
    print(f"w1 written freely, up to 8 tokens: {speeds.free}; its prompts alone: {speeds.prompts}")
    print(f"the most that any way to label can gain over writing here: {speeds.ceiling:.2f} times")
    print(
        f"w1 scored: {speeds.scored}; written under a choice format: {speeds.written}; "
        f"{speeds.ratio:.2f} times as fast (wanted: {LEAST_RATIO:g})"
    )
    return 0 if equal and speeds.ratio >= LEAST_RATIO else 1


def model(dtype: str, *, sharing: bool) -> LoadedModel:
    config = EngineConfig(dtype=dtype, prefix_caching=sharing, cache_bytes=1 << 29)
    return load(model_files.find("smollm2-135m", Settings()), config)


def quality(loaded: LoadedModel, most: int | None) -> list[Quality]:
    with as_file(files("api") / "demo_data") as folder:
        sentiment = judge("sentiment", folder / "sentiment_tweets_balanced.parquet", loaded, most=most)
    found = [sentiment, judge("intent", DATA / "intent_693.parquet", loaded, most=most)]
    for each in found:
        scores = each.scores
        print(
            f"{each.name}: {len(each.right):,} rows, {len(scores.labels)} labels, accuracy {scores.accuracy:.3f} "
            f"(most frequent label {scores.majority:.3f}), mean confidence {scores.confidence:.3f}, "
            f"expected calibration error {scores.calibration_error:.3f}"
        )
    return found


if __name__ == "__main__":
    sys.exit(main())
