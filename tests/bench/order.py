"""Rows that begin alike one after the other, and rows in the input's order: how much faster, with the same outputs.

    python -m tests.bench.order [--dtype int8] [--documents 40] [--repetitions 1] [--threads N] [--clock wall|cpu]

The job: six questions about each of some documents (passages of 130 to 600 tokens), in a table whose rows are shuffled,
as a table of questions is that was not made for this. Answers end where the model ends them, after 1 to 96 tokens. The
cache holds about a third of the documents. Beside it two jobs that order
cannot help: the same rows sorted by document already, and each document once. Every job runs in the service that
`nightmill up` starts, without reuse, four times a repetition: with `reorder` and without it on prompts A and B (another
system prompt), in the order A with, B without, A without, B with. So both do the same work, whose answers must be
equal, and no run finds its documents in the cache, where the one before it has left others.

Prints the share of prompt tokens that came from the cache and the ratios of rows per second; the job's comes last.
Exits 1 when it is below 1.2, when one of the others is below 0.98, or when an output differs. On a busy machine,
`--threads 1 --clock cpu` compares the processors' time that all of the service's processes took.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from api.client import Client
from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, load
from tests.bench.service import cpu_seconds, seconds, service
from tests.bench.workloads import load as load_workload

LEAST_RATIO, LEAST_OTHERS = 1.2, 0.98
MAX_TOKENS = 96
INSTRUCTION = 30  # tokens of w2's prompts that are the same in all
CACHE_BYTES_OF_DOCUMENT = 2 << 20  # of the cache for each document: about 170 tokens, where one has 400
QUESTIONS = (
    "Summarize this in three sentences.",
    "Is this about errors? Answer yes or no.",
    "Write a title of at most six words.",
    "Explain this to somebody who has never written a program.",
    "Which word describes the tone best? Answer with one word.",
    "List the most important terms, with commas between them.",
)


def documents(number: int) -> list[str]:
    tokenizer = load(find("smollm2-135m", Settings()), EngineConfig(cache_bytes=16 << 20)).tokenizer
    texts = [tokenizer.decode(item.prompt_ids[INSTRUCTION:]) for item in load_workload("w2")]
    return [text.partition("\nassistant")[0].strip() for text in texts[:number]]


def jobs(number: int) -> dict[str, list[tuple[str, str]]]:
    """Documents and questions by the job's name, the one that counts last."""
    texts = documents(number)
    ordered = [(text, question) for text in texts for question in QUESTIONS]
    shuffled = random.Random(8).sample(ordered, len(ordered))
    return {"each document once": [(text, QUESTIONS[0]) for text in texts], "sorted": ordered, "shuffled": shuffled}


@dataclass(frozen=True)
class Bench:
    client: Client
    up: psutil.Process
    folder: Path
    clock: str

    def run(self, rows: list[tuple[str, str]], salt: str, *, reorder: bool) -> tuple[float, float, list[str]]:
        """Seconds, the share of prompt tokens from the cache, and the answers."""
        source = self.folder / "in.parquet"
        pq.write_table(pa.table(dict(zip(("document", "question"), zip(*rows, strict=True), strict=True))), source)
        used = cpu_seconds(self.up)
        job = self.client.submit(
            {
                "input": self.client.upload(source).uri,
                "recipe": {
                    "kind": "generate",
                    "template": "{{ document }}\n\n{{ question }}",
                    "system": f"({salt}) You answer questions about documents.",
                },
                "sampling": {"max_tokens": MAX_TOKENS},
                "reuse": False,
                "reorder": reorder,
            }
        )
        job = self.client.wait(job.id, interval=2.0)
        used = cpu_seconds(self.up) - used
        assert job.status == "completed", f"the job ended as {job.status}: {job.error}"
        output = Path(unquote(urlsplit(job.output or "").path))
        engine = json.loads((output / "_manifest.json").read_text())["engine"]
        answers = [str(text) for batch in self.client.batches(job.id) for text in batch.column("output").to_pylist()]
        cached = engine["cached_tokens"] / engine["prompt_tokens"]
        return used if self.clock == "cpu" else seconds(job)[1], cached, answers

    def compare(self, name: str, rows: list[tuple[str, str]], repetition: int) -> float:
        """The ratio of rows per second of one repetition."""
        taken = {True: 0.0, False: 0.0}
        answers: dict[str, list[str]] = {}
        for prompt, reorder in (("A", True), ("B", False), ("A", False), ("B", True)):
            time, cached, given = self.run(rows, f"{name} {repetition} {prompt}", reorder=reorder)
            taken[reorder] += time
            way = "with" if reorder else "without"
            print(f"{name}, {prompt} {way} reorder: {len(rows)} rows, {time:.1f} s, {cached:.1%} of prompts cached")
            different = sum(one != other for one, other in zip(given, answers.setdefault(prompt, given), strict=True))
            assert not different, f"{different} answers are not the same in another order"
        return taken[False] / taken[True]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--only", help="One of the three jobs.")
    options = parser.parse_args()
    path = find("smollm2-135m", Settings())
    cache = {"NIGHTMILL_ENGINE_CACHE_BYTES": str(options.documents * CACHE_BYTES_OF_DOCUMENT)}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        with service(home, path, options.dtype, options.threads, cache) as (client, up):
            bench = Bench(client, up, Path(folder), options.clock)
            bench.run([("Nothing is in here yet.", question) for question in QUESTIONS], "warm", reorder=False)
            for name, rows in jobs(options.documents).items():
                if options.only in (None, name):
                    each = [bench.compare(name, rows, repetition) for repetition in range(options.repetitions)]
                    ratios[name] = sum(each) / len(each)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f} times as many rows per second in order; all answers are the same")
    return int(any(ratio < (LEAST_RATIO if name == "shuffled" else LEAST_OTHERS) for name, ratio in ratios.items()))


if __name__ == "__main__":
    sys.exit(main())
