"""Traces by OpenTelemetry, for who wants them: without an endpoint nothing of it is imported, and a span is nothing.

Requests and tasks have spans by the instrumentations of FastAPI and Celery (api.app, worker.app). What they cannot
know, which job and shard a task was at, is in spans made here. OTEL_ variables of the environment are the SDK's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TYPE_CHECKING

from db.errors import DomainError
from db.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

PATH = "/v1/traces"  # of the OTLP protocol over HTTP


class TracingMissing(DomainError):
    """Traces are wanted, and what makes them is not installed."""

    code = "tracing_missing"

    def __init__(self, package: str) -> None:
        super().__init__(
            f"NIGHTMILL_OTEL_ENDPOINT is set and {package} is not installed: pip install 'nightmill[otel]', or unset it"
        )


class Tracer:
    """Makes spans. `provider` is for instrumentations; None: no traces are wanted."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self.provider = provider
        self._tracer = None if provider is None else provider.get_tracer("nightmill")

    @contextmanager
    def span(self, name: str, **attributes: str | int) -> Iterator[None]:
        """Around the work of the block. Attributes get the prefix `nightmill.`; they must hold no row's text."""
        if self._tracer is None:
            yield
            return
        named = {f"nightmill.{key}": value for key, value in attributes.items()}
        with self._tracer.start_as_current_span(name, attributes=named):
            yield

    def close(self) -> None:
        """Send what is left. What the collector does not take is lost."""
        if self.provider is not None:
            self.provider.shutdown()


def tracer(settings: Settings, part: str) -> Tracer:
    """Of this process, which is the `part` of the service. Raises TracingMissing."""
    if not settings.otel_endpoint:
        return Tracer()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingMissing(str(error.name)) from error
    about = {"service.name": f"nightmill-{part}", "service.version": version("nightmill")}
    provider = TracerProvider(resource=Resource.create(about))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(settings.otel_endpoint.rstrip("/") + PATH)))
    return Tracer(provider)
