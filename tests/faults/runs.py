"""Run the fault suite several times, each with a seed of its own, and write docs/faults.md. `make faults`

Exits with 1 when a test failed in any run, or was not run. The page is written all the same, and says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.tally import page, table

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=int(os.environ.get("RUNS") or 3))
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next ones count on")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side; each has servers of its own")
    parser.add_argument("--minutes", type=float, default=120, help="of a run; what has not begun by then is not run")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "faults.md")
    given = parser.parse_args()
    first = given.seed or random.SystemRandom().randrange(1, 1 << 30)
    seeds, started = range(first, first + given.runs), time.monotonic()
    print(f"{given.runs} runs, seeds {', '.join(map(str, seeds))}", flush=True)
    with ThreadPoolExecutor(given.at_once) as pool:
        runs = list(pool.map(lambda seed: run(seed, given.minutes), seeds))
    given.page.write_text(page(runs, conditions(time.monotonic() - started, given.at_once)))
    print(table(runs))
    failed, not_run = ([name for each in runs for name in each[what]] for what in ("failed", "not_run"))
    print(f"{given.runs} runs, {len(failed)} failures {sorted(set(failed))}, {len(not_run)} times a test was not run")
    return int(bool(failed or not_run))


def run(seed: int, minutes: float) -> dict[str, Any]:
    """What one run of pytest reports; a run that ends without a report counts as failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        environment = {**os.environ, "NIGHTMILL_FAULT_SEED": str(seed), "NIGHTMILL_FAULTS_REPORT": str(report)}
        options = ["-m", "faults", "--timeout", "900", "--session-timeout", str(60 * minutes)]
        options += ["--basetemp", f"{folder}/tests", "tests/faults"]
        command = [sys.executable, "-m", "pytest", *options]
        status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if not report.exists():
            lost = {"lines": {}, "skipped": {}, "not_run": []}
            return {"seed": seed, "failed": [f"pytest ended with {status}"], **lost}
        seen: dict[str, Any] = json.loads(report.read_text())
        if status and not (seen["failed"] or seen["not_run"]):
            seen["failed"] = [f"pytest ended with {status}"]
        return seen


def conditions(seconds: float, at_once: int) -> str:
    day = datetime.datetime.now(datetime.UTC).date()
    load = os.getloadavg()[2] if hasattr(os, "getloadavg") else 0.0
    minutes = seconds / 60
    return (
        f"{day}, {os.cpu_count()} processors, load {load:.1f} over the last 15 minutes, {minutes:.0f} minutes in all."
    )


if __name__ == "__main__":
    sys.exit(main())
