"""`python -m worker.alive`: whether a worker of this host reported itself lately. For health checks of containers."""

from __future__ import annotations

import socket
import sys

from db.session import connect, session_factory
from db.settings import Settings
from db.workers import workers

SECONDS = 120.0


def alive(settings: Settings) -> bool:
    """Names of workers begin with their host's. Raises what the database raises."""
    database = connect(settings.database)
    try:
        with session_factory(database).begin() as session:
            return any(each.name.startswith(f"{socket.gethostname()}:") for each in workers(session, seconds=SECONDS))
    finally:
        database.dispose()


if __name__ == "__main__":
    sys.exit(0 if alive(Settings()) else 1)
