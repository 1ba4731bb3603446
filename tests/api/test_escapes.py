"""Escapes: whatever a client of one tenant sends, nothing outside its folders is read, written or told of, and no host
is called. Every case has its canary: a file that stays unread and unchanged, and a server that nobody calls.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from jinja2 import TemplateError

from api.app import create_app
from db import json_schemas
from db.settings import Settings
from db.templates import renderer
from tests.api.conftest import MemoryQueue
from tests.api.gate import MISSING, Gate
from tests.api.ledger import summarize, write

CANARY = "canary-4f1c"


@dataclass
class Prison:
    """The tenant acme, what lies around its folder, and a server that counts who comes."""

    gate: Gate
    mine: Path
    outside: Path
    port: int
    hits: list[str] = field(default_factory=list)

    def spell(self, text: str) -> str:
        places = {"MINE": self.mine, "OUT": self.outside, "PORT": self.port, "HOME": self.gate.services.settings.home}
        for name, value in places.items():
            text = text.replace(f"<{name}>", str(value))
        return text

    def files(self) -> dict[str, bytes]:
        """Everything that lies outside, links included."""
        return {str(path): path.read_bytes() for path in sorted(self.outside.rglob("*")) if path.is_file()}

    def refused(self, answer: httpx.Response) -> None:
        assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
        assert CANARY not in answer.text


@pytest.fixture(scope="module")
def prison(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prison]:
    hits: list[str] = []

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            hits.append(self.path)
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()

        do_HEAD = do_POST = do_PUT = do_OPTIONS = do_GET  # noqa: N815 - named by the standard library

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = tmp_path_factory.mktemp("prison")
    settings = Settings(
        home=place / "home", database_url=f"sqlite:///{place / 'db'}", sweep_seconds=3600, auth=True,
        submissions_per_minute=100_000,
    )  # fmt: skip
    app = create_app(settings, MemoryQueue())
    with TestClient(app, raise_server_exceptions=False) as http:
        gate = Gate(http, app.state.services, place / "tenants")
        yield Prison(gate, gate.folder / "acme", _outside(gate.folder), server.server_port, hits)
    server.shutdown()
    server.server_close()


def _outside(tenants: Path) -> Path:
    """The tenant bolt's folder with a dataset of secrets, and ways to it from inside acme's."""
    outside, mine = tenants / "bolt", tenants / "acme"
    write(mine / "in.parquet", 3)
    for name in ("secret.parquet", ".parquet", "a b.parquet"):
        pq.write_table(pa.table({"text": [CANARY]}), outside / name)
    (outside / "model").mkdir()
    (outside / "model" / "config.json").write_text(json.dumps({"canary": CANARY}))
    (outside / "empty").mkdir()
    (tenants / "acme-other").mkdir()
    pq.write_table(pa.table({"text": [CANARY]}), tenants / "acme-other" / "x.parquet")
    (mine / "link.parquet").symlink_to(outside / "secret.parquet")
    (mine / "relative.parquet").symlink_to("../bolt/secret.parquet")
    (mine / "door").symlink_to(outside)
    (mine / "twice").symlink_to("door")
    (mine / "loop").symlink_to("loop")
    (mine / "proc").symlink_to("/proc/self/cwd")
    (mine / "folder").mkdir()
    (mine / "folder" / "x.parquet").symlink_to(outside / "secret.parquet")
    (mine / "full").mkdir()
    (mine / "full" / "file").touch()
    return outside


READS = [
    "<OUT>/secret.parquet", "<OUT>", "<OUT>/", "/<OUT>/secret.parquet", "<OUT>/none.parquet", "/", "/etc/passwd",
    "/proc/self/environ", "/proc/self/fd/0", "/dev/zero", "/dev/stdin", "<MINE>/../bolt/secret.parquet",
    "<MINE>/x/../../bolt/secret.parquet", "<MINE>/./../bolt/secret.parquet", "<MINE>/..",
    "<MINE>/../acme-other/x.parquet", "<MINE>-other/x.parquet", "../bolt/secret.parquet", "secret.parquet",
    "~/secret.parquet", "~root/x.parquet", "$HOME/x.parquet", "<MINE>/%2e%2e/bolt/secret.parquet",
    "<MINE>/..%2fbolt/secret.parquet", "<MINE>/..\\bolt\\secret.parquet", "<MINE>/%252e%252e/bolt/secret.parquet",
    "<MINE>/..\u2215bolt/secret.parquet", "<MINE>/\uff0e\uff0e/bolt/secret.parquet", "<MINE>/in.parquet\u0000.png",
    "<MINE>/in.parquet\n<OUT>/secret.parquet", "<MINE>/*/../../bolt/secret.parquet", "<MINE>/link.parquet",
    "<MINE>/relative.parquet", "<MINE>/door", "<MINE>/door/secret.parquet", "<MINE>/twice/secret.parquet",
    "<MINE>/loop", "<MINE>/proc/pyproject.toml", "<MINE>/folder", "<MINE>/folder/x.parquet",
    "file://<OUT>/secret.parquet", "file:<OUT>/secret.parquet", "file://localhost<OUT>/secret.parquet",
    "file:////127.0.0.1/share/x.parquet", "FiLe://<MINE>/%2e%2e/bolt/secret.parquet", "file://<MINE>/in.parquet?x=1",
    "file://<MINE>/in.parquet#x", "file://<MINE>/%00", "//127.0.0.1:<PORT>/x.parquet",
    "\\\\127.0.0.1\\share\\x.parquet", "http://127.0.0.1:<PORT>/x.parquet", "https://127.0.0.1:<PORT>/x.parquet",
    "HTTP://127.0.0.1:<PORT>/x.parquet", "http://[::1]:<PORT>/x.parquet", "http://2130706433:<PORT>/x",
    "http://user:pw@127.0.0.1:<PORT>/x.parquet", "http://169.254.169.254/latest/meta-data/",
    "ftp://127.0.0.1:<PORT>/x.parquet", "gopher://127.0.0.1:<PORT>/x",
    "s3://bucket/x.parquet?endpoint_override=http://127.0.0.1:<PORT>&allow_bucket_creation=true",
    "s3://key:secret@bucket/x.parquet?endpoint_override=127.0.0.1:<PORT>&scheme=http", "s3://bucket/../x.parquet",
    "gs://bucket/x.parquet?endpoint_override=127.0.0.1:<PORT>", "abfs://c@127.0.0.1:<PORT>/x",
    "hdfs://127.0.0.1:<PORT>/x", "viewfs://127.0.0.1:<PORT>/x", "webhdfs://127.0.0.1:<PORT>/x",
    "hf://datasets/x/y.parquet", "github://org:repo@/x", "dask::http://127.0.0.1:<PORT>/x",
    "simplecache::http://127.0.0.1:<PORT>/x", "zip://x::http://127.0.0.1:<PORT>/x.zip",
    "<MINE>/in.parquet::http://127.0.0.1:<PORT>/x", "memory://x", "data:application/octet-stream;base64,UEFSMQ==",
    "jar:file:<OUT>/x!/y", "mock://x", "arrow_hdfs://127.0.0.1:<PORT>/x", "upload://../../bolt/secret", "upload://",
    "upload://..%2f..%2fbolt%2fsecret", "upload://<OUT>/secret", "upload://x?y", "<HOME>/nightmill.db", "<HOME>/data",
    "<HOME>/tenants/bolt/data", "<HOME>/uploads", "<HOME>/tenants/acme/data/../../bolt",
    "<HOME>/tenants/acme/../../data",
]  # fmt: skip


@pytest.mark.parametrize("uri", READS)
def test_an_input_stays_inside(prison: Prison, uri: str) -> None:
    body = {**summarize(Path("x")), "input": prison.spell(uri)}
    prison.refused(prison.gate.call("acme submit", "POST", "/v1/jobs", json=body))
    assert prison.hits == []


WRITES = [
    "<OUT>/new", "<OUT>", "<OUT>/empty", "/tmp/nightmill-escape", "/", "<MINE>/../bolt/new", "<MINE>/..",
    "<MINE>-other/new", "<MINE>/door/new", "<MINE>/door", "<MINE>/twice/new", "<MINE>/proc/new", "<MINE>/loop/new",
    "<MINE>/%2e%2e/bolt/new", "<MINE>/..\\bolt", "<MINE>/new\u0000", "<MINE>/in.parquet", "<MINE>/full", "relative",
    "~/new", "file://<OUT>/new", "file://host<MINE>/new", "http://127.0.0.1:<PORT>/new",
    "s3://bucket/new?endpoint_override=127.0.0.1:<PORT>", "gs://bucket/new?endpoint_override=127.0.0.1:<PORT>",
    "memory://new", "<HOME>/data/new", "<HOME>/tenants/bolt/data/new", "<HOME>/models/new", "upload://new",
]  # fmt: skip


@pytest.mark.parametrize("uri", WRITES)
def test_an_output_stays_inside(prison: Prison, uri: str) -> None:
    before = prison.files()
    body = summarize(prison.mine / "in.parquet", output=prison.spell(uri))
    prison.refused(prison.gate.call("acme submit", "POST", "/v1/jobs", json=body))
    assert prison.hits == []
    assert prison.files() == before
    assert not (prison.outside / "new").exists()


MODELS = [
    "<OUT>/model", "<MINE>/door/model", "<MINE>/../bolt/model", "<OUT>/none", "/etc", "~", "~root/x", "~nobody-here/x",
    "./model", "../bolt/model", "<OUT>/x.gguf", "x\x00.gguf", "<HOME>/data/x.gguf",
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_a_model_by_path_stays_inside(prison: Prison, model: str) -> None:
    body = summarize(prison.mine / "in.parquet", model=prison.spell(model))
    answer = prison.gate.call("acme submit", "POST", "/v1/jobs", json=body)
    prison.refused(answer)
    assert (answer.json()["code"], answer.json()["field"]) == ("model_missing", "model")


NAMES = [
    "../in.parquet", "..%2f..%2fbolt%2fsecret.parquet", "%2e%2e%2fsecret.parquet", "part-00000.parquet%00",
    "_manifest.json%0a", "/etc/passwd", "%2fetc%2fpasswd", "..%5c..%5csecret", "part-00000.parquet",
    "part-00001.parquet", "_tmp", "http:%2f%2f127.0.0.1:<PORT>%2fx",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_result_by_name_stays_inside(prison: Prison, name: str) -> None:
    job = prison.gate.submit("acme submit")
    output = Path(job["output"])
    output.mkdir(parents=True)
    (output / "part-00001.parquet").symlink_to(prison.outside / "secret.parquet")
    answer = prison.gate.call("acme read", "GET", f"/v1/jobs/{job['id']}/results/{prison.spell(name)}")
    prison.refused(answer)
    assert prison.hits == []


@pytest.mark.parametrize("job_id", ["..", "../jobs", "%2e%2e", "job_%00", MISSING + "/../x", "' OR '1'='1", "*", "%"])
def test_a_job_by_id_is_looked_up_and_nothing_else(prison: Prison, job_id: str) -> None:
    answer = prison.gate.call("bolt read", "GET", f"/v1/jobs/{job_id}/results/_SUCCESS")
    prison.refused(answer)


@pytest.mark.parametrize(
    "filename", ["../../bolt/new.parquet", "/etc/new", "..\\new.parquet", "a\x00b", "http://127.0.0.1:<PORT>/x", ""]
)  # fmt: skip
def test_a_file_name_is_no_path(prison: Prison, filename: str) -> None:
    """An upload is taken whatever the client calls it; where it lies is not the client's to say."""
    before = prison.files()
    content = (prison.mine / "in.parquet").read_bytes()
    query = {"filename": prison.spell(filename)}
    answer = prison.gate.call("acme submit", "POST", "/v1/uploads", content=content, params=query)
    assert answer.status_code == 201
    assert not set(answer.json()["filename"]) & set("/\\\0")
    assert prison.files() == before
    assert prison.hits == []


SCHEMAS: list[dict[str, Any]] = [
    {"$ref": "http://127.0.0.1:<PORT>/schema.json"},
    {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:<PORT>/x#/a"}}},
    {"$ref": "file://<OUT>/model/config.json"},
    {"type": "object", "properties": {"a": {"$ref": "../bolt/model/config.json"}}},
    {"$schema": "http://127.0.0.1:<PORT>/meta.json", "type": "object", "properties": {"a": {"type": "string"}}},
    {"$id": "http://127.0.0.1:<PORT>/", "type": "object", "properties": {"a": {"$ref": "x.json"}}},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=[json.dumps(schema)[:60] for schema in SCHEMAS])
def test_a_schema_fetches_nothing(prison: Prison, schema: dict[str, Any]) -> None:
    """A reference to elsewhere is refused, or an error of every row."""
    given = json.loads(prison.spell(json.dumps(schema)))
    body = {"input": str(prison.mine / "in.parquet"), "recipe": {"kind": "extract", "json_schema": given}}
    answer = prison.gate.call("acme submit", "POST", "/v1/jobs", json=body)
    found = json_schemas.problem(json.dumps(given), {"a": 1})
    assert found is not None
    assert CANARY not in found
    if answer.status_code != 202:
        prison.refused(answer)
    assert prison.hits == []


TEMPLATES = [
    "{% include '<OUT>/secret.parquet' %}", "{% import 'os' as os %}", "{% from 'os' import path %}",
    "{% extends '/etc/passwd' %}", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ self.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}", "{{ lipsum.__globals__ }}", "{{ namespace() }}",
    "{{ text|attr('__class__') }}", "{{ text.format(text) }}", "{{ text.format_map({}) }}", "{{ config }}",
    "{{ request.application }}", "{{ get_flashed_messages() }}", "{{ url_for('x') }}", "{% macro m() %}{% endmacro %}",
    "{% call m() %}{% endcall %}", "{% set x %}{% endset %}", "{% filter upper %}{% endfilter %}",
    "{% raw %}{% endraw %}{{ open('/etc/passwd') }}", "{{ text|map('upper') }}", "{{ text|pprint }}", "{{ dict(a=1) }}",
    "{{ joiner() }}", "{{ debug() }}", "{% debug %}", "{{ text.encode() }}", "{{ (1).__class__ }}{{ none_such }}",
    "{% do text.append(1) %}", "{% autoescape true %}{% endautoescape %}", "{{ text|xmlattr }}", "{{ caller() }}",
]  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_reaches_nothing(prison: Prison, template: str) -> None:
    """Refused, or an error of every row."""
    spelled = prison.spell(template)
    body = {"input": str(prison.mine / "in.parquet"), "recipe": {"kind": "generate", "template": spelled}}
    answer = prison.gate.call("acme submit", "POST", "/v1/jobs", json=body)
    if answer.status_code == 202:
        with pytest.raises(TemplateError):
            renderer(spelled, 1000)({"text": "x"})
    else:
        prison.refused(answer)
    assert prison.hits == []


def test_whether_something_is_outside_is_not_told(prison: Prison) -> None:
    """The same words for what is there and what is not, for a folder and a file."""
    told = set()
    for place in ("<OUT>/secret.parquet", "<OUT>/none.parquet", "<OUT>/model", "/etc/passwd", "/no/such"):
        for uri in (prison.spell(place), f"{prison.mine}/door/{place.rsplit('/', 1)[1]}"):
            body = {**summarize(Path("x")), "input": uri}
            problem = prison.gate.call("acme submit", "POST", "/v1/jobs", json=body).json()
            told.add(problem["detail"].replace(uri, "URI"))
    assert told == {"'URI' lies outside the data roots"}


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/keys", "/v1/tenants", "/v1/jobs/x/cancel"])
def test_a_body_beyond_the_limit_is_not_read(prison: Prison, path: str) -> None:
    body = b'{"name": "' + b"x" * (9 << 20) + b'"}'
    headers = {"content-type": "application/json"}
    answer = prison.gate.call("default admin", "POST", path, content=body, headers=headers)
    assert answer.status_code in (404, 413)
