"""An object store that fails, stalls, cuts connections and loses replies; and the store's own races."""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest

from db.models import JobStatus
from db.stores import S3Path, store_of
from db.stores.s3 import S3Store
from tests.db.ledger import together
from tests.faults.buckets import SeaweedServer
from tests.faults.rig import SEED, Rig
from tests.faults.tally import Report
from tests.s3_server import keys

pytestmark = pytest.mark.faults
PIECE = 5 << 20


class BadWire:
    """Carries requests to a store. Of ten, one is refused, one cut off half sent, one carried out and its reply lost,
    one late."""

    def __init__(self, endpoint: str, seed: int) -> None:
        wire, target, luck = self, urlsplit(endpoint), random.Random(seed)
        self.faults: Counter[str] = Counter()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                with lock:
                    fault = luck.choice(["refused", "cut", "lost", "late", *[""] * 6])
                    wire.faults[fault] += 1
                length = int(self.headers.get("Content-Length") or 0)
                if self.headers.get("Expect") == "100-continue":
                    self.send_response_only(100)
                    self.end_headers()
                if fault == "cut":
                    self.rfile.read(length // 2)
                    self.hang_up()
                    return
                body = self.rfile.read(length)
                if fault == "refused":
                    self.answer(503, [], b"<Error><Code>SlowDown</Code></Error>")
                    return
                if fault == "late":
                    time.sleep(0.5)
                store = http.client.HTTPConnection(str(target.hostname), target.port, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "expect"}
                store.request(self.command, self.path, body, headers)
                reply = store.getresponse()
                data = reply.read()
                store.close()
                if fault == "lost":
                    self.hang_up()
                    return
                self.answer(reply.status, reply.getheaders(), data, reply.getheader("Content-Length"))

            def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, size: str | None = None) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", size if self.command == "HEAD" and size else str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def hang_up(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing: the faults are counted."""

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815 - http.server's own names

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A client that was hung up on hangs up too."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def wire(seaweed: SeaweedServer) -> Iterator[BadWire]:
    made = BadWire(seaweed.endpoint, SEED)
    yield made
    made.close()


def test_a_store_that_fails_stalls_cuts_and_loses_replies(
    rig_on: Callable[..., Rig], sea_bucket: S3Path, wire: BadWire, report: Report
) -> None:
    rig = rig_on(bucket=sea_bucket, s3_endpoint=wire.endpoint, max_attempts=20)
    rig.submit(1200)
    rig.hire(2)
    job = rig.wait()
    assert (job.status, job.rows_succeeded) == (JobStatus.COMPLETED, 1200), rig.crew.log.read_text()[-4000:]
    outcome = rig.check(1200)
    assert keys(sea_bucket / "job-out") == ["_SUCCESS", "_manifest.json", *(f"part-0000{i}.parquet" for i in range(6))]
    uploads = store_of(sea_bucket)._client.call("list_multipart_uploads", sea_bucket)  # type: ignore[attr-defined]
    assert uploads.get("Uploads", []) == []
    assert min(wire.faults[fault] for fault in ("refused", "cut", "lost", "late")) > 0, wire.faults
    report.add("an object store of whose requests 3 of 10 fail and 1 of 10 is late", outcome, number=21)


@pytest.mark.parametrize("size", [1000, 2 * PIECE + 100])
def test_of_writers_at_once_one_wins(sea_bucket: S3Path, size: int) -> None:
    store = S3Store(sea_bucket.service, whole_bytes=PIECE)
    for round_ in range(3):
        place = sea_bucket / f"part-{round_}"
        data = [bytes([n]) * size for n in range(6)]
        made = together(6, lambda n, place=place, data=data: store.create(place, lambda f: f.write(data[n]) and None))  # type: ignore[misc]
        assert [published.created for published in made].count(True) == 1
        assert len({published.sha256 for published in made}) == 1
    assert keys(sea_bucket) == ["part-0", "part-1", "part-2"]
    assert store._client.call("list_multipart_uploads", sea_bucket).get("Uploads", []) == []
