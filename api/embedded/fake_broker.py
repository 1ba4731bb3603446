"""`python -m api.embedded.fake_broker PORT`: fakeredis over TCP, the last resort of the embedded broker."""

from __future__ import annotations

import sys

from fakeredis import TcpFakeServer

if __name__ == "__main__":
    TcpFakeServer(("127.0.0.1", int(sys.argv[1]))).serve_forever()
