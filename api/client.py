"""The Python client.

with Client("http://127.0.0.1:8642") as client:
    job = client.submit({"input": client.upload("tweets.parquet").uri,
                         "recipe": {"kind": "label", "labels": ["positive", "negative"]}})
    client.wait(job.id)
    for batch in client.batches(job.id):
        ...

A `json_schema` may be a Pydantic model: {"kind": "extract", "json_schema": Invoice}.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import httpx

from api.frames import Library, frame, require
from api.plain import body_of
from api.plan_client import Plans
from api.plan_views import SAMPLE_ROWS, PlanView
from api.result_schemas import ErrorFile, ErrorPage, ResultFile, ResultPage
from api.schedule_client import Schedules
from api.schemas import JobPage, JobRequest, JobView, UploadView
from api.system_views import Health, ModelList, WorkerList
from api.transport import RequestRefused, ResultsPartial, Told, Transport, chunks, told_of
from api.webhook_views import DeliveryPage, WebhookList, WebhookView
from db.models import JobStatus
from db.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa


class Client:
    """Synchronous and thread-safe, as httpx.Client is. Retries what is safe: every call here may be sent twice.

    `api_key` is sent with every request; None: the setting NIGHTMILL_API_KEY. `timeout` is seconds without a byte;
    `retries` counts after the first try, with growing pauses in between.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 60.0,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        key = Settings().api_key if api_key is None else api_key
        self._transport = Transport(url, api_key=key, timeout=timeout, retries=retries, transport=transport)
        self.url = self._transport.url
        self.schedules = Schedules(self._transport)
        self.plans = Plans(self._transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def submit(self, job: JobRequest | Mapping[str, Any], *, idempotency_key: str | None = None) -> JobView:
        """Create a job. Without a key one is made up, so that a retried request cannot create two."""
        body = body_of(job)
        key = idempotency_key or body.pop("idempotency_key", None) or str(uuid.uuid4())
        answer = self._transport.call("POST", "/v1/jobs", json=body, headers={"Idempotency-Key": key})
        return JobView.model_validate(answer.json())

    def plan(self, job: JobRequest | Mapping[str, Any], *, sample_rows: int = SAMPLE_ROWS) -> PlanView:
        """What a job will take, without making one: waits for the plan, which is done or has failed then."""
        *_, last = self.plans.watch(self.plans.make(job, sample_rows=sample_rows).id)
        return last

    def get(self, job_id: str) -> JobView:
        return JobView.model_validate(self._transport.call("GET", f"/v1/jobs/{job_id}").json())

    def list(self, *, status: JobStatus | None = None, limit: int | None = None) -> Iterator[JobView]:
        """Jobs, newest first; pages are fetched as they are read."""
        after: str | None = None
        left = limit
        while left is None or left > 0:
            query = {"limit": min(200, left or 200), "after": after, "status": status.value if status else None}
            answer = self._transport.call(
                "GET", "/v1/jobs", params={name: v for name, v in query.items() if v is not None}
            )
            page = JobPage.model_validate(answer.json())
            yield from page.jobs
            after = page.next
            left = None if left is None else left - len(page.jobs)
            if after is None:
                return

    def cancel(self, job_id: str) -> JobView:
        return JobView.model_validate(self._transport.call("POST", f"/v1/jobs/{job_id}/cancel").json())

    def pause(self, job_id: str) -> JobView:
        return JobView.model_validate(self._transport.call("POST", f"/v1/jobs/{job_id}/pause").json())

    def resume(self, job_id: str) -> JobView:
        return JobView.model_validate(self._transport.call("POST", f"/v1/jobs/{job_id}/resume").json())

    def retry(self, job_id: str) -> JobView:
        """A new job over the failed rows of one that has ended. A second call gives the same job."""
        return JobView.model_validate(self._transport.call("POST", f"/v1/jobs/{job_id}/retry").json())

    def create_webhook(self, url: str, events: Sequence[str] = ()) -> WebhookView:
        """Have the server tell an address when batches end. The answer alone has the secret that signs."""
        body = {"url": url, "events": [*events]}
        return WebhookView.model_validate(self._transport.call("POST", "/v1/webhooks", json=body).json())

    def webhooks(self) -> WebhookList:
        return WebhookList.model_validate(self._transport.call("GET", "/v1/webhooks").json())

    def delete_webhook(self, webhook_id: str) -> None:
        self._transport.call("DELETE", f"/v1/webhooks/{webhook_id}")

    def webhook_deliveries(self, webhook_id: str) -> DeliveryPage:
        """The latest deliveries, newest first."""
        return DeliveryPage.model_validate(self._transport.call("GET", f"/v1/webhooks/{webhook_id}/deliveries").json())

    def watch(self, job_id: str, *, interval: float = 0.5) -> Iterator[JobView]:
        """The job every `interval` seconds, the last time when it has ended."""
        while True:
            job = self.get(job_id)
            yield job
            if job.status.terminal:
                return
            time.sleep(interval)

    def wait(self, job_id: str, *, interval: float = 0.5) -> JobView:
        """Block until the job has ended, however it ended."""
        *_, last = self.watch(job_id, interval=interval)
        return last

    def upload(self, path: str | Path, *, told: Told = lambda num_bytes: None) -> UploadView:
        """Send a Parquet file; its `uri` is what a job's `input` takes. `told` hears the bytes of each piece sent."""
        path = Path(path)
        headers = {"Content-Type": "application/vnd.apache.parquet", "Content-Length": str(path.stat().st_size)}
        answer = self._transport.call(
            "POST",
            "/v1/uploads",
            content=lambda: told_of(chunks(path), told),
            headers=headers,
            params={"filename": path.name},
        )
        return UploadView.model_validate(answer.json())

    def results(self, job_id: str, *, partial: bool = False) -> Iterator[ResultFile]:
        """The finished parts, in order of the input rows. While the job goes on: ResultsPartial is raised, or with
        `partial` those finished so far are given; each says which rows it has, and none changes any more."""
        after = 0
        while True:
            answer = self._transport.call("GET", f"/v1/jobs/{job_id}/results", params={"after": after})
            page = ResultPage.model_validate(answer.json())
            if page.partial and not partial:
                raise ResultsPartial(job_id, page.status)
            yield from page.files
            if page.next is None:
                return
            after = page.next

    def errors(self, job_id: str) -> Iterator[ErrorFile]:
        """The files of failed rows, those so far while the job goes on. Their columns are the input's own and
        `nightmill_error`; a job takes them as its input as they are."""
        after = 0
        while True:
            answer = self._transport.call("GET", f"/v1/jobs/{job_id}/errors", params={"after": after})
            page = ErrorPage.model_validate(answer.json())
            yield from page.files
            if page.next is None:
                return
            after = page.next

    def download_errors(
        self, job_id: str, folder: str | Path, *, told: Told = lambda num_bytes: None
    ) -> Sequence[Path]:
        """Fetch the files of failed rows into `folder`. Files appear whole or not at all; `told` as in `upload`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return [self._transport.fetch(file.url, folder / file.name, None, told) for file in self.errors(job_id)]

    def download(
        self, job_id: str, folder: str | Path, *, partial: bool = False, told: Told = lambda num_bytes: None
    ) -> Sequence[Path]:
        """Fetch parts and manifest into `folder`, checking each part's SHA-256. Files appear whole or not at all.
        `told` as in `upload`.

        `partial` as in `results`: without a manifest, what lies in `folder` then is not the whole result.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [
            self._transport.fetch(f"/v1/jobs/{job_id}/results/{file.name}", folder / file.name, file.sha256, told)
            for file in self.results(job_id, partial=partial)
        ]
        for name in ("_manifest.json", "_SUCCESS"):  # In this order, as the worker wrote them.
            with contextlib.suppress(RequestRefused):
                paths.append(self._transport.fetch(f"/v1/jobs/{job_id}/results/{name}", folder / name, None))
        return paths

    def batches(
        self, job_id: str, *, columns: Sequence[str] | None = None, partial: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The result as Arrow batches in input order, one part on disk at a time. `partial` as in `results`."""
        import pyarrow.parquet as pq  # Imported where used: the other calls need no Arrow.

        with tempfile.TemporaryDirectory(prefix="nightmill-") as folder:
            for file in self.results(job_id, partial=partial):
                path = self._transport.fetch(
                    f"/v1/jobs/{job_id}/results/{file.name}", Path(folder) / file.name, file.sha256
                )
                with pq.ParquetFile(path, page_checksum_verification=True) as part:
                    yield from part.iter_batches(columns=None if columns is None else list(columns))
                path.unlink()

    def frames(
        self, job_id: str, library: Library = "pandas", *, columns: Sequence[str] | None = None, partial: bool = False
    ) -> Iterator[Any]:
        """The same as data frames of pandas or polars. Raises FrameLibraryMissing before anything is fetched."""
        require(library)
        return (frame(batch, library) for batch in self.batches(job_id, columns=columns, partial=partial))

    def models(self) -> ModelList:
        return ModelList.model_validate(self._transport.call("GET", "/v1/models").json())

    def workers(self) -> WorkerList:
        return WorkerList.model_validate(self._transport.call("GET", "/v1/workers").json())

    def ready(self) -> bool:
        """Whether the server answers now and can take jobs. Never raises, never retries."""
        answer = self._transport.probe("/readyz")
        try:
            return answer is not None and Health.model_validate(answer.json()).status == "ok"
        except ValueError:  # Something else answers there.
            return False
