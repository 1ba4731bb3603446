"""Logs of API and workers: one structured line per event, with the ids of what it is about.

The ids that a piece of work has (job, shard, batch) are bound to its context, structlog.contextvars, and stand in every
line of it, those of libraries included.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import Processor

from db.settings import Settings

# Celery reports each task's receipt and end at `info`, which says a shard's own events twice; httpx each address that
# it asks, and that of a webhook may hold a secret.
QUIET = ("celery", "httpx")


def configure(settings: Settings) -> None:
    """Send our events and those of the libraries to standard error, alike. Called once per process."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(settings.log_level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    renderer: list[Processor] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        *([structlog.processors.format_exc_info] if settings.log_json else []),
        structlog.processors.JSONRenderer() if settings.log_json else _console(),
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=renderer))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(max(root.level, logging.WARNING))


def _console() -> structlog.dev.ConsoleRenderer:
    """With plain tracebacks: the other kind prints local variables, and with them the rows of a job."""
    return structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
