"""A leader overwrites nothing that others have written since it read the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edl.errors import CoordinationError
from edl.events import Event, PolicyDetails
from edl.job.decision import DesiredChange, MembershipDecision, set_desired
from edl.records import Assigned, Desired, JobPolicy, RequestedBy
from edl.zookeeper.election import Write
from edl.zookeeper.nodes import JobNodes
from edl.zookeeper.reads import Read, encode
from edl.zookeeper.store import DecisionWriter

DESIRED = Desired({"a": 2}, RequestedBy.LAUNCHER, "the job starts", 1.0)
ASSIGNED = Assigned({"a": 2}, devices={"a": (0, 1)})
POLICY = JobPolicy("a policy", "policy.toml")
EVENT = Event(1.0, 1, 7, "the policy is off: so", PolicyDetails(2, 2, 0.0, failed=True))


class Session:
    def __init__(self, values: dict[str, Mapping[str, Any]]) -> None:
        self.values = values

    def read_all(self, what: str, reads: Sequence[Read]) -> list[Any]:
        return [
            (encode(self.values[read.path]), SimpleNamespace(version=3))
            if read.path in self.values
            else None
            for read in reads
        ]


class Leadership:
    term = 1

    def __init__(self) -> None:
        self.written: list[Write] = []

    def try_commit(self, writes: Sequence[Write]) -> None:
        self.written += writes

    commit = try_commit


class Job:
    def __init__(self, assigned: Assigned = ASSIGNED) -> None:
        self.desired, self.assigned, self.policy = DESIRED, assigned, POLICY
        session = Session({})
        self._values = session.values
        self._nodes = JobNodes(cast(Any, session), "digits")
        self._leadership = Leadership()
        self.decisions = DecisionWriter(self._nodes, cast(Any, self._leadership))
        self.put()

    def put(self, **records: Any) -> None:
        vars(self).update(records)
        p = self._nodes.paths
        self._values[p.generation] = {}
        self._values[p.desired] = self.desired.to_json()
        self._values[p.assigned] = self.assigned.to_json()
        self._values[p.policy] = self.policy.to_json()

    def place(self, **asked: Any) -> None:
        hosts = asked.pop("hosts", self.desired.hosts)
        by = RequestedBy.PERSON
        done = set_desired(self.desired, self.assigned, hosts, by, "placed", 5.0, **asked)
        assert done
        self.put(desired=done.desired, assigned=done.assigned or self.assigned)

    def change(self) -> DesiredChange:
        return set_desired(self.desired, self.assigned, {"a": 1}, RequestedBy.LEADER, "w1 leaves")

    @property
    def written(self) -> dict[str, tuple[Mapping[str, Any], int]]:
        found = self._leadership.written
        return {write.path.split("/")[4]: (write.value, write.version) for write in found}


def test_a_change_is_written_over_the_records_that_it_was_made_from() -> None:
    job = Job()
    change = job.change()
    job.decisions.carry_out(MembershipDecision("w1 leaves", change=change))
    assert change.assigned is not None
    assert job.written == {
        "desired": (change.desired.to_json(), 3),
        "assigned": (change.assigned.to_json(), 3),
    }


@pytest.mark.parametrize("what", ["hosts", "devices", "batch", "only assigned"])
def test_what_others_have_changed_meanwhile_stays_and_the_next_turn_can_write(what: str) -> None:
    """Only the first of these changes the numbers of workers."""
    job = Job()
    change = job.change()
    if what == "hosts":
        job.place(hosts={"a": 3})
    elif what == "devices":
        job.place(devices={"a": (2, 3)})
    elif what == "batch":
        job.put(desired=replace(job.desired, batch=64))
    else:
        job.put(assigned=replace(job.assigned, devices={"a": (2, 3)}))
    with pytest.raises(CoordinationError, match="decide again"):
        job.decisions.carry_out(MembershipDecision("w1 leaves", change=change), [EVENT])
    assert job.written == {}
    job.decisions.carry_out(MembershipDecision("w1 leaves", change=job.change()))
    assert job.written["desired"][0].get("batch", 0) == job.desired.batch
    assert job.written["assigned"][0]["devices"] == job.assigned.to_json()["devices"]


def test_a_record_that_is_not_written_may_have_changed() -> None:
    """Where horovodrun assigns the slots, an edl-worker writes what is assigned at any time."""
    job = Job(Assigned({"a": 2}, by_slot=True))
    change = job.change()
    job.put(assigned=Assigned({"a": 1}, by_slot=True))
    job.decisions.carry_out(MembershipDecision("w1 leaves", change=change))
    assert job.written == {"desired": (change.desired.to_json(), 3)}


def test_only_the_policy_that_has_failed_is_switched_off() -> None:
    job = Job()
    off = replace(POLICY, off="so")
    job.put(policy=JobPolicy("another policy", "better.toml"))
    with pytest.raises(CoordinationError, match="another policy meanwhile; decide again"):
        job.decisions.put_policy(POLICY, off, EVENT)
    assert job.written == {}
    job.put(policy=POLICY)
    job.decisions.put_policy(POLICY, off, EVENT)
    assert job.written == {"policy": (off.to_json(), 3), "events": (EVENT.to_json(), -1)}
