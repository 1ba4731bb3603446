"""Map-reduce summaries of documents at least five times the context window: is every chunk accounted for?

    python -m tests.bench.long_rows [--dtype int8] [--documents 8] [--context 512]

Papers' texts (api/demo_data) are joined until a document has five times the tokens of the model's context. A job with
`on_long` = map_reduce runs in the service that `nightmill up` starts; each document is also cut here as the worker cuts
it. Exits 1 unless every row succeeded with the number of chunks that the document has, the chunks' tokens one after the
other are the document's, each chunk's prompt is in the row's count of tokens, and none was cut away. ROUGE-L against
the papers' own summaries is printed beside truncation's for information: it says something about the model, which is
small. Prints what was accounted for last.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from api.cli.scores import rouge
from api.client import Client
from db.model_files import find
from db.settings import Settings
from db.specs import JobSpec
from engine.tokenizer import Tokenizer, load_tokenizer
from tests.bench.service import service
from worker.map_reduce import MapReduceRowMaker
from worker.recipes import build

PAPERS = Path(__file__).parents[2] / "api" / "demo_data" / "summ_aclsum_ccby.parquet"
WINDOWS = 5  # of the model's context, the least length of a document
WORDS = 40  # of a summary
BYTES = 8 << 20
MARK = "@"


def documents(tokenizer: Tokenizer, number: int, context: int) -> list[dict[str, str]]:
    """Texts of papers one after the other, with their summaries as the reference."""
    found: list[dict[str, str]] = []
    texts: list[str] = []
    references: list[str] = []
    for paper in pq.read_table(PAPERS, columns=["text", "summary"]).to_pylist():
        texts.append(paper["text"])
        references.append(paper["summary"])
        if tokenizer.count("\n\n".join(texts)) >= WINDOWS * context:
            found.append({"text": "\n\n".join(texts), "reference": " ".join(references)})
            texts, references = [], []
        if len(found) == number:
            return found
    raise SystemExit(f"the papers make {len(found)} documents of {WINDOWS * context} tokens, not {number}")


def run(client: Client, source: Path, on_long: str) -> list[dict[str, Any]]:
    job = client.submit(
        {
            "input": client.upload(source).uri,
            "recipe": {"kind": "summarize", "max_words": WORDS},
            "on_long": on_long,
            "reuse": False,
        }
    )
    job = client.wait(job.id)
    print(f"{on_long}: {job.status}")
    return [row for batch in client.batches(job.id) for row in batch.to_pylist()]


def prompts_of(tokenizer: Tokenizer, text: str, context: int) -> list[tuple[int, ...]]:
    """The prompts of a document's chunks, as the worker makes them."""
    recipe = {"kind": "summarize", "max_words": WORDS}
    spec = JobSpec.model_validate({"input": "-", "model": "-", "recipe": recipe, "on_long": "map_reduce"})
    built = build(spec.recipe, tokenizer, max_chars=BYTES)
    maker = MapReduceRowMaker(spec, built, tokenizer, max_model_len=context, max_prompt_bytes=BYTES, group="bench")
    return [request.prompt for request in maker.asking(0, {"text": text}, text).requests]


def missing(tokenizer: Tokenizer, row: dict[str, Any], context: int) -> list[str]:
    """What a row does not account for."""
    if row["error"] is not None:
        return [f"failed: {row['error']}"]
    prompts, ids = prompts_of(tokenizer, row["text"], context), tokenizer.encode(row["text"])
    (around,) = prompts_of(tokenizer, MARK, context)
    before, _, after = tokenizer.decode(around).partition(MARK)
    chunks = [tokenizer.decode(prompt).removeprefix(before).removesuffix(after) for prompt in prompts]
    read = sum(map(len, prompts))
    faults = {
        f"has {len(ids)} tokens": len(ids) < WINDOWS * context,
        f"says {row['chunks']} chunks of {len(chunks)}": row["chunks"] != len(chunks),
        f"read {row['prompt_tokens']} tokens, its chunks have {read}": row["prompt_tokens"] <= read,  # summaries, too
        f"lost {row['truncated_tokens']} tokens": row["truncated_tokens"] != 0,
        "is not what its chunks say": "".join(chunks) != row["text"],
        "has other tokens than its chunks": [token for chunk in chunks for token in tokenizer.encode(chunk)] != ids,
    }
    return [fault for fault, found in faults.items() if found]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--documents", type=int, default=8)
    parser.add_argument("--context", type=int, default=512)
    options = parser.parse_args()
    path = find("smollm2-135m", Settings())
    tokenizer = load_tokenizer(path)
    rows = documents(tokenizer, options.documents, options.context)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
        window = {"NIGHTMILL_ENGINE_MAX_MODEL_LEN": str(options.context)}
        with service(Path(folder) / "home", path, options.dtype, None, window) as (client, _):
            results = run(client, source, "map_reduce")
            truncated = run(client, source, "truncate_middle")
    faults = [
        f"row {i}: {fault}" for i, row in enumerate(results) for fault in missing(tokenizer, row, options.context)
    ]
    faults += [] if len(results) == len(rows) else [f"{len(results)} rows of {len(rows)}"]
    for name, made in (("map_reduce", results), ("truncate_middle", truncated)):
        scores = [rouge(row["output"] or "", row["reference"])["ROUGE-L"] for row in made]
        print(f"{name}: ROUGE-L {sum(scores) / len(scores):.3f}")
    print("\n".join(faults) or "nothing is missing")
    tokens = sum(tokenizer.count(row["text"]) for row in rows)
    chunks = [row["chunks"] or 0 for row in results]
    whole = len(rows) - len({fault.partition(":")[0] for fault in faults})
    print(
        f"{whole} of {len(rows)} documents of {tokens // len(rows)} tokens on average (context {options.context}) "
        f"accounted for, {sum(chunks)} chunks ({min(chunks)} to {max(chunks)} a row)"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
