"""From the sources in src/ to a shared library for this very machine, built once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent / "src"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++20",
    "-fPIC",
    "-pthread",
    # A row's bits must not depend on which loop the compiler chose to fuse a product and a sum in.
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    # GCC 12's own vector headers trip over this one.
    "-Wno-maybe-uninitialized",
)
FEATURES = ("avx2", "fma")
TIMEOUT_S = 300


class NoLibrary(Exception):
    """There is no native library on this machine; `reason` says why in one line."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def build(*, folder: Path | None = None, flags: tuple[str, ...] = ()) -> Path:
    """The library's path, compiled first where it is not there yet. `flags` are added to FLAGS (tests).

    Two processes may build at once: each writes under a name of its own, and renaming is atomic. Raises NoLibrary.
    """
    compiler = _compiler()
    features = cpu_features()
    if not features.issuperset(FEATURES):
        raise NoLibrary("the CPU is not of the x86 family with AVX2 and FMA")
    folder = folder if folder is not None else _cache_folder()
    path = folder / f"native-{_fingerprint(compiler, flags, features)}.so"
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
            _compile(compiler, (*FLAGS, *flags), Path(scratch)).replace(path)
    except OSError as error:
        raise NoLibrary(f"{folder} cannot be written: {error}") from error
    return path


@cache
def cpu_features() -> frozenset[str]:
    """What the CPU can do, in the words of /proc/cpuinfo. Empty where that is not told or it is no x86."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def _compiler() -> str:
    for name in COMPILERS:
        found = shutil.which(name)
        if found is not None:
            return found
    raise NoLibrary(f"no C++ compiler was found ({', '.join(COMPILERS)})")


def _cache_folder() -> Path:
    try:
        return Path.home() / ".cache" / "nightmill" / "native"
    except RuntimeError as error:
        raise NoLibrary(f"no home folder to keep the library in: {error}") from error


def _fingerprint(compiler: str, flags: tuple[str, ...], features: frozenset[str]) -> str:
    """16 hex digits that change with whatever the library depends on."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    size_and_time = os.stat(compiler)
    parts = [compiler, str(size_and_time.st_size), str(size_and_time.st_mtime_ns), *FLAGS, *flags, *sorted(features)]
    digest.update("\0".join(parts).encode())
    return digest.hexdigest()[:16]


def _compile(compiler: str, flags: tuple[str, ...], scratch: Path) -> Path:
    """Compile every source file on its own, several at once, and link them."""
    sources = sorted(SOURCES.glob("*.cpp"))
    objects = [scratch / f"{source.stem}.o" for source in sources]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        commands = [
            [compiler, *flags, "-c", str(source), "-o", str(target)]
            for source, target in zip(sources, objects, strict=True)
        ]
        list(pool.map(_run, commands))
    library = scratch / "native.so"
    _run([compiler, *flags, "-shared", *map(str, objects), "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)  # noqa: S603 - own arguments
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoLibrary(f"{command[0]} cannot be run: {error}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or [f"exit status {done.returncode}"]
        raise NoLibrary(f"{command[0]} failed: {lines[0]}")
