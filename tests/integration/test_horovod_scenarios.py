"""Horovod's own elastic scenarios under an unmodified `horovodrun`, with edl.

What happens in each and what has to come of it stands in benchmarks/scenarios/table.py. Besides
that, each sample is counted once an epoch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scenarios.play import play_edl
from benchmarks.scenarios.table import SCENARIOS, Scenario
from benchmarks.scenarios.verdict import edl_problems

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

FAILURES = ("one-exception", "one-kill", "all-fail", "all-killed", "one-launched")


@pytest.mark.parametrize("scenario", [pytest.param(one, id=one.name) for one in SCENARIOS])
def test_torch(tmp_path: Path, zk_hosts: str, scenario: Scenario) -> None:
    _passes(tmp_path, zk_hosts, scenario, "counting.py")


@pytest.mark.parametrize(
    "scenario", [pytest.param(one, id=one.name) for one in SCENARIOS if one.name in FAILURES]
)
def test_tensorflow(tmp_path: Path, zk_hosts: str, scenario: Scenario) -> None:
    _passes(tmp_path, zk_hosts, scenario, "tf_counting.py")


def _passes(directory: Path, zookeeper: str, scenario: Scenario, script: str) -> None:
    played = play_edl(scenario, directory, zookeeper, script)
    wrong = edl_problems(scenario, played)
    assert not wrong, f"{scenario.title}: {wrong}\n{played.output[-8000:]}"
