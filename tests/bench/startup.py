"""How fast the API starts, and that it imports neither torch nor Celery's worker.

    python -m tests.bench.startup

Exits 1 above 2 s (the best of five starts, from the process's birth to the first answer of /healthz) or when a
forbidden module is imported. Prints the time last.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
FORBIDDEN = ("torch", "triton", "engine", "worker", "celery.worker", "celery.apps.worker")
MOST_SECONDS = 2.0
STARTS = 5


def imported() -> list[str]:
    """Forbidden modules in the import trace of the API."""
    command = [sys.executable, "-X", "importtime", "-c", "import api.app"]
    trace = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    names = [line.rpartition("|")[2].strip() for line in trace.splitlines() if line.startswith("import time:")]
    return [name for name in names if any(name == each or name.startswith(f"{each}.") for each in FORBIDDEN)]


def start_seconds(home: Path) -> float:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        environment = {**os.environ, "NIGHTMILL_HOME": str(home), "REDIS_URL": "redis://127.0.0.1:1/0"}
        command = [sys.executable, "-m", "api", "--fd", str(listener.fileno())]
        began = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL
        )
    try:
        httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60).raise_for_status()
        return time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(20)


def main() -> int:
    names = imported()
    if names:
        print(f"import api.app imports {', '.join(names)}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        start_seconds(Path(folder))  # makes the database and warms the file cache
        best = min(start_seconds(Path(folder)) for _ in range(STARTS))
    print(f"neither torch nor a worker imported; first answer after {best:.2f} s")
    return int(best > MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
