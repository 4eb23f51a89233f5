"""A ring that breaks while gradients are sent freezes nobody, ends nobody and misleads nobody."""

import pytest
from ring_breaks import break_rings

pytestmark = [pytest.mark.chaos]


# Without failed-collective-ends-the-ring and event-errors-fail-the-pair a worker is told wrong
# averages, or aborts, within 2 to 65 rings of three.
# Where only a worker that waits looks at its connections, one of the first few rings goes on.
@pytest.mark.parametrize(
    ("workers", "runs"),
    [(2, 60), pytest.param(3, 10, marks=pytest.mark.chaos_short), (3, 200), (4, 60)],
)
def test_a_broken_ring_is_an_error_and_no_more(workers: int, runs: int) -> None:
    break_rings(runs, workers)
