"""`python -m worker.bench`: a workload on the engine, as one JSON object. `nightmill bench` asks it.

The workload is a sample of a job's rows where a JobSpec is on standard input, and made-up texts otherwise. Everything
runs in one thread, so that the parts add up to the wall time: in a job, tokenising and detokenising happen in other
threads, beside the engine.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from db import columns, datasets
from db.errors import DomainError, InvalidJob
from db.files import resolve_input
from db.settings import Settings
from db.specs import JobSpec
from db.tenants import default_folders
from engine import EngineError, LoadedModel, Request, SamplingParams
from engine.request import FinishReason
from engine.tokenizer import Tokenizer
from worker import frame, samples
from worker.models import load_model
from worker.plans import plan
from worker.rows import prompt_tokens

WARM_ROWS = 8
TEXT = """the of and to in is that for it was on are as with they at this from have by one had not but what all were
when water people house river number world school paper music winter garden morning letter window market engine"""
WORDS = TEXT.split()
WORDS_PER_ROW = 120
QUESTION = "Summarize the following text in two sentences.\n\n"
PERCENTILES = (50, 90, 99)


class NoRowFits(EngineError):
    """There is no rate to tell: the engine, with these settings, answers none of the rows."""

    code = "no_row_fits"


@dataclass(frozen=True, slots=True)
class Measured:
    """`parts`: seconds by part of the work, engine.clock.PARTS and what is around them; together `seconds`.

    Rows, tokens and latencies are those of answers: `refused` rows had a request that the engine would not take, or
    could not finish, and `refusal` says why the first was. `latency`: percentiles of the seconds that a request was in
    the engine. `occupancy`: mean number of sequences in a step.
    """

    rows: int
    refused: int
    refusal: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    steps: int
    preemptions: int
    occupancy: float
    seconds: float
    latency: Mapping[str, float]
    parts: Mapping[str, float]

    @property
    def host_share(self) -> float:
        """The share of the wall time that was not the model's."""
        return 1 - self.parts["model"] / self.seconds


def measure(model: LoadedModel, requests: Iterable[Request]) -> Measured:
    """Run the requests, detokenising what comes out. Making a request is counted as tokenising."""
    engine, spent = model.engine, {"tokenise": 0.0, "detokenise": 0.0}
    latencies: list[float] = []
    refusals: dict[object, str] = {}  # by row

    def made() -> Iterator[Request]:
        source, start = iter(requests), time.perf_counter()
        while (request := next(source, None)) is not None:
            spent["tokenise"] += time.perf_counter() - start
            yield request
            start = time.perf_counter()

    before, stats, rows = dict(engine.profile()), engine.stats(), set()
    tokens = [0, 0, 0]
    began = time.perf_counter()
    for output in engine.generate(made()):
        row = output.id[0] if isinstance(output.id, tuple) else output.id
        if output.finish_reason is FinishReason.ERROR:
            refusals.setdefault(row, output.error or "it was refused")
            continue
        start = time.perf_counter()
        model.tokenizer.decode(output.tokens)
        spent["detokenise"] += time.perf_counter() - start
        latencies.append(sum(output.times or ()))
        rows.add(row)
        counts = (output.num_prompt_tokens, output.num_cached_tokens, output.num_output_tokens)
        tokens = [a + b for a, b in zip(tokens, counts, strict=True)]
    seconds, now = time.perf_counter() - began, engine.stats()
    parts = {name: value - before[name] for name, value in engine.profile().items()} | spent
    parts["other"] = seconds - sum(parts.values())
    steps = now.steps - stats.steps
    return Measured(
        rows=len(rows - refusals.keys()),
        refused=len(refusals),
        refusal=next(iter(refusals.values()), None),
        prompt_tokens=tokens[0],
        cached_tokens=tokens[1],
        output_tokens=tokens[2],
        steps=steps,
        preemptions=now.preemptions - stats.preemptions,
        occupancy=(now.slices - stats.slices) / max(steps, 1),
        seconds=seconds,
        latency={f"p{share}": float(np.percentile(latencies or [0.0], share)) for share in PERCENTILES},
        parts=parts,
    )


def sample(model: LoadedModel, rows: int, max_tokens: int, salt: int = 0) -> Iterator[Request]:
    """Texts of 120 common words in an order of their own, behind one question; exactly `max_tokens` are written."""
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    dice = random.Random(salt)  # noqa: S311 - no secret
    for row in range(rows):
        text = QUESTION + " ".join(dice.choices(WORDS, k=WORDS_PER_ROW))
        tokens = prompt_tokens(model.tokenizer, [{"role": "user", "content": text}])
        yield Request(row, tokens, sampling, group=salt)


@dataclass(frozen=True, slots=True)
class Reader:
    """What of a loaded model decides how rows become requests: worker.plans.Model."""

    tokenizer: Tokenizer
    max_model_len: int


def rows_of(spec: JobSpec, most: int, model: LoadedModel, settings: Settings) -> list[tuple[Request, ...]]:
    """The first requests of `most` rows of a job, or all, drawn alike from short and long ones; the same every time.

    What the job would find out before its first row is found out here, and is no part of what is measured.

    Raises InvalidDataset, DatasetRefused and InvalidJob, the latter where no row can be asked, and EngineError.
    """
    folders = default_folders(settings)
    # Whoever runs this may read the file anyway: no service's roots hold here.
    folders = replace(folders, roots=(*folders.roots, Path(spec.input).parent))
    dataset = datasets.inspect(resolve_input(spec.input, folders))
    for _, check in columns.input_checks(spec):
        check(dataset)
    num_rows = dataset.num_rows if spec.max_rows is None else min(spec.max_rows, dataset.num_rows)
    reader, draw = Reader(model.tokenizer, model.engine.max_model_len), random.Random(0)  # noqa: S311 - no secret
    # As an owner of its own: what it leaves in the engine's cache is of no use to the rows (see `named`).
    first = plan(spec, reader, settings, dataset.schema, {}, "bench", "learn")
    learnt = samples.learn(dataset, num_rows, first, model.engine.generate)
    made = plan(spec, reader, settings, dataset.schema, learnt, "bench", "bench")
    seen = frame.distinct(frame.look(dataset, num_rows, made, draw, lambda: None).rows, spec.reuse)
    drawn = [row for stratum in frame.strata_of(seen, most, draw) for row in stratum.drawn]
    if not drawn:
        raise InvalidJob("input", "none of the rows that were looked at can be asked")
    return [row.asking.requests for row in sorted(drawn, key=lambda row: row.index) if row.asking is not None]


def named(rows: Sequence[Sequence[Request]], owner: str) -> Iterator[Request]:
    """The requests under ids of their own, sharing blocks of the cache with none of another owner."""
    for index, requests in enumerate(rows):
        for place, request in enumerate(requests):
            yield replace(request, id=(index, place), owner=owner)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m worker.bench")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--job", action="store_true", help="read a JobSpec as JSON from standard input")
    options = parser.parse_args()
    spec = JobSpec.model_validate_json(sys.stdin.read()) if options.job else None
    try:
        print(json.dumps(run(spec, options.rows, options.max_tokens, Settings())))
    except (DomainError, EngineError, MemoryError) as error:
        sys.exit(str(error) or "no memory")


def run(spec: JobSpec | None, rows: int, max_tokens: int, settings: Settings) -> dict[str, object]:
    """Load the model, warm it up, and measure. Raises NoRowFits, and what `load_model` and `rows_of` raise."""
    name, start = settings.model if spec is None else spec.model, time.perf_counter()
    model = load_model(name, settings)
    loaded = time.perf_counter() - start
    if spec is None:
        made = partial(sample, model, max_tokens=max_tokens)
        warm, work = made(rows=WARM_ROWS, salt=1), made(rows=rows, salt=2)
    else:
        own = rows_of(spec, rows, model, settings)
        warm, work = named(own[:WARM_ROWS], "warm"), named(own, "bench")
    measure(model, warm)
    measured = measure(model, work)
    if not measured.rows:
        raise NoRowFits(f"no row fits: {measured.refusal}")
    about = {"model": name, "dtype": settings.engine_dtype, "sequences": settings.engine_max_sequences}
    return {**about, "load_seconds": loaded, "host_share": measured.host_share, **asdict(measured)}


if __name__ == "__main__":
    main()
