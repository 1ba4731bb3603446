"""`python -m api [--fd N]`: the API server alone; settings come from the environment."""

from __future__ import annotations

import argparse
import socket

from api.app import serve
from db.settings import Settings

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m api")
    parser.add_argument("--fd", type=int, help="Number of an inherited socket that listens already.")
    number = parser.parse_args().fd
    serve(Settings(), None if number is None else socket.socket(fileno=number))
