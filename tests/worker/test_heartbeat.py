"""The thread that renews a lease."""

from __future__ import annotations

import threading

from sqlalchemy.exc import OperationalError

from db.shards import Beat
from worker.heartbeat import Heartbeat


def test_beats_go_on_after_a_verdict_until_the_lease_is_lost() -> None:
    """To write what is finished takes as long as it takes."""
    answers, beaten = [Beat.OK, Beat.EXPIRE, Beat.EXPIRE, Beat.OK, Beat.LOST, Beat.OK], threading.Event()
    given: list[Beat] = []

    def beat() -> Beat:
        given.append(answers[len(given)])
        if len(given) == 3:
            raise OperationalError("", None, Exception("the database is away"))
        if given[-1] is Beat.LOST:
            beaten.set()
        return given[-1]

    with Heartbeat(beat, 0.03) as heart:
        assert beaten.wait(10)
        heart._thread.join(10)
        assert heart.verdict is Beat.LOST
    assert given == answers[:5]


def test_the_first_verdict_stays() -> None:
    several, count = threading.Event(), [0]

    def beat() -> Beat:
        count[0] += 1
        if count[0] > 3:
            several.set()
        return Beat.CANCEL if count[0] == 1 else Beat.OK

    with Heartbeat(beat, 0.03) as heart:
        assert several.wait(10)
        assert heart.verdict is Beat.CANCEL
