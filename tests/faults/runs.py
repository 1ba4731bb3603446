"""Run the fault suite several times, each with a seed of its own, and write docs/faults.md. `make faults`

Three runs with inputs and outputs on this machine's disks and one with them in a bucket of SeaweedFS. With --keep, what
each run saw is kept in a folder, and the page is about all that lies there: runs may be done one by one.
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
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tests.faults.catalogue import ELSEWHERE
from tests.faults.tally import page, table

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=int(os.environ.get("RUNS") or 3))
    parser.add_argument("--bucket-runs", type=int, default=int(os.environ.get("BUCKET_RUNS") or 1))
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next ones count on")
    parser.add_argument("--at-once", type=int, default=1, help="runs side by side; each has servers of its own")
    parser.add_argument("--minutes", type=float, default=120, help="of a run; what has not begun by then is not run")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "faults.md")
    parser.add_argument("--keep", type=Path, help="folder of reports: these runs' are added, the page is about all")
    given = parser.parse_args()
    first = given.seed or random.SystemRandom().randrange(1, 1 << 30)
    stores = ["disk"] * given.runs + ["s3"] * given.bucket_runs
    print(f"{len(stores)} runs, seeds from {first} on", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        reports: Path = given.keep or Path(scratch)
        reports.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(given.at_once) as pool:
            for seen in pool.map(lambda n: run(first + n, stores[n], given.minutes), range(len(stores))):
                (reports / f"{seen['began']:.0f}-{seen['seed']}.json").write_text(json.dumps(seen, indent=1))
        runs = [json.loads(path.read_text()) for path in sorted(reports.iterdir())]
    given.page.write_text(page(runs))
    failed, not_run = ([name for each in runs for name in each[what]] for what in ("failed", "not_run"))
    print(table(runs))
    print(f"{len(runs)} runs, {len(failed)} failures {sorted(set(failed))}, {len(not_run)} times a test was not run")
    return int(bool(failed or not_run))


def run(seed: int, store: str, minutes: float) -> dict[str, Any]:
    """What one run of the suite reports, and under which conditions; a run that ends without a report has failed."""
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        environment = {**os.environ, "NIGHTMILL_FAULT_SEED": str(seed), "NIGHTMILL_FAULTS_REPORT": str(report)}
        environment["NIGHTMILL_FAULTS_STORE"] = store
        options = ["-m", "faults", "--timeout", "900", "--session-timeout", str(60 * minutes)]
        status = pytest(Path(folder), environment, *options, "tests/faults")
        seen: dict[str, Any] = {"lines": {}, "failed": [], "skipped": {}, "not_run": []}
        if report.exists():
            seen = json.loads(report.read_text())
        if status and not (seen["failed"] or seen["not_run"]):
            seen["failed"] = [f"pytest ended with {status}"]
        seen["elsewhere"] = {} if store == "s3" else elsewhere(Path(folder), environment, seen["failed"])
    day = datetime.datetime.fromtimestamp(began, datetime.UTC).date()
    conditions = {"day": str(day), "processors": os.cpu_count(), "load": os.getloadavg()[2]}
    return {**seen, **conditions, "seed": seed, "store": store, "began": began, "seconds": time.time() - began}


def elsewhere(folder: Path, environment: dict[str, str], failed: list[str]) -> dict[str, int]:
    """Run the tests that other folders have of some faults: how many passed of each fault's. Adds to `failed`."""
    passed: Counter[str] = Counter()
    for number, files in ELSEWHERE.items():
        report = folder / "junit.xml"
        status = pytest(folder, environment, "-m", "slow or not slow", f"--junitxml={report}", *files)
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
        passed[str(number)] = sum(1 for case in cases if not len(case))
        if status:
            failed.append(f"{' '.join(files)} (pytest ended with {status})")
    return dict(passed)


def pytest(folder: Path, environment: dict[str, str], *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "--basetemp", f"{folder}/tests", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
