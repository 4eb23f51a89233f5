"""A worker's side of its job's policy: kept until ZooKeeper has it."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from edl.errors import CoordinationError
from edl.job.daemon import PolicyInZooKeeper
from edl.policy.observation import SizeMeasurement
from edl.policy.scaling_profile import ScalingProfile
from edl.records import JobPolicy

MINE, THEIRS = (JobPolicy("[stragglers]\n", source) for source in ("train.py", "p.toml"))
LEARNED = ScalingProfile(seen=((2, SizeMeasurement(40.0, 9)),))


class Nodes:
    def __init__(self) -> None:
        self.away = False
        self.policy = JobPolicy()
        self.kept = ScalingProfile()
        self.writes = 0

    def propose(self, policy: JobPolicy) -> JobPolicy:
        self._write()
        self.policy = self.policy if self.policy.text else policy
        return self.policy

    def put_learned(self, learned: ScalingProfile) -> None:
        self._write()
        self.kept = learned

    def learned(self) -> ScalingProfile:
        return self.kept

    def _write(self) -> None:
        if self.away:
            raise CoordinationError("ZooKeeper is away")
        self.writes += 1


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


@pytest.fixture
def side(nodes: Any) -> PolicyInZooKeeper:
    return PolicyInZooKeeper(nodes, lambda: nodes.away, lambda: None)


def test_what_is_said_while_zookeeper_is_away_is_written_later_and_once(
    nodes: Nodes, side: PolicyInZooKeeper
) -> None:
    nodes.away = True
    side.propose(MINE)
    side.put_learned(LEARNED.to_json())
    assert side.learned() == {}
    with pytest.raises(CoordinationError):
        side.write()
    nodes.away = False
    for _ in range(2):
        side.write()
    assert (nodes.policy, nodes.kept, nodes.writes) == (MINE, LEARNED, 2)
    assert side.learned() == LEARNED.to_json()


def test_a_policy_that_counts_for_nothing_is_named(
    nodes: Nodes, side: PolicyInZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    nodes.policy = JobPolicy("[size]\nrule = 'cost'\n", THEIRS.source)
    side.propose(MINE)
    side.write()
    [line] = caplog.messages
    assert line == "the job follows the policy of p.toml, so that of train.py counts for nothing"


def test_the_first_of_two_unwritten_proposals_stays(
    nodes: Nodes, side: PolicyInZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    """As in ``edl.policy(...)`` and ``edl.on_interval(...)``, one after the other."""
    for policy in (MINE, MINE, JobPolicy("[size]\nrule = 'votes'\n", "edl.on_interval")):
        side.propose(policy)
    side.write()
    assert (nodes.policy, nodes.writes) == (MINE, 1)
    [line] = caplog.messages
    assert line.endswith("policy of train.py, so that of edl.on_interval counts for nothing")


def test_what_cannot_be_read_of_a_checkpoint_is_left_out(
    nodes: Nodes, side: PolicyInZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        side.put_learned({"seen": "everything"})
    side.write()
    assert nodes.writes == 0
    assert caplog.messages[0].startswith("the job begins without what its checkpoint had learned: ")
