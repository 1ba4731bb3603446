"""docs/reference/api.md: every route, body and error, from the OpenAPI document and the table of errors."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from api import errors
from api.app import create_app
from api.openai.errors import TYPES
from api.problem import Problem
from db.errors import DomainError, InvalidDataset
from db.settings import Settings
from tests.docs.markdown import Schema, default, kind, meaning, table

HEAD = """# HTTP API

The routes of a running service; `/docs` and `/openapi.json` there say the same. Bodies are JSON unless said
otherwise, and a field that is not known is refused. Where authentication is on ([access](../access.md)), a request
carries `Authorization: Bearer nm_…`, and the column *key* says what the key must be allowed to do.

"""
TITLES = {
    "jobs": "Jobs", "results": "Results", "uploads": "Uploads", "schedules": "Schedules", "openai": "OpenAI clients",
    "webhooks": "Webhooks", "access": "Keys, tenants, audit", "system": "The service",
}  # fmt: skip
# What a route's dependencies say about its key, the strictest first.
KEYS = {
    "_operator_admin": "`admin` of the tenant `default`",
    "_admin": "`admin`",
    "_operator": "any of the tenant `default`",
    "_submission": "`submit`, counted by the rate limit",
    "_submitter": "`submit`",
    "_caller": "`read`",
    "_viewer": "a session (`/sign-in`), or none where authentication is off",
}
NOT_OURS = "HTTPValidationError", "ValidationError"  # FastAPI's; what is answered is a Problem


def render() -> str:
    app = create_app(Settings())
    document, keys = app.openapi(), dict(needed(app))
    by_tag: dict[str, list[str]] = {tag: [] for tag in TITLES}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(route(method.upper(), path, operation, keys))
    parts = [HEAD, "## Errors\n\n", problems(), *hidden(app, keys)]
    for tag, routes in by_tag.items():
        parts += [f"## {TITLES.get(tag, tag.capitalize())}\n\n", *routes]
    parts.append("## Bodies and answers\n\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        if name not in NOT_OURS:
            parts.append(model(name, schema))
    return "".join(parts).rstrip() + "\n"


def routes(app: FastAPI) -> Iterator[Any]:
    for each in app.routes:
        inner = getattr(each, "original_router", None)
        yield from [each] if inner is None else inner.routes


def needed(app: FastAPI) -> Iterator[tuple[tuple[str, str], str]]:
    """(method, path as OpenAPI spells it) -> which key."""
    for each in routes(app):
        names = {getattr(call, "__name__", "") for call in calls(getattr(each, "dependant", None))}
        key = next((words for name, words in KEYS.items() if name in names), "none")
        for method in each.methods:
            yield (method, each.path.replace(":path}", "}")), key


def calls(dependant: Any) -> Iterator[Any]:
    for inner in [] if dependant is None else dependant.dependencies:
        yield inner.call
        yield from calls(inner)


def route(method: str, path: str, operation: Mapping[str, Any], keys: Mapping[tuple[str, str], str]) -> str:
    key = keys[method, path]
    words = operation.get("description", "").strip()
    lines = [f"### {method} {path}\n\n{words}\n\n"]
    facts = [("key", key)]
    facts += [("body", ", ".join(bodies(operation.get("requestBody", {}))))] if "requestBody" in operation else []
    facts += [("answer", "; ".join(answers(operation))), ("errors", ", ".join(statuses(key, operation)))]
    lines.append("".join(f"- **{name}**: {text}\n" for name, text in facts) + "\n")
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [
            (f"`{each['name']}`", each["in"], kind(each["schema"]), default(each["schema"], each["required"]),
             meaning({"description": each.get("description", ""), **each["schema"]}))
            for each in parameters
        ]  # fmt: skip
        lines.append(table(("parameter", "in", "type", "default", "meaning"), rows) + "\n")
    return "".join(lines)


def bodies(body: Mapping[str, Any]) -> Iterator[str]:
    for media, content in body.get("content", {}).items():
        yield kind(content.get("schema", {})) if media == "application/json" else f"`{media}`"


def answers(operation: Mapping[str, Any]) -> Iterator[str]:
    for status, response in operation["responses"].items():
        if status.startswith("4"):
            continue
        content = response.get("content", {})
        schema = content.get("application/json", {}).get("schema")
        told = kind(schema) if schema else ", ".join(f"`{media}`" for media in content)
        yield f"{status} {'' if told == 'anything' else told}".strip()


def statuses(key: str, operation: Mapping[str, Any]) -> Iterator[str]:
    """What the route's kind alone lets happen; its own codes are in the table of errors."""
    if key != "none":
        yield "401"
    if key not in ("none", KEYS["_caller"]):
        yield "403"
    if any(each["in"] == "path" for each in operation.get("parameters", [])):
        yield "404"
    if operation.get("parameters") or "requestBody" in operation:
        yield "400" if "openai" in operation["tags"] else "422"
    if key == KEYS["_submission"]:
        yield "429"
    yield "503"


def problems() -> str:
    """The shape, and every code."""
    fields = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    inner = fields["$defs"]["FieldProblem"]
    found = {
        (int(status), code_of(error), title, " ".join((error.__doc__ or "").split("\n\n")[0].split()))
        for error, (status, title) in errors.TABLE.items()
    }
    found |= set(told())
    types = ", ".join(f"`{name}` ({status})" for status, name in TYPES.items())
    return (
        "An error is `application/problem+json` (RFC 9457); `code` is for programs and does not change.\n\n"
        + properties(fields)
        + "\n"
        + model("FieldProblem", inner)
        + table(("status", "code", "title", "when"), [(str(row[0]), *row[1:]) for row in sorted(found)])
        + "\nThe routes for OpenAI clients answer with "
        '`{"error": {"message", "type", "param", "code"}}` instead, and with 400 where the others have 422;\ntypes: '
        f"{types}, else `invalid_request_error`, and\n`server_error` from 500 on.\n\n"
    )


def told() -> Iterator[tuple[int, str, str, str]]:
    """The problems that the API makes by itself, as they stand in its sources."""
    for path in sorted(Path(errors.__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "Problem":
                parts = {each.arg: each.value for each in call.keywords}
                title, code, detail = parts.get("title"), parts.get("code"), parts.get("detail")
                if isinstance(title, ast.Constant) and code is not None:
                    name = code.value if isinstance(code, ast.Constant) else eval(ast.unparse(code), vars(errors))
                    status = int(eval(ast.unparse(parts["status"]), {"HTTPStatus": HTTPStatus}))
                    yield status, f"`{name}`", str(title.value), literal(detail)


def literal(node: ast.expr | None) -> str:
    """A text of the sources, with … for what is filled in; nothing where all of it is."""
    if isinstance(node, ast.JoinedStr):
        parts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
        return "".join(map(str, parts))
    return str(node.value) if isinstance(node, ast.Constant) else ""


def code_of(error: type[DomainError]) -> str:
    """The error's code; that of a dataset is one of those that its docstring lists."""
    if error is not InvalidDataset:
        return f"`{error.code}`"
    listed = (error.__doc__ or "").partition("`code` says which: ")[2].partition("`row`")[0]
    found = [word for word in re.split(r"[\s,.]+", re.sub(r"\([^)]*\)", "", listed)) if word]
    assert len(found) > 5, "the docstring of InvalidDataset no longer lists its codes"
    return ", ".join(f"`{code}`" for code in found)


def hidden(app: FastAPI, keys: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """Routes that the OpenAPI document leaves out: metrics, its own pages, the dashboard's."""
    rows = [
        (f"`{method} {each.path}`", keys[method, each.path.replace(":path}", "}")], words(each.endpoint))
        for each in routes(app)
        if not each.include_in_schema
        for method in sorted(each.methods - {"HEAD"})
    ]
    yield "## Pages, metrics and the API's own description\n\n"
    yield table(("route", "key", ""), sorted(rows)) + "\n"


def words(endpoint: Any) -> str:
    """The first paragraph of an endpoint's own docstring; FastAPI's pages have none that is about us."""
    own = not endpoint.__module__.startswith("fastapi")
    return (endpoint.__doc__ or "").strip().partition("\n\n")[0] if own else ""


def model(name: str, schema: Schema) -> str:
    words = " ".join(schema.get("description", "").split())
    head = f"### {name}\n\n{words}\n\n" if words else f"### {name}\n\n"
    if "enum" in schema:
        return f"{head}{kind(schema)}\n\n"
    return f"{head}{properties(schema)}\n"


def properties(schema: Schema) -> str:
    required = set(schema.get("required", ()))
    return table(
        ("field", "type", "default", "meaning"),
        [(f"`{name}`", kind(each), default(each, name in required), meaning(each))
         for name, each in schema.get("properties", {}).items()],
    )  # fmt: skip
