"""What is wanted of a job changes in one way, whoever asks."""

from __future__ import annotations

import pytest

from edl.events import DesiredDetails
from edl.job.decision import set_desired
from edl.records import Assigned, Desired, RequestedBy

BEFORE = Desired({"a": 2}, RequestedBy.LAUNCHER, "the job starts", 1.0)


@pytest.mark.parametrize("by", RequestedBy)
def test_a_change_says_who_asked_why_and_when(by: RequestedBy) -> None:
    change = set_desired(BEFORE, Assigned({"a": 2}), {"a": 1, "b": 2}, by, "so", 9.0)
    assert change
    assert change.desired == Desired({"a": 1, "b": 2}, by, "so", 9.0)
    assert change.details == DesiredDetails(str(by), {"a": 2}, {"a": 1, "b": 2})
    assert str(change) == "so: 2 -> 3 workers wanted (a: 2 -> 1, b: 0 -> 2)"
    assert change.at(11.0).desired.at_s == 11.0


def test_an_agent_keeps_what_is_desired_so_both_change_at_once() -> None:
    assert set_desired(
        BEFORE, Assigned({"a": 2}), {"a": 3}, RequestedBy.LEADER, "so"
    ).assigned == Assigned({"a": 3})


def test_where_a_launcher_assigns_slots_only_what_is_desired_changes() -> None:
    change = set_desired(
        BEFORE, Assigned({"a": 2}, by_slot=True), {"a": 3}, RequestedBy.PERSON, "so"
    )
    assert (change.desired.np, change.assigned) == (3, None)


def test_what_is_desired_already_is_no_change() -> None:
    change = set_desired(BEFORE, Assigned({"a": 2}), {"a": 2}, RequestedBy.PERSON, "edl scale", 9.0)
    assert not change
    assert (change.desired, change.assigned) == (BEFORE, None)


def test_a_move_names_the_hosts_and_the_size_that_stays() -> None:
    change = set_desired(
        BEFORE, Assigned({"a": 2}), {"a": 0, "b": 2}, RequestedBy.PERSON, "edl migrate"
    )
    assert str(change) == "edl migrate: 2 workers wanted (a: 2 -> 0, b: 0 -> 2)"
