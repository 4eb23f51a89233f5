"""Several batches in one step: each sample counts once, whoever comes, leaves or dies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenario import last_line_of, scenario

from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ACCUMULATING = ("--accumulate", "3")
SLOW = Throttle(0.1)


@pytest.mark.long  # on loopback rings in `make test`
def test_a_join_a_leave_and_a_death_in_the_middle_of_a_step(tmp_path: Path, zk_hosts: str) -> None:
    """Epochs end in the middle of a group of batches, on some workers with padding."""
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3, samples=730, epochs=4, more=ACCUMULATING, throttled=SLOW
    ) as job:
        job.join_leave_and_die()
        reports = job.prove(workers=2)
    assert reports[0]["steps"] < 4 * 730 / 4 / 2, "a step has several batches of each worker"


@pytest.mark.long  # `make test` trains the digits alone
def test_the_example_alone() -> None:
    last = last_line_of("torch_accumulation.py", "--epochs", "10")
    found = re.fullmatch(r"accuracy (\S+) epochs 10 steps (\d+)", last)
    assert found, last
    assert float(found[1]) > 0.9
    assert int(found[2]) == 10 * 47, "1,497 digits, 4 batches of 8 a step; a rest is a step"
