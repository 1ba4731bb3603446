"""The other published clients, each in an environment of its own: two versions cannot live in one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.api.openai.rig import REPOSITORY, service

LITELLM = Path(__file__).parent / "litellm_calls.py"


def environment_with(folder: Path, requirement: str) -> Path:
    """The Python of a new environment that has this package, and ours behind it."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", requirement], check=True, timeout=900)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "behind.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.54", "3.57"])
def test_both_major_versions(version: str, tmp_path: Path) -> None:
    python = environment_with(tmp_path / "venv", f"openai=={version}.*")
    found = subprocess.run([python, "-c", "import openai; print(openai.__version__)"], capture_output=True, text=True)
    assert found.stdout.startswith(version), found.stderr
    tests = ["tests/api/openai/test_clients.py", "tests/api/openai/test_docs.py"]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:]
    print(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_litellm(tmp_path: Path) -> None:
    """Its calls for files and batches. Its own environment keeps its many requirements away from ours."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "litellm>=1.60"], check=True, timeout=900)
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with service() as url:
        command = [python, LITELLM, f"{url}/v1"]
        environment = {**kept, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.strip().splitlines()[-1] == "completed LITELLM SAYS HELLO"
    assert sys.executable != str(python)
