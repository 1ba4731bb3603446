"""The service that a command talks to: one that runs already, or a private one for as long as the command lasts."""

from __future__ import annotations

import ipaddress
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from api.cli.options import OptionError
from api.client import Client
from api.embedded import lock
from api.embedded.stack import embedded
from db import model_files
from db.errors import ModelMissing
from db.settings import Settings


@dataclass(frozen=True, slots=True)
class Service:
    """`tick` keeps an embedded service alive and must be called every second or so; `local`: on this machine."""

    client: Client
    local: bool
    tick: Callable[[], None]


def existing(settings: Settings, url: str | None) -> str | None:
    """Address of a service that runs already: the one asked for, or the one `nightmill up` started for this home."""
    if url or settings.url:
        return url or settings.url
    running = lock.running(settings.home)
    return running.url if running is not None and running.lasting else None


@contextmanager
def connected(settings: Settings, url: str | None) -> Iterator[Client]:
    """A client of a service that must run already. Raises OptionError where none does."""
    running = lock.running(settings.home)
    address = existing(settings, url) or (running.url if running else None)
    if address is None:
        raise OptionError(
            "no Nightmill service runs for this home; start one with `nightmill up`, "
            "or name one with --url or NIGHTMILL_URL"
        )
    with Client(address, api_key=settings.api_key) as client:
        yield client


@contextmanager
def service(
    settings: Settings, url: str | None, folders: Sequence[Path | str], model: str, console: Console
) -> Iterator[Service]:
    """A service that can run a job now; `folders`, also in buckets, are what a private one must be able to use.

    Raises OptionError, HomeInUseError, PortTakenError, ChildError and ModelMissing.
    """
    address = existing(settings, url)
    if address is not None:
        with Client(address, api_key=settings.api_key) as client:
            if not client.ready():
                raise OptionError(
                    f"no Nightmill service is ready at {address}; is it started, and its Redis and database?"
                )
            if _loopback(address) and not (url or settings.url):
                ensure_model(model, settings, console)
            yield Service(client, _loopback(address), lambda: None)
        return
    private = settings.model_copy(update={"port": 0, "data_roots": (*settings.data_roots, *folders), "model": model})
    ensure_model(model, private, console)
    with ExitStack() as exits:
        with console.status("starting the service"):
            stack = exits.enter_context(embedded(private, logs=settings.home / "logs", lasting=False))
        if stack.warning:
            console.print(stack.warning, style="bold yellow")
        yield Service(exits.enter_context(Client(stack.url)), True, stack.check)


def ensure_model(model: str, settings: Settings, console: Console) -> None:
    """Fetch the model, with a progress bar, if it is missing. Raises ModelMissing."""
    if settings.engine_factory:  # Another engine decides itself what a model name means.
        return
    try:
        model_files.find(model, settings)
    except ModelMissing:
        columns = (TextColumn("fetching {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task(model, total=None)
            model_files.pull(model, settings, lambda done, total: progress.update(task, completed=done, total=total))


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that children are stopped either way."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
