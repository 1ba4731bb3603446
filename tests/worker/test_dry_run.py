"""Plans made by a worker's task, with the fake engine."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from db import datasets, dry_runs
from db.dry_runs import DryRun, DryRunStatus
from db.models import Worker
from db.plan_results import PlanResult
from db.session import db_now
from db.specs import JobSpec
from db.workers import worker_gone, worker_seen
from tests.worker.factories import Office, spec_of, write_texts
from worker.dry_run import dry_run
from worker.rows import RowMaker


def ask(office: Office, spec: JobSpec, sample_rows: int = 16) -> str:
    dataset = datasets.inspect(Path(spec.input))
    with office.sessions.begin() as session:
        run = dry_runs.create(
            session,
            spec,
            tenant="default",
            num_rows=min(dataset.num_rows, spec.max_rows or dataset.num_rows),
            input_version=dataset.version,
            sample_rows=sample_rows,
        )
    return run.id


def read(office: Office, plan_id: str) -> DryRun:
    with office.sessions.begin() as session:
        return dry_runs.get(session, plan_id, "default")


def made(office: Office, spec: JobSpec, sample_rows: int = 16) -> PlanResult:
    plan_id = ask(office, spec, sample_rows)
    assert office.work() == ["plan"]
    run = read(office, plan_id)
    assert (run.status, run.error_message) == (DryRunStatus.DONE, None)
    return PlanResult.model_validate(run.result)


def test_what_was_counted_is_exact_and_the_rest_is_near(office: Office, tmp_path: Path) -> None:
    texts = [None if i % 50 == 0 else f"row {i % 100}" for i in range(200)]
    source = write_texts(tmp_path / "in.parquet", texts)
    plan = made(office, spec_of(source))
    office.submit(spec_of(source), tmp_path / "out")
    office.work()
    job = office.job()
    assert (plan.prompt_tokens.low, plan.prompt_tokens.high) == (job.prompt_tokens, job.prompt_tokens)
    assert plan.output_tokens.value == pytest.approx(job.output_tokens, rel=0.1)
    assert plan.total_tokens.value == pytest.approx(job.prompt_tokens + job.output_tokens, rel=0.1)
    assert (plan.rows.total, plan.rows.read, plan.rows.sampled, plan.rows.duplicates) == (200, 200, 16, 98)
    assert (plan.rows.failing.value, plan.rows.failing.low, plan.rows.causes) == (4, 4, {"template_error": 4})
    assert plan.rows.too_long.high == 0
    assert plan.workers == 1
    assert 0 < plan.seconds.low <= plan.seconds.value <= plan.seconds.high
    assert (plan.memory.bytes_per_token, plan.memory.cache_bytes, plan.cost) == (256, 1 << 20, None)
    assert len(plan.examples) == 3
    for example in plan.examples:
        assert example.output == str(texts[example.row]).upper()


def test_workers_that_are_gone_do_not_count(office: Office, tmp_path: Path) -> None:
    """One ended, one was killed half a minute ago, two are there; there is a shard for each of the four."""
    source = write_texts(tmp_path / "in.parquet", [f"row {i}" for i in range(400)])
    with office.sessions.begin() as session:
        for name in ("ended", "killed", "other", "office"):
            worker_seen(session, name, "fake", {})
        worker_gone(session, "ended")
        session.execute(update(Worker).where(Worker.name == "killed").values(seen_at=db_now() - 30))
        # However long the test takes, these have just reported themselves.
        session.execute(update(Worker).where(Worker.name.in_(("other", "office"))).values(seen_at=db_now() + 3600))
    assert made(office, spec_of(source)).workers == 2


def test_rows_that_fail_are_told(office: Office, tmp_path: Path) -> None:
    """`fake:small` takes 64 tokens in all: the long rows are refused, the others fit."""
    texts = ["x" * (80 if i < 10 else 5) for i in range(40)]
    spec = spec_of(
        write_texts(tmp_path / "in.parquet", texts), model="fake:small", sampling={"max_tokens": 8}, reuse=False
    )
    plan = made(office, spec)
    assert (plan.rows.too_long.value, plan.rows.causes, plan.rows.duplicates) == (10, {"too_long": 10}, 0)
    cut = spec.model_copy(update={"on_long": "truncate_tail"})
    plan = made(office, cut)
    assert (plan.rows.too_long.value, plan.rows.failing.value) == (10, 0)


@pytest.mark.parametrize("sample_rows", [40, 16])
def test_rows_that_are_summarised_in_chunks_are_no_errors_and_all_their_chunks_count(
    office: Office, tmp_path: Path, sample_rows: int
) -> None:
    """`fake:small` takes 64 tokens in all: the long rows have 5 to 8 chunks, their summaries two, and those one."""
    texts = ["A few words. " * (15 + i % 10 if i % 4 else 1) for i in range(40)]
    recipe, source = {"kind": "summarize", "instruction": "S"}, write_texts(tmp_path / "in.parquet", texts)
    how = {"model": "fake:small", "recipe": recipe, "sampling": {"max_tokens": 8}, "reuse": False}
    spec = spec_of(source, on_long="map_reduce", **how)
    plan = made(office, spec, sample_rows)
    office.submit(spec, tmp_path / "out")
    office.work()
    job, chunks = office.job(), pq.read_table(tmp_path / "out" / "part-00000.parquet")["chunks"].to_pylist()
    assert (job.rows_succeeded, min(chunks), max(chunks)) == (40, 1, 8)
    assert (plan.rows.too_long.value, plan.rows.failing.value, plan.rows.causes) == (30, 0, {})
    near = 0.0 if sample_rows == 40 else 0.1
    assert plan.prompt_tokens.value == pytest.approx(job.prompt_tokens, rel=near)
    assert plan.output_tokens.value == pytest.approx(job.output_tokens, rel=near)
    assert plan.memory.bytes_per_sequence <= 64 * plan.memory.bytes_per_token  # a chunk's, not a row's
    assert all(example.finish_reason == "length" for example in plan.examples)


def test_labels_are_planned_with_their_prior(office: Office, tmp_path: Path) -> None:
    texts = [f"a {'good' if i % 3 else 'bad'} thing {i}" for i in range(60)]
    recipe = {"kind": "label", "column": "text", "labels": ["good", "bad"], "calibration": "batch"}
    plan = made(office, spec_of(write_texts(tmp_path / "in.parquet", texts), recipe=recipe))
    assert {example.output for example in plan.examples} <= {"good", "bad"}
    assert 3 * 60 <= plan.output_tokens.value <= 4 * 60


@pytest.mark.parametrize(("num_rows", "computed"), [(3, 3), (40, 16)])
def test_it_tells_how_many_rows_it_computed(office: Office, tmp_path: Path, num_rows: int, computed: int) -> None:
    texts = [f"row {i}" for i in range(num_rows)]
    plan_id = ask(office, spec_of(write_texts(tmp_path / "in.parquet", texts)))
    office.work()
    assert (read(office, plan_id).status, read(office, plan_id).rows_done) == (DryRunStatus.DONE, computed)


def test_nothing_to_compute(office: Office, tmp_path: Path) -> None:
    plan = made(office, spec_of(write_texts(tmp_path / "in.parquet", [])))
    assert (plan.rows.total, plan.total_tokens.value, plan.examples) == (0, 0, [])
    plan = made(office, spec_of(write_texts(tmp_path / "nulls.parquet", [None] * 5)))
    assert (plan.rows.failing.value, plan.rows.sampled, plan.output_tokens.value) == (5, 0, 0)


def test_what_no_retry_would_change_fails_it(office: Office, tmp_path: Path) -> None:
    source = write_texts(tmp_path / "in.parquet", ["a"])
    other = write_texts(tmp_path / "other.parquet", ["a"])
    missing, changed = ask(office, spec_of(other, model="nonsense")), ask(office, spec_of(source))
    write_texts(source, ["a", "b"])
    assert office.work() == ["plan", "plan"]
    assert (read(office, missing).status, read(office, missing).error_code) == (DryRunStatus.FAILED, "model_missing")
    assert read(office, changed).error_code == "changed"


def test_an_engine_that_breaks_is_tried_again_and_fails_it_in_the_end(office: Office, tmp_path: Path) -> None:
    texts = [f"row {i}" for i in range(60)]
    plan_id = ask(office, spec_of(write_texts(tmp_path / "in.parquet", texts), model="fake:crash"), 60)
    assert office.work() == ["plan", "plan"]
    run = read(office, plan_id)
    assert (run.status, run.error_code, run.attempts) == (DryRunStatus.FAILED, "engine_failed", 2)


def test_it_may_run_twice(office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_id = ask(office, spec_of(write_texts(tmp_path / "in.parquet", ["a", "b"])))
    dry_run(office.process, plan_id)
    first = read(office, plan_id)
    monkeypatch.setattr(RowMaker, "asking", None)  # whatever is asked now breaks
    dry_run(office.process, plan_id)
    dry_run(office.process, "plan_unknown")
    assert read(office, plan_id).result == first.result


def test_a_worker_that_is_told_to_end_gives_it_back(office: Office, tmp_path: Path) -> None:
    plan_id = ask(office, spec_of(write_texts(tmp_path / "in.parquet", ["a", "b"])))
    office.process.drain.set()
    dry_run(office.process, plan_id)
    run = read(office, plan_id)
    assert (run.status, run.attempts) == (DryRunStatus.WAITING, 0)


def test_cost(office: Office, tmp_path: Path) -> None:
    object.__setattr__(office.process, "settings", office.process.settings.model_copy(update={"price_per_hour": 36.0}))
    plan = made(office, spec_of(write_texts(tmp_path / "in.parquet", [f"row {i}" for i in range(50)])))
    assert plan.cost is not None
    assert plan.cost.value == pytest.approx(plan.seconds.value / 100)
