"""The same rows through API, queue, worker and Parquet, and through the bare engine.

    python -m tests.bench.service [--dtype int8] [--rows 1024] [--repetitions 3] [--threads N] [--clock wall|cpu]

Labelling prompts as w1 has them: a question that all rows share, a tweet, eight tokens each. The service is what
`nightmill up` starts (API, broker, worker; or the servers of DATABASE_URL and REDIS_URL), the bare engine has the
finished prompts in memory. Both are warm and take turns; a ratio is taken inside a repetition. The service's time runs
from the first shard's begin to the job's end, with reading, tokenising, detokenising, writing and merging in it; what
comes before (queue, split) and the service's own start, the model's loading in it, are printed beside. Texts must be
equal. Exits 1 when the median ratio is below 0.95. Prints it last. On a busy machine, `--threads 1 --clock cpu`
compares the processors' time that all of the service's processes took with the bare engine's.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from api.client import Client
from api.schemas import JobView
from db.model_files import find
from db.settings import Settings
from engine import EngineConfig, LoadedModel, Request, SamplingParams, load
from tests.bench.workloads import load as load_workload
from worker.rows import prompt_tokens

ROOT = Path(__file__).resolve().parents[2]
LEAST_RATIO = 0.95
MAX_TOKENS = 8
CACHE_BYTES = 512 << 20
SHARED = 84  # tokens of w1 that are the same in every prompt
QUESTION = (
    "Say in a few words what the following message feels like, with an eye to its mood, its tone and what its writer "
    "wants of the reader. Answer with the feeling alone, without any explanation or other words around it. "
)


@contextmanager
def service(
    home: Path, model: Path, dtype: str, threads: int | None, settings: Mapping[str, str] | None = None
) -> Iterator[tuple[Client, psutil.Process]]:
    """What `nightmill up` starts, with `settings` in its environment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NIGHTMILL_")} | {
        "NIGHTMILL_HOME": str(home),
        "NIGHTMILL_PORT": str(port),
        "NIGHTMILL_MODEL": str(model),
        "NIGHTMILL_ENGINE_DTYPE": dtype,
        "NIGHTMILL_ENGINE_CACHE_BYTES": str(CACHE_BYTES),
        **(settings or {}),
    }
    if threads is not None:
        environment["NIGHTMILL_ENGINE_THREADS"] = str(threads)
    command = [sys.executable, "-P", "-c", "from api.cli import app; app()", "up"]
    with home.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        try:
            with Client(f"http://127.0.0.1:{port}", retries=30) as client:
                yield client, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(40)


def texts(model: LoadedModel, rows: int) -> list[str]:
    """w1's tweets, as often as it takes, each with its row's number in front."""
    own = [model.tokenizer.decode(item.prompt_ids[SHARED:]) for item in load_workload("w1")]
    return [f"{row}: {own[row % len(own)]}" for row in range(rows)]


def question(salt: int) -> str:
    """Another one for every repetition, so that none finds an earlier one's prefix."""
    return f"({salt}) {QUESTION}"


def run_bare(model: LoadedModel, rows: list[str], salt: int) -> tuple[float, float, list[str]]:
    """Seconds, processor seconds and texts; prompts are tokenised before and texts decoded after."""
    sampling = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [
        Request(
            number,
            prompt_tokens(
                model.tokenizer, [{"role": "system", "content": question(salt)}, {"role": "user", "content": text}]
            ),
            sampling,
            group=salt,
        )
        for number, text in enumerate(rows)
    ]
    start, used = time.perf_counter(), time.process_time()
    outputs = {output.id: output.tokens for output in model.engine.generate(requests)}
    wall, cpu = time.perf_counter() - start, time.process_time() - used
    return wall, cpu, [model.tokenizer.decode(outputs[number]) for number in range(len(rows))]


def run_service(client: Client, rows: list[str], salt: int, folder: Path) -> tuple[JobView, list[str]]:
    source = folder / f"in-{salt}.parquet"
    pq.write_table(pa.table({"text": rows}), source)
    job = client.submit(
        {
            "input": client.upload(source).uri,
            "recipe": {"kind": "generate", "template": "{{ text }}", "system": question(salt)},
            "sampling": {"max_tokens": MAX_TOKENS, "ignore_eos": True},
        }
    )
    job = client.wait(job.id, interval=2.0)  # its times are the database's; asking more often would only cost time
    assert job.status == "completed", f"the job ended as {job.status}: {job.error}"
    return job, [str(text) for batch in client.batches(job.id) for text in batch.column("output").to_pylist()]


def cpu_seconds(process: psutil.Process) -> float:
    """Of the process and its children."""
    return sum(sum(each.cpu_times()[:2]) for each in (process, *process.children(recursive=True)))


def seconds(job: JobView) -> tuple[float, float]:
    """Before the first shard began, and from there to the end."""
    assert job.running_at is not None
    assert job.finished_at is not None
    return (job.running_at - job.created_at).total_seconds(), (job.finished_at - job.running_at).total_seconds()


def compare(
    model: LoadedModel,
    client: Client,
    up: psutil.Process,
    rows: list[str],
    repetition: int,
    folder: Path,
    clock: str,
    console: Console,
) -> float:
    """One repetition: the service's speed over the bare engine's, by the clock that counts."""
    taken: dict[str, tuple[float, float]] = {}  # wall and processor seconds
    answers: dict[str, list[str]] = {}
    for which in ("bare", "service") if repetition % 2 else ("service", "bare"):
        if which == "bare":
            *times, answers[which] = run_bare(model, rows, repetition)
        else:
            used = cpu_seconds(up)
            job, answers[which] = run_service(client, rows, repetition, folder)
            before, wall = seconds(job)
            times = [wall, cpu_seconds(up) - used]
        taken[which] = (times[0], times[1])
        rate = len(rows) / times[0]
        console.print(f"{which}: {len(rows)} rows, {rate:.2f} rows/s, {times[1]:.2f} s of the processors' time")
    different = sum(one != other for one, other in zip(answers["service"], answers["bare"], strict=True))
    assert not different, f"{different} texts of the service are not the bare engine's"
    ratios = [bare / whole for bare, whole in zip(taken["bare"], taken["service"], strict=True)]
    console.print(f"ratio: wall {ratios[0]:.3f}, processors {ratios[1]:.3f}; {before:.2f} s before the first shard")
    return ratios[1 if clock == "cpu" else 0]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    console = Console(soft_wrap=True, highlight=False)
    path = find("smollm2-135m", Settings())
    model = load(path, EngineConfig(dtype=options.dtype, cache_bytes=CACHE_BYTES, num_threads=options.threads))
    rows = texts(model, options.rows)
    with tempfile.TemporaryDirectory() as name:
        folder, began = Path(name), time.perf_counter()
        with service(folder / "home", path, options.dtype, options.threads) as (client, up):
            first, _ = run_service(client, rows[:64], 0, folder)
            run_bare(model, rows[:64], 0)
            console.print(
                f"cold: {time.perf_counter() - began:.1f} s from `up` to the end of a job of 64 rows, of which "
                f"{seconds(first)[0]:.1f} s from its submission to its first shard (the model is loaded), "
                f"{seconds(first)[1]:.1f} s from there"
            )
            ratios = [
                compare(model, client, up, rows, repetition, folder, options.clock, console)
                for repetition in range(1, options.repetitions + 1)
            ]
    ratio = statistics.median(ratios)
    print(f"the service reaches {ratio:.1%} of the bare engine ({min(ratios):.1%} to {max(ratios):.1%})")
    return int(ratio < LEAST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
