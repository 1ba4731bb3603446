"""Every example in the documentation is run by a test, or says why not; what is only data can be read."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml

from tests.docs.pages import PARSED, ROOT, blocks, examples, pages
from tests.docs.test_examples import ALONE, SERVED

SHOWN = ("", "text", "mermaid")  # what is printed or drawn; nobody runs it
# Page -> the test that runs its examples.
RUN_BY = {
    "outputs.md": "tests/docs/test_outputs.py",
    "openai.md": "tests/api/openai/test_docs.py",
    "schedules.md": "tests/e2e/test_schedules.py",
    **dict.fromkeys((*SERVED, *ALONE), "tests/docs/test_examples.py"),
}


@pytest.mark.parametrize("page", pages())
def test_every_example_is_run_or_says_why_not(page: str) -> None:
    if examples(page):
        assert page in RUN_BY, f"no test runs the {len(examples(page))} examples of {page}"
        runner = (ROOT / RUN_BY[page]).read_text()
        assert f'examples("{page}")' in runner or "examples(page)" in runner
    for block in blocks(page):
        known = block.language in SHOWN or block.language in PARSED or block in examples(page) or block.reason
        assert known, f"{page}: a block of {block.language!r} is neither run nor marked: {block.code[:60]}"


def test_no_entry_is_left_over() -> None:
    assert [page for page in RUN_BY if not examples(page)] == []


@pytest.mark.parametrize("page", pages())
def test_data_can_be_read(page: str) -> None:
    readers = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
    for block in blocks(page):
        if block.language in readers:
            assert readers[block.language](block.code)
