"""`python -m worker.machine`: what the engine finds on this machine, as one JSON object. `nightmill doctor` asks it."""

from __future__ import annotations

import json
from dataclasses import asdict

from engine.machine import Machine


def main() -> None:
    print(json.dumps(asdict(Machine.here())))


if __name__ == "__main__":
    main()
