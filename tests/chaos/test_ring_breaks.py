"""A ring that breaks at any instant while gradients are sent freezes nobody."""

import pytest
from ring_breaks import break_rings

pytestmark = [pytest.mark.chaos]


@pytest.mark.parametrize("workers", [2, 3])
def test_nobody_freezes(workers: int) -> None:
    break_rings(60, workers)
