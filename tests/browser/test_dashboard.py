"""The dashboard in a browser: submit, watch, cancel, read an error row, create a schedule; and that all can use it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from api.client import Client
from tests.browser.conftest import House
from tests.browser.house import write

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = (Path(__file__).parent / "axe.min.js").read_text()
PAGES = [
    "/",
    "/jobs/{live}",
    "/jobs/{done}",
    "/schedules",
    "/schedules/tickets",
    "/new-schedule",
    "/workers",
    "/submit",
    "/plans/{plan}",
]


def test_submit_a_file_and_watch_it_to_the_end(page: Page, house: House, tmp_path: Path) -> None:
    page.goto(f"{house.url}/submit")
    page.set_input_files("#file", write(tmp_path / "mine.parquet", 40))
    page.select_option("#recipe", "generate")
    page.fill("#template", "{{ text }}")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/jobs/job_*")
    page.locator("#live").get_by_text("completed with errors").wait_for()
    answer = "TICKET 0: THE NIGHT TRAIN TO THE COAST WAS LATE AGAIN"
    page.get_by_role("cell", name=answer, exact=True).wait_for()  # without a reload
    errors = page.locator("#errors")
    errors.get_by_text("template_error").wait_for()  # exactly one, or it would complain
    assert "the template prints a null" in errors.inner_text()
    page.get_by_role("button", name="Retry the failed rows").click()
    page.get_by_text("of 2").first.wait_for()


def test_plan_a_job_and_submit_it(page: Page, house: House) -> None:
    page.goto(f"{house.url}/submit")
    page.fill("#input", str(write(house.folder / "data" / "planned.parquet", 100)))
    page.select_option("#recipe", "generate")
    page.fill("#template", "{{ text }}")
    page.get_by_role("button", name="Plan first").click()
    page.wait_for_url("**/plans/plan_*")
    page.get_by_role("heading", name="What the job will take").wait_for()  # without a reload
    page.get_by_text("template_error (5)").wait_for()
    page.get_by_role("button", name="Submit this job").click()
    page.wait_for_url("**/jobs/job_*")
    page.locator("#live").get_by_text("of 100", exact=True).wait_for()


def test_pause_resume_and_cancel(page: Page, house: House) -> None:
    page.goto(f"{house.url}/jobs/{house.ids['live']}")
    page.get_by_role("button", name="Pause").click()
    live = page.locator("#live")  # rows that were cancelled show the word among the errors too
    live.get_by_text("paused", exact=True).wait_for()
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Pause").wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    live.get_by_text("cancelled", exact=True).wait_for()
    with Client(house.url) as client:
        assert client.get(house.ids["live"]).status.value == "cancelled"


def test_a_job_that_cannot_be_says_why(page: Page, house: House) -> None:
    page.goto(f"{house.url}/submit")
    page.fill("#input", "/etc/passwd")
    page.get_by_role("button", name="Submit").click()
    alert = page.get_by_role("alert")
    assert "input: '/etc/passwd' lies outside the data roots" in alert.inner_text()
    assert page.input_value("#input") == "/etc/passwd"


def test_create_a_schedule_and_run_it(page: Page, house: House) -> None:
    data = house.folder / "data"
    write(data / "nightly" / "table.parquet", 10)
    page.goto(f"{house.url}/schedules")
    page.get_by_role("link", name="New schedule").click()
    page.fill("#name", "nightly")
    page.fill("#cron", "61 2 * * *")
    page.fill("#input", str(data / "nightly"))
    page.fill("#output", str(data / "nights" / "{{ ts_nodash }}"))
    page.select_option("#recipe", "generate")
    page.fill("#template", "{{ text }}")
    page.select_option("#only_new", "new_by_key")
    page.fill("#key", "id")
    page.get_by_role("button", name="Create").click()
    assert "cron: '61 2 * * *': bad minute" in page.get_by_role("alert").inner_text()
    page.fill("#cron", "30 2 * * *")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/schedules/nightly")
    page.get_by_role("button", name="Run now").click()
    runs = page.locator("#runs")
    runs.get_by_text("completed with errors").wait_for()
    write(data / "nightly" / "more.parquet", 12)
    page.get_by_role("button", name="Run now").click()
    runs.get_by_text("completed").nth(1).wait_for()
    page.wait_for_function("document.querySelectorAll('#runs tbody tr').length == 2")
    with Client(house.url) as client:
        second, first = client.schedules.runs("nightly")
    assert (first.rows_input, first.rows_skipped, first.rows) == (10, 0, 10)
    assert (second.rows_input, second.rows_skipped, second.rows) == (22, 20, 2)


def test_throughput_is_drawn_without_other_hosts(page: Page, house: House) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with Client(house.url) as client:
        path = write(house.folder / "data" / "drawn.parquet", 20_000)
        job = {"input": str(path), "recipe": {"kind": "generate", "template": "{{ text }}"}, "model": "fake:slow"}
        made = client.submit({**job, "shard_rows": 200})
        page.goto(f"{house.url}/jobs/{made.id}")
        deadline = time.monotonic() + 60
        while page.locator(".plot canvas").count() == 0:  # scripts have drawn what there is when a page is loaded
            assert time.monotonic() < deadline
            page.wait_for_timeout(500)
            page.reload()
        client.cancel(made.id)
    assert {url.startswith((house.url, "data:", "blob:")) for url in asked} == {True}


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_violation_of_accessibility(page: Page, house: House, path: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(house.url + path.format(**house.ids))
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(result => result.violations)")
    serious = [
        (violation["id"], violation["nodes"][0]["html"])
        for violation in found
        if violation["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_the_keyboard_is_enough(page: Page, house: House) -> None:
    page.goto(house.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Schedules"
    page.keyboard.press("Enter")
    page.wait_for_url("**/schedules")
