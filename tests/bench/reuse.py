"""Rows that must have the same answer are computed once: how much that saves, and that it changes nothing.

    python -m tests.bench.reuse [--dtype int8] [--rows 320] [--tokens 64 256]

A job whose rows are two fifths duplicates runs with and without `reuse` in the service that `nightmill up` starts, on
fresh prompts each time; then the same job again, as a nightly rerun has it. Once for each length of the answers: what
a duplicate costs without `reuse` is its answer, as its prompt is in the prefix cache anyway, so short answers leave
less to save. Exits 1 when the outputs of any two differ, the job with the longest answers is less than 1.5 times as
fast with reuse, or a rerun computes a token. Prints that gain last.
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
TOKENS = (64, 256)  # of an answer
SHARE = 0.4  # of the rows that are there already


def run(
    client: Client, source: Path, salt: int, tokens: int, *, reuse: bool
) -> tuple[float, dict[str, Any], list[str]]:
    """Seconds from the first shard's begin to the end, the manifest's counts of the engine, and the texts."""
    job = client.submit(
        {
            "input": client.upload(source).uri,
            "recipe": {"kind": "generate", "template": "{{ text }}", "system": question(salt)},
            "sampling": {"max_tokens": tokens, "ignore_eos": True},
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
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS), help="Of the answers.")
    options = parser.parse_args()
    path = find("smollm2-135m", Settings())
    own = texts(load(path, EngineConfig(dtype=options.dtype, cache_bytes=64 << 20)), options.rows)
    unique = own[: round(options.rows * (1 - SHARE))]
    rows = [unique[i * 7919 % len(unique)] if i >= len(unique) else unique[i] for i in range(options.rows)]
    gain, computed = 0.0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.parquet"
        pq.write_table(pa.table({"text": rows}), source)
        with service(Path(folder) / "home", path, options.dtype, None) as (client, _):
            run(client, source, 100, min(options.tokens), reuse=False)  # warm
            for tokens in sorted(options.tokens):
                gain, again = compare(client, source, tokens)
                computed += again
    return int(gain < LEAST_GAIN or computed > 0)


def compare(client: Client, source: Path, tokens: int) -> tuple[float, float]:
    """How many times as fast with reuse, and the tokens that the rerun computed."""
    # The salt is part of every prompt's beginning: no run finds another one's blocks in the cache.
    salt = 10 * tokens
    without, _, plain = run(client, source, salt + 1, tokens, reuse=False)
    once, counts, shared = run(client, source, salt + 1, tokens, reuse=True)
    fresh, fresh_counts, _ = run(client, source, salt + 2, tokens, reuse=True)
    again, rerun_counts, rerun = run(client, source, salt + 2, tokens, reuse=True)
    other, _, other_plain = run(client, source, salt + 2, tokens, reuse=False)
    assert plain == shared, "reuse changed an output"
    assert other_plain == rerun, "a rerun changed an output"
    reused, fresh_reused = counts["rows_reused"], fresh_counts["rows_reused"]
    computed, gain = rerun_counts["computed_tokens"], without / fresh
    print(f"answers of {tokens} tokens: without reuse {without:.1f} s; prompts that another job had: {once:.1f} s")
    print(f"  ({reused:.0f} of {len(plain)} rows reused); fresh prompts: {fresh:.1f} s ({fresh_reused:.0f} reused)")
    print(f"  the rerun: {again:.1f} s, {rerun_counts['rows_reused']:.0f} rows reused; without reuse: {other:.1f} s")
    print(
        f"  a job with {SHARE:.0%} duplicates: {gain:.2f} times as fast with answers of {tokens} tokens; "
        f"the rerun computed {computed:.0f} tokens",
        flush=True,
    )
    return gain, computed


if __name__ == "__main__":
    sys.exit(main())
