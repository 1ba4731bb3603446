"""A worker is killed every ten seconds: what is lost, doubled and computed again. `python -m tests.bench.kills`

Two workers on the fake model, SQLite and a Redis of the command's own. Exits with 1 when a row is lost or doubled, or
when 2 % of the rows or more were computed twice. The figure comes last.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.rig import SEED, Rig
from tests.faults.servers import RedisServer

MOST_REDONE = 0.02


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--every", type=float, default=10.0, help="Seconds between two kills.")
    parser.add_argument("--seed", type=int, default=SEED)
    given = parser.parse_args()
    redis = RedisServer()
    redis.start()
    with tempfile.TemporaryDirectory(prefix="nightmill-kills-") as folder:
        settings = {"shard_rows": 1000, "lease_seconds": 3}
        rig = Rig(Path(folder), f"sqlite:///{folder}/ledger.db", redis.url, given.seed, settings)
        try:
            rig.submit(given.rows)
            rig.hire(2)
            started, kills = time.monotonic(), 0
            while not rig.office.job().status.terminal:
                time.sleep(0.2)
                if time.monotonic() - started > given.every * (kills + 1):
                    rig.kill(rig.random.randrange(2))
                    kills += 1
            seconds = time.monotonic() - started
            outcome, job = rig.check(given.rows), rig.office.job()
        finally:
            rig.close()
            redis.kill()
    share = outcome.redone / given.rows
    print(f"seed {given.seed}: {job.status.value} after {seconds:.0f} s and {kills} kills")
    good = job.status.value == "completed" and job.rows_succeeded == given.rows and share < MOST_REDONE and kills > 0
    print(f"{outcome.lost} lost, {outcome.doubled} doubled, {share:.2%} of {given.rows:,} rows computed twice")
    return 0 if good and not outcome.lost and not outcome.doubled else 1


if __name__ == "__main__":
    sys.exit(main())
