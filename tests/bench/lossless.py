"""Speculation changes nothing: greedy outputs token for token, sampled ones in distribution.

    python -m tests.bench.lossless [--dtype auto] [--rows 64] [--draws 100000] [--draft]

Greedy: w1, w2, w3 and the extraction set (a schema per row) on the demo model, with all drafters on and verification
made to look free, so that as much as possible is drafted, against all off; --draft adds the model itself as draft
model. Sampled: outputs of a small model under each drafter, compared with the exact distribution by chi-square. Exits 1
on any difference, or when a deviation exceeds 3.5 standard deviations. Prints the counts last.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq

from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, Format, LoadedModel, Output, Request, SamplingParams, load
from tests.bench.speculation import FREE, requests
from tests.bench.workloads import load as load_workload
from tests.engine.drafter.test_distributions import check_free, check_structured

EXTRACTION = Path(__file__).parent / "data/extract_bfcl.parquet"
MAX_TOKENS = 96


def extraction(model: LoadedModel, rows: int) -> list[Request]:
    table = pq.read_table(EXTRACTION, columns=["text", "schema"]).slice(0, rows).to_pylist()
    made = []
    for number, row in enumerate(table):
        messages = [{"role": "user", "content": f"Extract the arguments as JSON.\n\n{row['text']}"}]
        prompt = tuple(model.tokenizer.encode_chat(messages))
        format = Format("json_schema", row["schema"], lenient=True)  # type: ignore[arg-type]
        made.append(Request(number, prompt, SamplingParams(max_tokens=MAX_TOKENS), format=format, group="extraction"))
    return made


def outputs(model: LoadedModel, wanted: list[Request]) -> dict[object, Output]:
    return {output.id: output for output in model.engine.generate(wanted)}


def compare(plain: LoadedModel, guessing: LoadedModel, rows: int) -> tuple[int, int]:
    """Rows compared and rows that differ."""
    wanted = {name: requests(load_workload(name)[:rows], name) for name in ("w1", "w2", "w3")}
    wanted["extraction"] = extraction(plain, rows)
    compared = different = 0
    for name, each in wanted.items():
        before = guessing.engine.stats()
        alone, guessed = outputs(plain, each), outputs(guessing, each)
        wrong = [key for key, output in alone.items() if output.tokens != guessed[key].tokens]
        accepted = sum(drafter.accepted for drafter in guessing.engine.stats().drafts) - sum(
            drafter.accepted for drafter in before.drafts
        )
        tokens = sum(output.num_output_tokens for output in alone.values())
        print(f"{name}: {len(each)} rows, {len(wrong)} differ; {accepted} of {tokens} tokens were drafted and accepted")
        compared += len(each)
        different += len(wrong)
    return compared, different


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--rows", type=int, default=64, help="of each workload; w1 has 256, the extraction set 653")
    parser.add_argument("--draws", type=int, default=100_000)
    parser.add_argument("--draft", action="store_true")
    options = parser.parse_args()
    path = find("smollm2-135m", Settings())
    plain = load(path, EngineConfig(dtype=options.dtype, speculation=False))
    guessing = load(path, EngineConfig(dtype=options.dtype), draft=path if options.draft else None, costs=FREE)
    compared, different = compare(plain, guessing, options.rows)
    for drafter in guessing.engine.stats().drafts:
        print(json.dumps({"drafter": drafter.name, "proposed": drafter.proposed, "accepted": drafter.accepted}))
    failed = 0
    for name in ("prompt", "history", "model", "grammar"):
        check = check_structured if name == "grammar" else lambda *values: check_free(values[0], "plain", *values[1:])
        try:
            check(name, None, options.draws)
            print(f"{name}: {options.draws} draws agree with the exact distribution")
        except AssertionError as error:
            failed += 1
            print(f"{name}: {error}")
    print(f"{compared} greedy outputs compared, {different} differ; 4 drafters sampled, {failed} off")
    return int(different > 0 or failed > 0)


if __name__ == "__main__":
    sys.exit(main())
