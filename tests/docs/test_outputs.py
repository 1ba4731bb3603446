"""docs/outputs.md is what the demo model answers: its blocks are run again, with the same outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import outputs
from tests.docs.pages import examples, text


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.model
def test_the_answers_are_the_models(tmp_path: Path, demo_model: Path) -> None:
    assert text(outputs.PAGE) == outputs.render({"NIGHTMILL_HOME": str(tmp_path / "home")})


def test_the_page_has_every_block_that_is_run() -> None:
    code = [outputs.ROWS, *(example.command for example in outputs.EXAMPLES), outputs.BATCH]
    assert [block.code for block in examples("outputs.md")] == code
