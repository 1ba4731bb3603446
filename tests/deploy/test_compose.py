"""compose.yaml, the Dockerfile and deploy/secrets.sh: what a production set-up must have, checked without an engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from db.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = ("migrate", "api", "worker", "worker-gpu")
MONITORING = ("prometheus", "grafana", "flower")
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def stages() -> dict[str, str]:
    """The instructions of each stage by its name, those of the stage that it builds on first."""
    found: dict[str, str] = {}
    pattern = re.compile(r"^FROM (\S+) AS (\S+)\n(.*?)(?=^FROM |\Z)", re.MULTILINE | re.DOTALL)
    for base, name, body in pattern.findall(DOCKERFILE):
        found[name] = found.get(base, "") + body
    return found


def test_there_is_what_a_production_set_up_needs() -> None:
    assert set(SERVICES) == {*OURS, "redis", "postgres", "s3", *MONITORING}
    profiles = {name: service["profiles"] for name, service in SERVICES.items() if "profiles" in service}
    assert profiles == {"worker-gpu": ["gpu"], "s3": ["s3"], **{name: ["monitoring"] for name in MONITORING}}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined(name: str) -> None:
    service = SERVICES[name]
    user = service["user"].split(":")
    assert all(part.isdigit() and int(part) > 0 for part in user), "not root, and told by number"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"(\$\{\w+:-)?\d+[mg]\}?", service["mem_limit"])
    assert service["pids_limit"] > 0
    assert service["logging"]["options"]["max-size"], "logs do not fill the disk"
    assert not service.get("privileged")
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", service["image"]), "a version, not `latest`"


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_service_that_stays_is_looked_after(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert check["timeout"]


def test_the_migration_runs_once_before_api_and_workers() -> None:
    assert (SERVICES["migrate"]["command"], SERVICES["migrate"]["restart"]) == (["migrate"], "no")
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    for name in ("api", "worker", "worker-gpu"):
        assert SERVICES[name]["depends_on"] == {
            "migrate": {"condition": "service_completed_successfully"},
            "redis": {"condition": "service_healthy"},
        }


def test_what_people_look_at_is_published_on_loopback_and_with_keys() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    ports = {"api": 8642, "grafana": 3000, "flower": 5555}
    assert published == {name: [f"127.0.0.1:{port}:{port}"] for name, port in ports.items()}
    assert SERVICES["grafana"]["secrets"] == ["grafana_password"]
    assert '--basic-auth="nightmill:$$(cat /run/secrets/flower_password)"' in SERVICES["flower"]["entrypoint"][2]
    assert SERVICES["api"]["environment"]["NIGHTMILL_AUTH"] == "true"
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert {name: service["networks"] for name, service in SERVICES.items() if service["networks"] != ["inside"]} == {
        name: ["inside", "outside"] for name in ports
    }


def test_what_must_outlive_a_container_lies_in_a_volume() -> None:
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]
    assert "--appendonly yes" in SERVICES["redis"]["command"][2]
    assert "--maxmemory-policy noeviction" in SERVICES["redis"]["command"][2]
    assert SERVICES["postgres"]["volumes"] == ["postgres:/var/lib/postgresql/data"]
    assert SERVICES["s3"]["volumes"] == ["s3:/store"]
    assert all("home:/home/nightmill/.nightmill" in SERVICES[name]["volumes"] for name in OURS)
    assert "prometheus:/prometheus" in SERVICES["prometheus"]["volumes"]
    assert "grafana:/var/lib/grafana" in SERVICES["grafana"]["volumes"]
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert set(COMPOSE["volumes"]) == {name for name in used if re.fullmatch(r"\w+", name)}


def test_a_gpu_worker_has_one_gpu() -> None:
    service = SERVICES["worker-gpu"]
    assert service["build"]["target"] == "cuda"
    assert service["environment"]["NIGHTMILL_ENGINE_DEVICE"] == "cuda"
    assert service["deploy"]["resources"]["reservations"]["devices"] == [
        {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    ]


def test_secrets_come_from_files_and_stand_nowhere_else() -> None:
    for service in SERVICES.values():
        environment = service.get("environment", {})
        named = {name for name in environment if re.search("PASSWORD|SECRET|KEY|URL|TOKEN", name)}
        assert named <= {"POSTGRES_PASSWORD_FILE", "GF_SECURITY_ADMIN_PASSWORD__FILE"}
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert all(secret["file"].startswith("./secrets/") for secret in COMPOSE["secrets"].values())
    assert "/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert "secrets" in (ROOT / ".dockerignore").read_text().splitlines()
    settings = {f"nightmill_{name}" for name in Settings.model_fields}
    assert {name for name in COMPOSE["secrets"] if name.startswith("nightmill_")} <= settings


def test_every_setting_that_is_set_exists() -> None:
    for service in SERVICES.values():
        named = [name for name in service.get("environment", {}) if name.startswith("NIGHTMILL_")]
        assert [name for name in named if name.removeprefix("NIGHTMILL_").lower() not in Settings.model_fields] == []


def test_the_secrets_are_made_once_and_read_as_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    for name in ("NIGHTMILL_DATABASE_URL", "DATABASE_URL", "NIGHTMILL_REDIS_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    made = []
    for _ in range(2):
        subprocess.run(["sh", str(tmp_path / "deploy" / "secrets.sh")], check=True, timeout=60)
        made.append({path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()})
    assert made[0] == made[1]
    assert set(made[0]) == {Path(secret["file"]).name for secret in COMPOSE["secrets"].values()}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    settings = Settings(_secrets_dir=tmp_path / "secrets")  # type: ignore[call-arg]
    url = make_url(settings.database_url)
    assert (url.drivername, url.host, url.username) == ("postgresql+psycopg", "postgres", "nightmill")
    assert url.password == made[0]["postgres_password"]
    assert len(made[0]["postgres_password"]) == 48
    assert settings.redis_url == f"redis://:{made[0]['redis_password']}@redis:6379/0"
    keys = json.loads(made[0]["s3_config"])["identities"][0]["credentials"][0]
    assert f"aws_secret_access_key = {keys['secretKey']}\n" in made[0]["aws_credentials"]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_an_image_runs_as_nobody_in_particular(target: str) -> None:
    body = stages()[target]
    assert re.findall(r"^USER (\S+)", body, re.MULTILINE) == ["nightmill"]
    assert "--uid 10001" in body
    assert SERVICES["api"]["user"] == "10001:10001"
    assert 'ENTRYPOINT ["nightmill"]' in body
    installs = re.findall(r"pip install [^\n]*", body)
    assert installs
    assert all("--no-cache-dir" in line for line in installs)
    for package in ("api", "worker", "engine", "kernels", "db"):
        assert f"COPY {package} {package}\n" in body
    for source in re.findall(r"^COPY (.*) \S+$", body, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())
    assert not re.search(r"^ADD |:latest|curl [^\n]*\| *(ba)?sh", body, re.MULTILINE)


def test_the_targets_that_compose_builds_exist() -> None:
    built = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert built == {"cpu", "cuda"} <= set(stages())
