"""Workers that are placed exactly, and the devices that a job may use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import pytest
from made import make_job, wanted

from edl.errors import UsageError
from edl.job.decision import Limits, set_desired
from edl.job.liveness import Ages
from edl.job.placement import (
    check_devices,
    device_sets,
    is_placed,
    place_replacement,
    place_workers,
    placed_exactly,
    request_workers,
    without_host,
    without_slot,
)
from edl.job.resize import workers_to_leave
from edl.job.snapshot import Snapshot
from edl.records import Assigned, Desired, Generation, Host, Member, RequestedBy, RingMember, Stage

JOB = make_job(min_np=1, max_np=6)
A, B = Host("a", 2, "::1"), Host("b", 4, "::2")


def now(hosts: dict[str, int], **devices: tuple[int, ...]) -> Snapshot:
    desired = wanted(hosts)["desired"]
    return Snapshot(JOB, (A, B), desired=desired, assigned=Assigned(hosts, devices=devices))


def refused(hosts: dict[str, int], snapshot: Snapshot, **devices: tuple[int, ...]) -> str:
    with pytest.raises(UsageError) as caught:
        placed_exactly(snapshot, hosts, devices, snapshot.desired.hosts)
    return str(caught.value)


def test_hosts_get_what_is_asked_and_all_others_nothing() -> None:
    before = now({"a": 2, "b": 1})
    assert placed_exactly(before, {"b": 3}, {}, before.desired.hosts) == {"a": 0, "b": 3}
    assert placed_exactly(before, {"a": 2}, {}, {"a": 2, "gone": 1}) == {"a": 2, "gone": 0}


def test_a_host_without_an_agent_keeps_its_workers_or_loses_some() -> None:
    before = now({"a": 1, "gone": 2})
    for np in (2, 1):
        assert placed_exactly(before, {"gone": np}, {}, {"a": 1, "gone": 2})["gone"] == np
    assert refused({"gone": 3}, before) == (
        "cannot place workers of job digits: host gone is to get 3 workers and has no agent; add "
        "gone with `edl join --job digits --host gone`"
    )


def test_what_cannot_be_placed_is_one_sentence() -> None:
    before = now({"a": 2})
    assert refused({"a": 3}, before) == (
        "cannot place workers of job digits: host a is to get 3 workers and its agent offers "
        "2 slots; place fewer workers there"
    )
    assert "cannot scale job digits to 7 workers: max_np is 6" in refused({"b": 7}, before)
    assert "cannot scale job digits to 0 workers: `edl stop digits` ends it" in refused({}, before)
    sizes = replace(before, job=make_job(min_np=1, max_np=4, sizes=(1, 2, 4)))
    assert "the job may have 1, 2 or 4 workers" in refused({"a": 2, "b": 1}, sizes)


def test_a_host_has_a_device_for_each_of_its_workers() -> None:
    before = now({"a": 1}, b=(0, 3))
    assert placed_exactly(before, {"b": 2}, {}, {"a": 1}) == {"a": 0, "b": 2}
    assert placed_exactly(before, {"b": 3}, {"b": (0, 1, 2)}, {"a": 1}) == {"a": 0, "b": 3}
    assert refused({"b": 3}, before) == (
        "cannot place workers of job digits: 3 workers on host b, where the job has 2 devices "
        "(0, 3); give it one device for each worker"
    )
    assert "1 worker on host a, where the job has 0 devices; give" in refused(
        {"a": 1}, before, a=()
    )
    with pytest.raises(UsageError, match="cannot create the job: 2 workers on host a, where the"):
        check_devices("create the job", {"a": 2}, {"a": (5,)})


def test_devices_from_a_program_are_checked_and_sorted() -> None:
    given: Any = {"a": [numpy.int64(3), 1], "b": ()}
    assert device_sets(given) == {"a": (1, 3), "b": ()}
    assert device_sets(None) == {}
    for wrong, said in (
        ({"a": (1, 1)}, "the devices of host a are 1, 1; give each of them once"),
        ({"a": (-1,)}, "device -1 of host a does not exist; the first one is 0"),
        ({"a": (0.5,)}, "0.5 is no whole number; give an int"),
        ({"a": 1}, "the devices of host a are 1; give their numbers, for example: (0, 1)"),
        ({"a": "01"}, "the devices of host a are '01'; give their numbers"),
        ((0, 1), "the devices are (0, 1); give the numbers of each host's devices"),
    ):
        with pytest.raises(UsageError) as caught:
            device_sets(wrong)  # type: ignore[arg-type]
        assert said in str(caught.value)


def test_a_placement_without_devices_keeps_those_that_are_written() -> None:
    before, assigned = Desired({"a": 1}), Assigned({"a": 1}, devices={"a": (0,), "b": (1,)})
    person = RequestedBy.PERSON
    change = set_desired(before, assigned, {"a": 2}, person, "so", devices={"a": (0, 2)})
    assert change.assigned == Assigned({"a": 2}, devices={"a": (0, 2), "b": (1,)})
    assert str(change) == "so: 1 -> 2 workers wanted (a: 1 -> 2; devices of a: 0, 2)"
    assert set_desired(before, assigned, {"a": 2}, person, "so").assigned == Assigned(
        {"a": 2}, devices=assigned.devices
    )
    only = set_desired(before, assigned, {"a": 1}, person, "so", 9.0, devices={"a": ()})
    assert only  # `desired` is written, too: a leader that has read it must read again
    assert (only.moves, str(only)) == (False, "so: 1 worker wanted (devices of a: none)")
    assert not set_desired(before, assigned, {"a": 1}, person, "so", devices={"a": (0,)})


def test_nobody_places_more_workers_on_a_host_than_the_job_has_devices_there() -> None:
    here = now({"a": 1}, a=(0, 1), b=(2,))
    assert place_workers("digits", 3, {"a": 1}, here.available) == {"a": 2, "b": 1}
    with pytest.raises(UsageError, match=r"its hosts have 3 slots \(a: 2, b: 1\)"):
        place_workers("digits", 4, {"a": 1}, here.available)
    assert request_workers(here, {"a": 1}, "b", 3) == {"a": 1, "b": 1}
    full = now({"a": 1, "b": 1}, a=(0, 1), b=(2,))
    small = replace(full, job=make_job(min_np=2, max_np=2))
    with pytest.raises(UsageError, match="host a cannot leave job digits"):
        without_host(small, "a", {"a": 1, "b": 1})  # b has a slot and no device
    assert without_slot(small, "a", {0}) == {"a": 1, "b": 1}
    assert without_slot(small, "b", {0}) == {"a": 2, "b": 0}
    ring = Generation(1, 1, (RingMember(0, "b", 0, "::2", 1),), 0, (0,), (), "so")
    full = replace(full, generation=ring)
    assert place_replacement(full, 0, {"a"}) is None  # b has no free device


def test_a_limited_job_has_no_device_on_a_host_that_was_given_none() -> None:
    before = now({"b": 1}, b=(2,))
    assert [(host.name, host.slots) for host in before.agents] == [("a", 0), ("b", 1)]
    assert refused({"a": 1}, before) == (
        "cannot place workers of job digits: 1 worker on host a, where the job has 0 devices; give "
        "it one device for each worker"
    )
    assert not before.assigned.grants("a", 0)
    assert Assigned({"a": 1}).grants("a", 7), "a job without devices is not limited"


def ring_of(*devices: int | None) -> tuple[Generation, dict[int, Member]]:
    records = {
        i: Member(i, "b", i, "::2", 1, 1, f"t-{i}", Stage.ACTIVE, 1, device=device)
        for i, device in enumerate(devices)
    }
    members = tuple(RingMember(m.id, m.host, m.slot, m.address, m.port) for m in records.values())
    return Generation(1, 1, members, 0, (), (), "so"), records


@pytest.mark.parametrize(
    ("devices", "np", "allowed", "leave"),
    [
        ((0, 1), 1, (0,), [1]),
        ((1, 0), 1, (0,), [0]),  # not the highest rank: it is on the device that stays
        ((0, 1), 2, (1, 2), [0]),  # it is replaced on device 2
        ((0, 1), 1, (2,), [0, 1]),
        ((None, None), 1, (1,), [0]),  # they were given none, and use the one of their slot
        ((0, 1, 2), 1, (0, 1, 2), [1, 2]),
    ],
)
def test_workers_leave_devices_that_the_job_may_not_use_any_more(
    devices: tuple[int | None, ...], np: int, allowed: tuple[int, ...], leave: list[int]
) -> None:
    generation, records = ring_of(*devices)
    here = replace(now({"b": np}, b=allowed), generation=generation)
    _, departures = workers_to_leave(here, generation.members, records, Ages(), Limits(*[1.0] * 7))
    assert sorted(one.id for one in departures) == leave


def test_a_job_is_placed_when_its_ring_is_there_on_devices_that_it_may_use() -> None:
    generation, records = ring_of(0, 1)
    here = replace(now({"b": 2}, b=(0, 1)), generation=generation, members=tuple(records.values()))
    assert is_placed(here, {"a": 0, "b": 2})
    assert not is_placed(here, {"a": 1, "b": 1})
    assert not is_placed(
        replace(here, assigned=Assigned({"b": 2}, devices={"b": (1, 2)})), {"b": 2}
    )
    newer = replace(generation, number=2)  # nobody has entered it
    assert not is_placed(replace(here, generation=newer), {"b": 2})
    assert not is_placed(replace(here, generation=None), {"b": 2})
