"""A worker of a job with logical workers dies at each named point: no step has another bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from exact_scenario import ExactScenario
from fault_scenario import Fault, even, fault, refilled
from scenario import scenario

pytestmark = [pytest.mark.chaos]

# Three workers have 3, 3 and 2 logical workers: the points of a step, some in each pass.
STEP = ("boundary", "step", "accumulated", "gradient", "records", "reduced", "applied")


def prove(faults: Sequence[Sequence[Fault]], directory: Path, zookeeper: str) -> None:
    """Let the faults strike a job of three workers, and compare each of its steps."""
    with scenario(
        directory,
        zookeeper,
        kind=ExactScenario,
        np=3,
        max_np=3,
        faults=faults,
        epochs=30,
        throttled=even(0.05),
    ) as job:
        job.wait_for_strikes()
        job.prove()


@pytest.mark.parametrize("role", ["plain", "leader"])
def test_in_a_step(role: str, tmp_path: Path, zk_hosts: str) -> None:
    prove([[fault(point, role, after=2, size=3)] for point in STEP], tmp_path, zk_hosts)


def test_two_at_once_in_a_pass(tmp_path: Path, zk_hosts: str) -> None:
    """The last one of three trains all that is left of the step."""
    both = [fault("accumulated", after=2, size=3), fault("records", after=2)]
    prove([both, *[[fault("gradient", "root", after=2, size=3)]]], tmp_path, zk_hosts)


@pytest.mark.parametrize("point", ["agreed", "closed", "build", "built", "broadcast"])
def test_in_a_switch(point: str, tmp_path: Path, zk_hosts: str) -> None:
    """The replacement of the worker before joins in the switch in which the next one dies."""
    prove([refilled(3), [fault(point, "any", after=1)]], tmp_path, zk_hosts)
