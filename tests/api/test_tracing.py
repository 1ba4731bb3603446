"""Traces reach a collector with the ids of job and shard; without an endpoint there are none, nor any import."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from db.settings import Settings
from db.tracing import Tracer, TracingMissing, tracer
from tests.api.conftest import MemoryQueue
from tests.worker.crew import Crew
from tests.worker.factories import Office, spec_of, write_texts

REPOSITORY = Path(__file__).parents[2]


class Collector:
    """Takes traces by OTLP over HTTP, as any collector does."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector.bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def spans(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Service, name and attributes."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = []
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                about = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        values = {each.key: _plain(each.value) for each in span.attributes}
                        found.append((about["service.name"], span.name, values))
        return found

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _plain(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
    made = Collector()
    yield made
    made.close()


def test_requests_have_spans(collector: Collector, settings: Settings) -> None:
    own = settings.model_copy(update={"otel_endpoint": collector.url, "sweep_seconds": 3600.0})
    with TestClient(create_app(own, MemoryQueue())) as http:
        assert http.get("/v1/jobs/job_x").status_code == 404
        assert http.get("/healthz").status_code == 200
    spans = [(service, name) for service, name, _ in collector.spans() if name.startswith("GET") and "send" not in name]
    assert spans == [("nightmill-api", "GET /v1/jobs/{job_id}")]


@pytest.mark.slow  # a real worker
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_tasks_have_spans_with_the_ids(collector: Collector, database_url: str, redis_url: str, tmp_path: Path) -> None:
    crew = Crew(tmp_path, database_url, redis_url, otel_endpoint=collector.url)
    office = Office(Settings(home=tmp_path, database_url=database_url))
    try:
        office.submit(spec_of(write_texts(tmp_path / "in.parquet", ["a", "b"])), tmp_path / "out")
        worker = crew.hire()
        crew.wait_until(lambda: office.job().status.terminal)
        worker.terminate()
        assert worker.wait(20) == 0
    finally:
        crew.dismiss()
        office.close()
    spans = collector.spans()
    assert {service for service, _, _ in spans} == {"nightmill-worker"}
    assert {"run/nightmill.split", "run/nightmill.run", "run/nightmill.merge"} <= {name for _, name, _ in spans}
    known = {
        name: {key: value for key, value in values.items() if key.startswith("nightmill.")} for _, name, values in spans
    }
    assert known["shard"] == {"nightmill.job": "job", "nightmill.shard": 0, "nightmill.attempt": 1}
    assert known["split"] == known["merge"] == {"nightmill.job": "job"}


def test_what_is_not_installed_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(TracingMissing, match=r"pip install 'nightmill\[otel\]', or unset it"):
        create_app(settings.model_copy(update={"otel_endpoint": "http://127.0.0.1:4318"}), MemoryQueue())


def test_without_an_endpoint_there_is_nothing(settings: Settings) -> None:
    made = tracer(settings, "api")
    assert made.provider is None
    with made.span("shard", job="job_x"), Tracer().span("merge"):
        pass
    made.close()
    looked_for = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.instrumentation")
    program = f"import sys, api.app; print([name for name in sys.modules if name.startswith({looked_for})])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.strip() == "[]"
