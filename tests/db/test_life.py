"""Random interleavings of every transition, on each kind of database."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.db.ledger import Sessions
from tests.db.life import Life

SMALL = settings(
    max_examples=14, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
LARGE = settings(SMALL, max_examples=400, stateful_step_count=80)


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)], ids=["small", "large"])
def test_any_order_of_transitions(sessions: Sessions, size: settings) -> None:
    run_state_machine_as_test(lambda: Life(sessions), settings=size)
