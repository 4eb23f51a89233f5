"""Devices of jobs on a host that comes back with other ones, while the job's workers live."""

from __future__ import annotations

import pytest

from edl.cluster.records import HostAssignment, HostOffer, JobAssignment
from edl.cluster.view import AgentView, DeviceTable, HostView, RunView

NOW_S, STUCK_S = 1000.0, 60.0
HAS = (0, 1, 2, 3)
RUN = RunView("r", devices={"h": HAS}, agents={"h": AgentView(frozenset(HAS), frozenset(HAS))})


def table(
    offer: HostOffer | None, *leaving: int, ends: int = 0, ago_s: float = 61.0
) -> DeviceTable:
    """Return a table in which a job has the devices 0 to 3, as it was written ``ago_s`` ago."""
    entry = JobAssignment("r", HAS, leaving, changed_s=NOW_S - ago_s, ends=ends)
    assigned = HostAssignment({"j": entry})
    return DeviceTable([HostView("h", offer, assigned=assigned)], NOW_S)


@pytest.mark.parametrize(
    ("one", "capacity"),
    [
        (table(HostOffer(2), 2, 3), 2),  # the host does not offer what is late
        (table(HostOffer(4), 2, 3), 2),
        (table(HostOffer(4), 2, 3, ago_s=59.0), 4),
        (table(HostOffer(2), ends=1), 0),
        (table(HostOffer(6), ends=1), 2),
        (table(None, 2, 3), 2),
    ],
)
def test_a_slot_that_is_late_does_not_count(one: DeviceTable, capacity: int) -> None:
    assert one.capacity("h", STUCK_S) == capacity


@pytest.mark.parametrize(
    ("offer", "count", "leaving"),
    [
        (HostOffer(4), 4, ()),
        (HostOffer(4), 3, (3,)),
        (HostOffer(4, (4, 5, 6, 7)), 4, HAS),
        (HostOffer(2, (6, 7)), 2, HAS),
        (HostOffer(3, (3, 4, 5)), 3, (0, 1, 2)),
        (None, 4, ()),
    ],
)
def test_devices_that_are_not_offered_any_more_are_given_back(
    offer: HostOffer | None, count: int, leaving: tuple[int, ...]
) -> None:
    one = table(offer)
    one.reclaim("h", "j", count, RUN)
    assert one.entries("j", "r")["h"].leaving == leaving
