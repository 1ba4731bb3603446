"""Pages and forms without a browser: who sees what, and that no other site's form is taken."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.testclient import TestClient
from sqlalchemy import update

from api.deps import Services
from db.accounts import ApiKey
from db.session import db_now
from tests.api.gate import Gate
from tests.api.ledger import finish, split, summarize
from tests.api.test_schedules import nightly


def token(html: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', html)
    assert found is not None
    return found[1]


def test_pages_let_nothing_in_from_elsewhere(http: TestClient) -> None:
    for path in ("/", "/schedules", "/workers", "/submit", "/new-schedule"):
        answer = http.get(path)
        assert answer.status_code == 200, path
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert not re.search(r"<script>|<style|style=|onclick|https?://", answer.text), path
    for name in ("app.js", "app.css", "htmx.min.js", "uPlot.iife.min.js", "uPlot.min.css", "icon.svg"):
        assert http.get(f"/static/{name}").status_code == 200
    assert http.get("/static/licences").status_code == 404
    assert http.get("/static/..%2Frender.py").status_code == 404


def test_a_form_needs_its_token_and_its_own_site(http: TestClient, tweets: Path) -> None:
    form = {"recipe": "summarize", "input": str(tweets)}
    assert http.post("/submit", data=form).status_code == 403
    form["form_token"] = token(http.get("/submit").text)
    assert http.post("/submit", data=form, headers={"Origin": "https://elsewhere.example"}).status_code == 403
    answer = http.post("/submit", data=form, follow_redirects=False)
    assert answer.status_code == 303
    job_id = answer.headers["location"].removeprefix("/jobs/")
    assert http.get(f"/v1/jobs/{job_id}").json()["counts"]["total"] == 3
    assert job_id in http.get("/").text
    assert "Nothing to draw yet" in http.get(f"/jobs/{job_id}").text
    for action, status in (("pause", "paused"), ("resume", "validating"), ("cancel", "cancelled")):
        assert http.post(f"/jobs/{job_id}/{action}", data=form).status_code == 200
        assert http.get(f"/v1/jobs/{job_id}").json()["status"] == status
    refused = http.post(f"/jobs/{job_id}/pause", data=form)
    assert (refused.status_code, "cannot be paused" in refused.text) == (409, True)
    assert http.post(f"/jobs/{job_id}/destroy", data=form).status_code == 404


def test_percentiles_and_the_end_to_come(http: TestClient, tweets: Path, services: Services) -> None:
    http.post("/v1/jobs", json=summarize(tweets))
    job_id = http.get("/v1/jobs").json()["jobs"][0]["id"]
    assert "Known with the first finished shard" in http.get(f"/jobs/{job_id}").text
    counters = {"histogram.row_latency_seconds.12": 3.0, "histogram.kv_occupancy.20": 5.0}
    finish(services, split(services, job_id, (2, 1))[0], b"part", counters=counters)
    text = http.get(f"/jobs/{job_id}").text
    assert re.search(r"<small>ends \d\d:\d\d:\d\d–\d\d:\d\d:\d\d UTC</small>", text)
    assert re.search(r"ends \d\d:\d\d:\d\d–", http.get("/").text)
    row = '<th scope="row">Row latency</th><td class="num">10 s</td><td class="num">10 s</td><td class="num">10 s</td>'
    assert f'{row}<td class="num">3</td>' in text
    assert '<th scope="row">KV occupancy</th><td class="num">40 %</td>' in text
    assert '<td class="num">10 s, 10 s, 10 s</td><td class="num">–</td>' in text


def test_schedules_by_form(http: TestClient, tweets: Path) -> None:
    form = {"form_token": token(http.get("/new-schedule").text), "name": "nightly", "cron": "30 2 * * *"}
    form |= {
        "timezone": "Europe/Berlin",
        "recipe": "summarize",
        "input": str(tweets),
        "only_new": "all_rows",
    }
    assert http.post("/new-schedule", data={**form, "recipe": "label", "labels": "a"}).status_code == 422
    assert http.post("/new-schedule", data=form, follow_redirects=False).headers["location"] == "/schedules/nightly"
    for action in ("run", "pause", "resume"):
        assert http.post(f"/schedules/nightly/{action}", data=form).status_code == 200
    dates = {"first": "2026-03-01", "last": "2026-03-02"}
    assert "2026-03-02" in http.post("/schedules/nightly/backfill", data={**form, **dates}).text
    assert http.post("/schedules/nightly/backfill", data={**form, "first": "x", "last": "y"}).status_code == 409
    assert "nightly" in http.get("/schedules").text
    assert "nightly" not in http.post("/schedules/nightly/delete", data=form).text


def test_a_schedule_s_times_by_form(http: TestClient, tweets: Path) -> None:
    """Local times are of the schedule's zone, spans in hours; what is wrong is refused in the words of the API."""
    form = {"form_token": token(http.get("/new-schedule").text), "name": "timed", "cron": "30 2 * * *"}
    form |= {"timezone": "Europe/Berlin", "recipe": "summarize", "input": str(tweets)}
    form |= {"start_at": "2099-07-01T00:00", "end_at": "2099-12-31T00:00", "window_hours": "6.5", "grace_hours": "0"}
    wrong = {
        "end_at": ("2099-06-30T00:00", "end_at: comes before start_at"),
        "start_at": ("soon", "start_at: Input should be a valid datetime"),
        "window_hours": ("24", "window_seconds: 86,400 is not less than the "),
        "grace_hours": ("-1", "grace_seconds: Input should be greater than or equal to 0"),
        "timezone": ("Berlin", "timezone: &#39;Berlin&#39; is no time zone"),
    }
    for field, (value, words) in wrong.items():
        answer = http.post("/new-schedule", data={**form, field: value})
        assert (answer.status_code, words in answer.text) == (422, True), (field, answer.text)
        assert f'value="{value}"' in answer.text
    answer = http.post("/new-schedule", data={**form, "window_hours": "long"})
    assert "window_hours: &#39;long&#39; is no number of hours" in answer.text
    page = http.post("/new-schedule", data=form).text
    assert ("2099-07-01 00:00" in page, "6 h 30 min" in page) == (True, True)
    spec = http.get("/v1/schedules/timed").json()["spec"]
    assert (spec["start_at"], spec["end_at"]) == ("2099-07-01T00:00:00+02:00", "2099-12-31T00:00:00+01:00")
    assert (spec["window_seconds"], spec["grace_seconds"]) == (23_400.0, 0.0)


def test_who_sees_what(gate: Gate) -> None:
    http = gate.http
    job = gate.submit("acme submit")
    assert gate.call("acme submit", "POST", "/v1/schedules", json=nightly(gate.folder / "acme")).status_code == 201
    assert http.get("/", follow_redirects=False).headers["location"] == "/sign-in"
    assert http.post("/sign-in", data={"key": "nm_wrong"}).status_code == 401
    answer = http.post("/sign-in", data={"key": gate.secrets["acme read"]}, follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert ("httponly" in cookie, "samesite=strict" in cookie) == (True, True)
    page = http.get("/")
    assert job["id"] in page.text
    form = {"form_token": token(page.text)}
    assert http.post(f"/jobs/{job['id']}/cancel", data=form).status_code == 403  # its role is to look
    plan = gate.call(
        "acme submit", "POST", "/v1/jobs?dry_run=true", json=summarize(gate.folder / "acme" / "in.parquet")
    )
    place = f"/plans/{plan.json()['id']}"
    assert http.get(place).status_code == 200
    assert http.post(f"{place}/submit", data=form).status_code == 403
    assert http.get("/workers").status_code == 403  # of another tenant than the operator's
    assert http.post("/sign-out", data=form).url.path == "/sign-in"
    http.post("/sign-in", data={"key": gate.secrets["bolt admin"]})
    assert job["id"] not in http.get("/").text
    assert "nightly" not in http.get("/schedules").text
    assert http.get(f"/jobs/{job['id']}").status_code == 404
    assert http.get("/schedules/nightly").status_code == 404
    assert http.get(place).status_code == 404
    refused = http.post(f"{place}/submit", data={"form_token": token(http.get("/submit").text)})
    assert (refused.status_code, "no plan" in refused.text.lower()) == (409, True)


def test_forms_count_against_the_rate_of_the_key(gate: Gate) -> None:
    http, job = gate.http, gate.submit("acme submit")
    http.post("/sign-in", data={"key": gate.secrets["acme submit"]})
    form = {"recipe": "summarize", "input": str(gate.folder / "acme" / "in.parquet")}
    form["form_token"] = token(http.get("/submit").text)
    plan = http.post("/submit", data={**form, "plan": "yes"}, follow_redirects=False).headers["location"]
    with gate.sessions.begin() as session:
        session.execute(update(ApiKey).values(submissions=0.0, submissions_at=db_now() + 3600))
    for path, more, status in (
        ("/submit", {}, 422),
        ("/submit", {"plan": "yes"}, 422),
        (f"{plan}/submit", {}, 409),
        (f"/jobs/{job['id']}/retry", {}, 409),
    ):
        refused = http.post(path, data={**form, **more})
        assert (refused.status_code, "a key may submit 20 times a minute" in refused.text) == (status, True), path
    assert http.post(f"/jobs/{job['id']}/cancel", data=form).status_code == 200  # makes no work


def test_markup_in_data_stays_text(http: TestClient, tweets: Path) -> None:
    evil = tweets.rename(tweets.with_name("<script>alert(1)<.parquet"))
    http.post("/v1/jobs", json=summarize(evil))
    job_id = http.get("/v1/jobs").json()["jobs"][0]["id"]
    text = http.get(f"/jobs/{job_id}").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
