"""A worker of a job with logical workers dies at each named point: no step has another bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from exact_scenario import LOGICAL_WORKERS, ExactScenario
from fault_scenario import Fault, even, fault, refilled
from scenario import scenario

pytestmark = [pytest.mark.chaos]

# Three workers have 3, 3 and 2 logical workers: the points of a step, some in each pass.
STEP = ("boundary", "step", "accumulated", "gradient", "records", "reduced", "applied")


class AuditedScenario(ExactScenario):
    """A job all of whose steps are audited, but those in which a worker dies."""

    options = (*ExactScenario.options, "--exact-audit", "1000")

    def prove(self, workers: int | None = None, code: int = 0) -> list[dict[str, Any]]:
        found = super().prove(workers, code)
        apart = sum(event["apart"] for event in self.events("exact_audit"))
        assert apart > LOGICAL_WORKERS * found[0]["steps"] / 2
        return found


def prove(
    faults: Sequence[Sequence[Fault]],
    directory: Path,
    zookeeper: str,
    kind: type[ExactScenario] = ExactScenario,
) -> None:
    """Let the faults strike a job of three workers, and compare each of its steps."""
    with scenario(
        directory,
        zookeeper,
        kind=kind,
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


def test_survivors_miss_the_means(tmp_path: Path, zk_hosts: str) -> None:
    """They take all that the means of the others have set, BatchNorm's averages too."""
    missed = fault("averaged", "plain", signal="MISS", size=3)
    prove([[missed], [missed | {"after": 3}], [fault("gradient", size=3)]], tmp_path, zk_hosts)


def test_in_an_audited_step(tmp_path: Path, zk_hosts: str) -> None:
    """A worker dies in its own passes, and in those by which it repeats another worker's."""
    own = [[fault(point, "plain", after=2, size=3)] for point in ("gradient", "accumulated")]
    repeated = [[fault("gradient", "leader", after=after, size=3)] for after in (5, 6, 7)]
    end = [[fault(point, after=2, size=3)] for point in ("records", "reduced", "applied")]
    prove([*own, *repeated, *end], tmp_path, zk_hosts, AuditedScenario)


def test_two_at_once_in_a_pass(tmp_path: Path, zk_hosts: str) -> None:
    """The last one of three trains all that is left of the step."""
    both = [fault("accumulated", after=2, size=3), fault("records", after=2)]
    prove([both, *[[fault("gradient", "root", after=2, size=3)]]], tmp_path, zk_hosts)


@pytest.mark.parametrize("point", ["agreed", "closed", "build", "built", "broadcast"])
def test_in_a_switch(point: str, tmp_path: Path, zk_hosts: str) -> None:
    """The replacement of the worker before joins in the switch in which the next one dies."""
    prove([refilled(3), [fault(point, "any", after=1)]], tmp_path, zk_hosts)
