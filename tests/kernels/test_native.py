"""Building the native library: once, atomically, with the old compilers' and CPUs' ways as well, or not at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kernels import native
from kernels.native import NoLibrary, compiler
from kernels.native.library import open_library

needs_native = pytest.mark.skipif(not native.available(), reason=f"no native code: {native.reason()}")


@needs_native
def test_a_second_build_finds_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = compiler.build(folder=tmp_path)
    monkeypatch.setattr(compiler, "_run", lambda command: pytest.fail("compiled again"))
    assert compiler.build(folder=tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == [first.name]


@pytest.mark.slow
@needs_native
def test_builds_at_the_same_time_do_not_hurt_each_other(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from kernels.native.compiler import build; print(build(folder=pathlib.Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(compiler.__file__).parents[2]
    running = [subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {Path(process.communicate(timeout=250)[0].strip()) for process in running}
    assert len(paths) == 1
    assert list(tmp_path.iterdir()) == list(paths)
    open_library(paths.pop())


def test_without_a_compiler_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(NoLibrary) as caught:
        compiler.build(folder=tmp_path)
    assert caught.value.reason == "no C++ compiler was found (g++, clang++, c++)"


def test_an_older_cpu_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "cpu_features", lambda: frozenset({"avx"}))
    monkeypatch.setattr(compiler.shutil, "which", lambda name: f"/usr/bin/{name}")
    with pytest.raises(NoLibrary, match="AVX2"):
        compiler.build(folder=tmp_path)


@needs_native
def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(NoLibrary, match=r"failed: .*no-such-flag"):
        compiler.build(folder=tmp_path, flags=("--no-such-flag",))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    if compiler.cpu_features().issuperset(compiler.FEATURES):
        with pytest.raises(NoLibrary, match="cannot be written"):
            compiler.build(folder=tmp_path / "file")


def test_a_broken_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "native.so").write_bytes(b"no library")
    with pytest.raises(NoLibrary, match="cannot be loaded"):
        open_library(tmp_path / "native.so")
