"""`python -m worker`: one worker process with the settings of the environment.

The same as `celery -A worker.app worker -P threads -c N -Q nightmill --without-gossip --without-mingle`.
"""

from __future__ import annotations

import os

from db.settings import Settings
from worker.app import app
from worker.tasks import QUEUE


def main() -> None:
    settings = Settings()
    app.worker_main(
        [
            "worker",
            "--pool=threads",
            f"--concurrency={settings.worker_threads}",
            f"--queues={QUEUE}",
            f"--hostname=nightmill-{os.getpid()}@%h",
            f"--loglevel={settings.log_level}",
            "--without-gossip",
            "--without-mingle",
        ]
    )


if __name__ == "__main__":
    main()
