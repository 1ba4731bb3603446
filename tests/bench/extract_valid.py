"""Extraction under real schemas with a real model: is everything that finishes valid? (SmolLM2-135M, this machine)

    python -m tests.bench.extract_valid [--rows N] [--max-tokens N]

653 rows of the Berkeley function-calling set, each with a JSON Schema of its own (549 different). They go the way of a
job with a schema per row: recipe, chat template, grammar, engine, validation. Whatever ended by itself is validated
once more here, by jsonschema as it comes, and must be valid without exception. Prints the share last; else exits 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq

from db import model_files
from db.settings import Settings
from db.specs import JobSpec
from engine import EngineConfig, FinishReason, LoadedModel, Output, Request, load
from worker.recipes import RowRefused, build
from worker.rows import RowMaker, refused

DATA = Path(__file__).parent / "data" / "extract_bfcl.parquet"
BYTES = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=None, help="the first rows only")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--forced", default="verify", choices=["verify", "commit"])
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16", "int8"])
    options = parser.parse_args()
    loaded = load(model_files.find("smollm2-135m", Settings()), EngineConfig(dtype=options.dtype, cache_bytes=1 << 29))
    rows: list[dict[str, Any]] = pq.read_table(DATA).to_pylist()[: options.rows]
    maker = row_maker(loaded, options.max_tokens, options.forced)
    before = time.perf_counter()
    ends, wrong = run(rows, maker, loaded)
    seconds = time.perf_counter() - before
    finished = ends["valid"] + len(wrong)
    for line in wrong[:10]:
        print(line)
    schemas = len({row["schema"] for row in rows})
    listed = ", ".join(f"{number} {end}" for end, number in ends.most_common())
    print(f"{len(rows)} rows, {schemas} schemas, {seconds:.0f} s: {listed}")
    print(drafts(loaded))
    share = ends["valid"] / finished if finished else 0.0
    print(f"{ends['valid']} of {finished} finished outputs valid under their schemas: {share:.2%}")
    return 0 if finished and not wrong and not ends["engine_error"] else 1


def row_maker(loaded: LoadedModel, max_tokens: int, forced: str) -> RowMaker:
    spec = JobSpec.model_validate(
        {
            "input": str(DATA),
            "model": "-",
            "recipe": {"kind": "extract", "schema_column": "schema", "forced": forced},
            "sampling": {"max_tokens": max_tokens},
        }
    )
    recipe = build(spec.recipe, loaded.tokenizer, max_chars=BYTES)
    length = loaded.engine.max_model_len
    return RowMaker(spec, recipe, loaded.tokenizer, max_model_len=length, max_prompt_bytes=BYTES, group="bench")


def run(rows: Sequence[dict[str, Any]], maker: RowMaker, loaded: LoadedModel) -> tuple[Counter[str], list[str]]:
    """How the rows ended, and what was finished but not valid."""
    ends: Counter[str] = Counter()
    requests: dict[object, Request] = {}
    for index, row in enumerate(rows):
        try:
            (requests[index],) = maker.asking(index, row, maker.text(row)).requests
        except RowRefused as error:
            ends[(refused(error).error or ("?", ""))[0]] += 1
    wrong = []
    for output in loaded.engine.generate(requests.values()):
        row, request = rows[int(str(output.id))], requests[output.id]
        result = maker.result(output, 0, request.format)
        if output.finish_reason is FinishReason.STOP:
            problem = independent_problem(row["schema"], loaded.tokenizer.decode(output.tokens))
            if problem is None and result.error is None:
                ends["valid"] += 1
            else:
                wrong.append(f"{row['id']}: {problem or result.error}: {_shown(output, loaded)}")
        else:
            ends[result.error[0] if result.error else "?"] += 1
    return ends, wrong


def independent_problem(schema: str, text: str) -> str | None:
    try:
        jsonschema.validate(json.loads(text), json.loads(schema), cls=jsonschema.Draft202012Validator)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None


def drafts(loaded: LoadedModel) -> str:
    stats = loaded.engine.stats()
    drafters = (f"{each.name} {each.accepted} of {each.proposed}" for each in stats.drafts)
    return (
        f"{stats.output_tokens} tokens in {stats.steps} steps; drafts accepted: {', '.join(drafters) or 'none'}; "
        f"committed {stats.forced_tokens}; formats took {stats.grammar_seconds / max(stats.step_seconds, 1e-9):.1%} "
        "of the time of the steps"
    )


def _shown(output: Output, loaded: LoadedModel) -> str:
    return loaded.tokenizer.decode(output.tokens)[:200]


if __name__ == "__main__":
    sys.exit(main())
