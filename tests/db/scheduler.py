"""A scheduler of the test with several: `python -m tests.db.scheduler URL HOME BEGIN UNTIL SEED`.

It prints how often it died. Its clock runs half an hour per sweep. One transaction in twenty ends with the process,
before its commit; the next one goes on at that moment.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import sys
from pathlib import Path

import sqlalchemy
from sqlalchemy import event, update

from db import firing
from db.models import Job, JobStatus
from db.session import connect, session_factory
from db.settings import Settings

CRASHES, STEP_SECONDS, DIED = 0.05, 1800.0, 7


def now_of(clock: mmap.mmap) -> float:
    return float(struct.unpack("d", clock[:8])[0])


def live(url: str, home: Path, clock: mmap.mmap, until: float, chance: random.Random) -> None:
    """Sweep from the clock's time on until the end, or a crash."""
    engine = connect(url)

    @event.listens_for(engine, "commit")
    def crash(connection: sqlalchemy.Connection) -> None:
        calm = now_of(clock) > until - STEP_SECONDS  # the last sweep finishes what the dead left behind
        if not calm and chance.random() < CRASHES:
            os._exit(DIED)

    sessions, settings = session_factory(engine), Settings(home=home, data_roots=(home,), database_url=url)
    while (now := now_of(clock)) <= until:
        firing.sweep(sessions, settings, clock=lambda session, now=now: now)  # type: ignore[misc]
        with sessions.begin() as session:  # every job is as quick as that
            session.execute(update(Job).values(status=JobStatus.COMPLETED))
        clock[:8] = struct.pack("d", now + STEP_SECONDS)
    os._exit(0)


def main(url: str, home: str, begin: float, until: float, seed: int) -> None:
    clock = mmap.mmap(-1, 8)  # outlives each life
    clock[:8] = struct.pack("d", begin)
    deaths = 0
    while True:
        process = os.fork()
        if process == 0:
            live(url, Path(home), clock, until, random.Random(seed * 1000 + deaths))
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code != DIED:
            print(deaths)
            sys.exit(code)
        deaths += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
