"""A schedule that a person makes in the dashboard's form fires by its cron minute, twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from api.client import Client
from tests.browser.conftest import House
from tests.browser.house import write
from tests.e2e.conftest import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.slow  # two minutes go by until it has fired twice
def test_it_fires_at_its_minute_and_the_second_night_computes_the_added_rows(page: Page, house: House) -> None:
    data, now = house.folder / "data", datetime.now(UTC)
    write(data / "tables" / "first.parquet", 10)
    page.goto(f"{house.url}/new-schedule")
    page.get_by_label("Name").fill("minutely")
    page.get_by_label("Cron").fill("* * * * *")
    page.get_by_label("Input on the server").fill(str(data / "tables"))
    page.get_by_label("Output folder on the server").fill(str(data / "minutes" / "{{ ds }}" / "{{ ts_nodash }}"))
    page.get_by_label("Recipe").select_option("generate")
    page.get_by_label("Template").fill("{{ text }}")
    page.get_by_label("Rows to compute").select_option("new_by_key")
    page.get_by_label("Key column").fill("id")
    page.get_by_label("Start", exact=True).fill(f"{now - timedelta(days=1):%Y-%m-%dT%H:%M}")
    page.get_by_label("End", exact=True).fill(f"{now - timedelta(days=2):%Y-%m-%dT%H:%M}")
    page.get_by_label("Window in hours").fill("0.01")
    page.get_by_label("Grace in hours").fill("0")
    page.get_by_role("button", name="Create").click()
    assert page.get_by_role("alert").inner_text() == "end_at: comes before start_at"
    page.get_by_label("End", exact=True).fill(f"{now + timedelta(days=1):%Y-%m-%dT%H:%M}")
    page.get_by_role("button", name="Create").click()
    page.wait_for_url("**/schedules/minutely")
    runs = page.locator("#runs tbody tr")
    with Client(house.url) as client:
        due = client.schedules.get("minutely").next_at
        assert due is not None
        runs.get_by_text("completed").first.wait_for(timeout=100_000)  # nobody presses anything, or loads it anew
        write(data / "tables" / "second.parquet", 12)  # 2 ids more

        def second_night() -> bool:
            return any(run.rows_input == 22 and run.status == "completed" for run in client.schedules.runs("minutely"))

        eventually(second_night, "the second night", 150)
        client.schedules.pause("minutely")
        found = {run.rows_input: run for run in client.schedules.runs("minutely") if run.rows_input}
    first, second = found[10], found[22]
    assert (first.trigger.value, second.trigger.value) == ("schedule", "schedule")
    assert first.fire_at == due
    assert (second.fire_at - due) % timedelta(minutes=1) == timedelta(0)
    assert (first.rows, first.rows_skipped, first.rows_succeeded, first.rows_failed) == (10, 0, 9, 1)
    assert (second.rows, second.rows_skipped, second.rows_succeeded, second.rows_failed) == (2, 20, 2, 0)
    shown = runs.filter(has_text=str(second.job_id))
    shown.get_by_text("completed", exact=True).wait_for()
    assert shown.locator("td").all_inner_texts()[:6] == [second.logical_date, "schedule", "completed", "2", "0", "20"]
    for run, ids in ((first, list(range(10))), (second, [10, 11])):
        dated = data / "minutes" / run.logical_date / f"{run.fire_at:%Y%m%dT%H%M%SZ}"
        assert pq.read_table(dated / "part-00000.parquet")["id"].to_pylist() == ids
        assert (dated / "_SUCCESS").exists()
    print(f"fired at {first.fire_at:%H:%M:%S} and {second.fire_at:%H:%M:%S}: {first.rows} rows computed, then", end=" ")
    print(f"{second.rows} of {second.rows_input}, {second.rows_skipped} known before")
