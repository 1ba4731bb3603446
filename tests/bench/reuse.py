"""Rows that must have the same answer are computed once: how much that saves, and that it changes nothing.

    python -m tests.bench.reuse [--dtype int8] [--rows 320]

A job whose rows are two fifths duplicates runs with and without `reuse` in the service that `nightmill up` starts, on
fresh prompts each time; then the same job again, as a nightly rerun has it. Exits 1 when the outputs of any two differ,
the job with reuse is less than 1.5 times as fast, or the rerun computes a token. Prints the gain last.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from api.client import Client
from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, load
from tests.bench.service import question, seconds, service, texts

LEAST_GAIN = 1.5
TOKENS = 64  # of an answer. With short ones a duplicate costs little anyway: its prompt is in the prefix cache
SHARE = 0.4  # of the rows that are there already


def run(client: Client, source: Path, salt: int, *, reuse: bool) -> tuple[float, dict[str, Any], list[str]]:
    """Seconds from the first shard's begin to the end, the manifest's counts of the engine, and the texts."""
    job = client.submit(
        {
            "input": client.upload(source).uri,
            "recipe": {"kind": "generate", "template": "{{ text }}", "system": question(salt)},
            "sampling": {"max_tokens": TOKENS, "ignore_eos": True},
            "reuse": reuse,
        }
    )
    job = client.wait(job.id)
    assert job.status == "completed", f"the job ended as {job.status}: {job.error}"
    outputs = [str(text) for batch in client.batches(job.id) for text in batch.column("output").to_pylist()]
    manifest = json.loads((Path(unquote(urlsplit(job.output).path)) / "_manifest.json").read_text())
    return seconds(job)[1], manifest["engine"], outputs


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--rows", type=int, default=320)
    options = parser.parse_args()
    path = find("smollm2-135m", Settings())
    own = texts(load(path, EngineConfig(dtype=options.dtype, cache_bytes=64 << 20)), options.rows)
    unique = own[: round(options.rows * (1 - SHARE))]
    rows = [unique[i * 7919 % len(unique)] if i >= len(unique) else unique[i] for i in range(options.rows)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.parquet"
        pq.write_table(pa.table({"text": rows}), source)
        with service(Path(folder) / "home", path, options.dtype, None) as (client, _):
            run(client, source, 100, reuse=False)  # warm
            # The salt is part of every prompt's beginning: no run finds another one's blocks in the cache.
            without, _, plain = run(client, source, 101, reuse=False)
            once, counts, shared = run(client, source, 101, reuse=True)
            fresh, fresh_counts, _ = run(client, source, 102, reuse=True)
            again, rerun_counts, rerun = run(client, source, 102, reuse=True)
            other, _, other_plain = run(client, source, 102, reuse=False)
    assert plain == shared, "reuse changed an output"
    assert other_plain == rerun, "a rerun changed an output"
    print(
        f"without reuse {without:.1f} s, with {once:.1f} s ({counts['rows_reused']:.0f} of {options.rows} rows reused)"
    )
    print(f"fresh prompts, with reuse: {fresh:.1f} s ({fresh_counts['rows_reused']:.0f} rows reused)")
    computed = rerun_counts["computed_tokens"]
    print(f"the rerun: {again:.1f} s, {rerun_counts['rows_reused']:.0f} rows reused, {computed:.0f} tokens computed")
    print(f"without reuse once more: {other:.1f} s")
    gain = without / fresh
    print(f"a job with {SHARE:.0%} duplicates: {gain:.2f} times as fast; the rerun computed {computed:.0f} tokens")
    return int(gain < LEAST_GAIN or computed > 0)


if __name__ == "__main__":
    sys.exit(main())
