"""Checks: whether this installation can do its work, and what to do where it cannot. Nothing is started or changed.

What only the engine can tell (processor, native code, GPUs) a child process of the worker's is asked for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from api.embedded import broker, lock
from api.queue import QueueError, RedisQueue
from db import model_files
from db.errors import ModelMissing
from db.redaction import shown
from db.session import NEWEST, connect, revision
from db.settings import Settings

MACHINE = (sys.executable, "-P", "-m", "worker.machine")
MACHINE_SECONDS = 300.0  # the native code may be compiled on the way
BESIDE_CACHE = 1 << 30  # what a worker takes beside the key/value cache and the weights, generously
LEAST_DISK = 1 << 30
GIB = float(1 << 30)


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but slower or not for long
    ERROR = "error"  # jobs cannot run


class Check(NamedTuple):
    name: str
    state: State
    found: str
    advice: str = ""


def checks(settings: Settings) -> Iterator[Check]:
    """Every check, one after the other; those of the machine take seconds."""
    yield from machine_checks(ask_machine(), settings)
    yield memory(settings)
    yield disk(settings.home)
    yield model(settings)
    yield database(settings)
    yield queue(settings)
    yield service(settings)


def ask_machine() -> dict[str, Any] | str:
    """What engine.machine.Machine says, or why it could not be asked."""
    try:
        done = subprocess.run(MACHINE, capture_output=True, text=True, timeout=MACHINE_SECONDS)  # noqa: S603 - fixed
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def machine_checks(found: dict[str, Any] | str, settings: Settings) -> Iterator[Check]:
    if isinstance(found, str):
        yield Check("worker", State.ERROR, found, "install Nightmill again, with its dependencies: pip install -e .")
        return
    features = " ".join(found["features"]) or "none of AVX2 and up"
    unused = f"; not used: {' '.join(found['unused_features'])}" if found["unused_features"] else ""
    yield Check("processor", State.OK, f"{found['processor']}, {found['cores']} cores: {features}{unused}")
    formats = "; ".join(f"{name}: {used}" for name, used in found["formats"].items())
    if found["native"] is None:
        yield Check("native code", State.OK, f"runs. {formats}. dtype=auto is {found['auto']}")
    else:
        advice = "several times slower without"
        if "compiler" in found["native"]:
            advice += "; install a C++ compiler: apt install g++, or dnf install gcc-c++"
        yield Check("native code", State.WARNING, found["native"], advice)
    yield gpu(found["gpus"], found["cuda"], found["driver"], settings)


def gpu(gpus: list[str], cuda: str | None, driver: str | None, settings: Settings) -> Check:
    """Whether the engine has the GPUs that the settings give it. `cuda`: torch's; `driver`: NVIDIA's; None: none."""
    known = f"driver {driver or 'none'}, torch with CUDA {cuda or 'none'}"
    text = f"{', '.join(gpus)} ({known})" if gpus else f"none ({known})"
    if settings.engine_device == "cpu":
        unused = "; not used: NIGHTMILL_ENGINE_DEVICE is cpu" if gpus else "; the CPU computes"
        return Check("GPU", State.OK, text + unused)
    first = int(settings.engine_device.partition(":")[2] or 0)
    wanted = first + settings.engine_tensor_parallel
    if len(gpus) >= wanted:
        return Check("GPU", State.OK, text)
    asked = f"NIGHTMILL_ENGINE_DEVICE={settings.engine_device}"
    if settings.engine_tensor_parallel > 1:
        asked += f" and NIGHTMILL_ENGINE_TENSOR_PARALLEL={settings.engine_tensor_parallel}"
    if cuda is None:
        advice = "install a torch that is built with CUDA, or set NIGHTMILL_ENGINE_DEVICE=cpu"
    elif driver is None:
        advice = "install NVIDIA's driver, or give the container the GPU: docker run --gpus all"
    elif not gpus:
        advice = "see nvidia-smi: the driver may be too old for this CUDA, or CUDA_VISIBLE_DEVICES hides the GPU"
    else:
        advice = "set them to GPUs that are there; CUDA_VISIBLE_DEVICES may hide some"
    return Check("GPU", State.ERROR, f"{asked} needs {wanted}, and there is {text}", advice)


def memory(settings: Settings, available: Callable[[], int | None] | None = None) -> Check:
    """Whether a worker fits: the key/value cache, the weights (up to their size as fp32), and the rest."""
    free = (available or available_memory)()
    if free is None:
        return Check("memory", State.OK, "this system does not tell how much is free")
    needed = (settings.engine_cache_bytes or GIB) + BESIDE_CACHE
    text = f"{free / GIB:.1f} GiB free; a worker takes up to {needed / GIB:.1f} GiB and the model's weights"
    if free >= needed:
        return Check("memory", State.OK, text)
    return Check("memory", State.WARNING, text, "set NIGHTMILL_ENGINE_CACHE_BYTES lower, or end other programs")


def available_memory() -> int | None:
    """Bytes that a new process can have: of the machine, or of the container where that allows less."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - int(used))


def disk(home: Path) -> Check:
    """Whether the home can be written, and has room."""
    folder = next(each for each in (home, *home.parents) if each.exists())
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        return Check("disk", State.ERROR, f"{folder} cannot be written", "set NIGHTMILL_HOME to a folder of your own")
    free = shutil.disk_usage(folder).free
    text = f"{free / GIB:.1f} GiB free for {home}"
    if free >= LEAST_DISK:
        return Check("disk", State.OK, text)
    return Check("disk", State.WARNING, text, "make room, or set NIGHTMILL_HOME to another disk")


def model(settings: Settings) -> Check:
    """Whether the model of jobs that name none is here."""
    if settings.engine_factory:
        return Check("model", State.OK, f"{settings.model}, by {settings.engine_factory}")
    try:
        path = model_files.find(settings.model, settings)
    except ModelMissing as error:
        fetched = settings.model in model_files.CATALOG
        advice = f"nightmill models pull {settings.model}" if fetched else "set NIGHTMILL_MODEL to one that is here"
        return Check("model", State.WARNING if fetched else State.ERROR, str(error), advice)
    return Check("model", State.OK, f"{settings.model}: {path}")


def database(settings: Settings) -> Check:
    """Whether the ledger answers. A SQLite file that is not there yet is not made."""
    path = None if settings.database_url else settings.home / "nightmill.db"
    if path is not None and not path.exists():
        return Check("database", State.OK, f"{path} will be made at the first start")
    try:
        engine = connect(settings.database)
        found = revision(engine)
        engine.dispose()
    except (SQLAlchemyError, ArgumentError, ValueError, OSError) as error:
        advice = "start it, or correct NIGHTMILL_DATABASE_URL"
        return Check("database", State.ERROR, str(error).strip().splitlines()[0], advice)
    place = shown(engine.url.render_as_string())
    if found is not None and found > NEWEST:
        return Check("database", State.ERROR, f"{place} is at {found}, made by a newer Nightmill", "install that one")
    note = "" if found == NEWEST else "; its tables will be brought up to date at the next start"
    return Check("database", State.OK, f"{place} answers{note}")


def queue(settings: Settings) -> Check:
    """Whether the broker answers, or which one would be started."""
    if settings.redis_url:
        try:
            RedisQueue(settings.redis_url).check()
        except QueueError as error:
            text = f"{shown(settings.redis_url)}: {str(error) or 'no answer'}"
            return Check("broker", State.ERROR, text, "start it, or unset REDIS_URL for an embedded one")
        return Check("broker", State.OK, f"{shown(settings.redis_url)} answers")
    server = broker.find_server()
    if server is None:
        return Check("broker", State.WARNING, "fakeredis will be started", broker.FAKE_WARNING)
    return Check("broker", State.OK, f"{server[0]} will be started: {server[1]}")


def service(settings: Settings) -> Check:
    running = lock.running(settings.home)
    return Check("service", State.OK, f"runs at {running.url}" if running else "none runs for this home")
