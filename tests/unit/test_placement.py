"""Where workers go: keep, fill by name, take from the last."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy
import pytest
from made import changed, make_job, wanted

from edl.errors import UsageError
from edl.job.placement import (
    move,
    place_replacement,
    place_workers,
    return_absent,
    undo_replacement,
    whole,
    without_host,
    without_slot,
)
from edl.job.snapshot import Snapshot
from edl.records import Generation, Host, Request, RequestKind, RingMember

A, B, C = (Host(name, slots, "127.0.0.1") for name, slots in (("a", 2), ("b", 4), ("c", 1)))
JOB = make_job(min_np=2, max_np=6)


@pytest.mark.parametrize(
    ("np", "desired", "expected"),
    [
        (2, {"a": 2}, {"a": 2}),  # nothing to do
        (3, {"a": 2}, {"a": 2, "b": 1}),  # the first host is full
        (7, {}, {"a": 2, "b": 4, "c": 1}),
        (3, {"c": 1}, {"c": 1, "a": 2}),  # what is there stays
        (4, {"a": 2, "b": 3, "c": 1}, {"a": 2, "b": 2, "c": 0}),  # the last goes first
        (1, {"a": 2, "b": 4}, {"a": 1, "b": 0}),
        (0, {"a": 2}, {"a": 0}),
    ],
)
def test_place(np: int, desired: dict[str, int], expected: dict[str, int]) -> None:
    for hosts in ((A, B, C), (C, A, B)):  # the order of arrival does not count
        assert place_workers("digits", np, desired, hosts) == expected


def test_a_host_without_an_agent_keeps_its_workers_but_gets_none() -> None:
    assert place_workers("digits", 4, {"b": 3}, [A]) == {"b": 3, "a": 1}
    assert place_workers("digits", 2, {"a": 2, "b": 2}, [A]) == {
        "a": 2,
        "b": 0,
    }  # and loses them first
    with pytest.raises(UsageError, match=r"have 5 slots \(a: 2, b: 3 without an agent\)"):
        place_workers("digits", 6, {"b": 3}, [A])


def test_what_is_desired_above_the_slots_is_not_raised_further() -> None:
    assert place_workers("digits", 5, {"a": 4}, [A, C]) == {"a": 4, "c": 1}


def test_too_few_slots_is_a_sentence_with_the_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        place_workers("digits", 8, {"a": 2}, [A, B, C])
    assert str(caught.value) == (
        "cannot scale job digits to 8 workers: its hosts have 7 slots (a: 2, b: 4, c: 1); "
        "add a host with `edl join --job digits`"
    )


def training(*agents: str, **here: int) -> Snapshot:
    hosts = [host for host, count in here.items() for _ in range(count)]
    members = tuple(RingMember(n, host, n, "::1", 1) for n, host in enumerate(hosts))
    ring = Generation(7, 4, members, 0, (), (), "so it began")
    return Snapshot(JOB, tuple(Host(name, 4, "::1") for name in agents), generation=ring)


def test_a_host_leaves_only_if_enough_workers_stay() -> None:
    assert without_host(training("a", "b", a=2, b=4), "b", {"a": 2, "b": 4}) == {"a": 2, "b": 0}
    with pytest.raises(UsageError, match="1 worker would be left and min_np is 2"):
        without_host(training("a", "b", a=1, b=4), "b", {"a": 1, "b": 4})


def test_a_host_that_leaves_gives_back_who_had_not_moved_to_it() -> None:
    """Else the ring would shrink by workers that train on elsewhere."""
    assert without_host(training("a", "b", a=3), "b", {"a": 1, "b": 2}) == {"a": 3, "b": 0}
    assert without_host(training("a", "b", a=2, b=1), "b", {"a": 1, "b": 2}) == {"a": 2, "b": 0}


def test_with_a_host_that_leaves_the_places_of_the_dead_are_given_up() -> None:
    """Else it would wait for them to come and replace its workers."""

    def drained(now: Snapshot, **hosts: int) -> dict[str, int]:
        return without_host(replace(now, **wanted(hosts)), "b", hosts)

    assert drained(training("a", "b", a=2, b=1), a=2, b=1, dead=3) == {"a": 2, "b": 0, "dead": 0}
    with pytest.raises(UsageError, match="1 worker would be left and min_np is 2"):
        drained(training("a", "b", a=1, b=1), a=1, b=1, dead=3)
    moving = {"a": 1, "b": 1, "dead": 2}  # two of a were to move to it
    assert drained(training("a", "b", a=3, b=1), **moving) == {"a": 3, "b": 0, "dead": 0}
    alive = training("b", a=2, b=1)  # only the agent is away
    assert drained(alive, a=2, b=1) == {"a": 2, "b": 0}
    # Who has come since the facts were read is not dead.
    before = replace(training("a", "b", a=2, b=1), **wanted({"a": 2, "b": 1}))
    assert without_host(before, "b", {"a": 2, "b": 1, "c": 1}) == {"a": 2, "b": 0, "c": 1}
    # Who leaves since then does not move here.
    before = replace(training("a", "b", "c", a=1, b=1), **wanted({"a": 1, "b": 1, "c": 1}))
    with pytest.raises(UsageError, match="0 workers would be left and min_np is 2"):
        without_host(before, "c", {"a": 0, "b": 0, "c": 1})


@pytest.mark.parametrize(
    ("desired", "here", "after"),
    [
        ({"a": 0, "b": 2}, {"a": 2}, {"a": 2, "b": 0}),
        ({"a": 0, "b": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 1}),
        ({"a": 0, "b": 1, "c": 0}, {"a": 1, "c": 1}, {"a": 1, "b": 0, "c": 0}),
        ({"a": 2, "b": 2}, {"a": 2}, {"a": 2, "b": 2}),  # they are new, nobody moves
        ({"b": 1}, {"a": 1, "b": 1}, {"b": 1}),  # they are there
        ({}, {"a": 1}, {}),
    ],
)
def test_what_has_not_moved_is_given_back(
    desired: dict[str, int], here: dict[str, int], after: dict[str, int]
) -> None:
    assert return_absent(desired, "b", here) == after


def moved(
    now: Mapping[str, int], slots: Mapping[str, int], np: int | None, source: str, target: str
) -> dict[str, int]:
    hosts = tuple(Host(name, count, "::1") for name, count in slots.items())
    return move(Snapshot(JOB, hosts, **wanted(now)), np, source, target, now)


def test_moving_changes_nothing_but_two_hosts() -> None:
    now = {"a": 2, "b": 1, "c": 3}
    assert moved(now, {"b": 4}, None, "a", "b") == {"a": 0, "b": 3, "c": 3}
    assert moved(now, {"d": 1}, 1, "a", "d") == {"a": 1, "b": 1, "c": 3, "d": 1}


@pytest.mark.parametrize(
    ("np", "source", "target", "slots", "message"),
    [
        (None, "a", "a", {"b": 4}, "from host a to itself"),
        (None, "x", "b", {"b": 4}, "from host x: it has none; the job's workers are on a: 2, b: 1"),
        (3, "a", "b", {"b": 4}, "3 workers of job digits from host a to host b: --np must lie bet"),
        (0, "a", "b", {"b": 4}, "--np must lie between 1 and 2, which a has"),
        (None, "a", "c", {}, "nobody offers c; add c with `edl join --job digits --host c`"),
        (None, "a", "b", {"b": 2}, "b has 2 slots and 1 of them is taken; choose a lower --np"),
    ],
)
def test_a_move_that_cannot_be(
    np: int | None, source: str, target: str, slots: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        moved({"a": 2, "b": 1}, slots, np, source, target)


def by_slot(hosts: Mapping[str, int]) -> Snapshot:
    return Snapshot(JOB, **wanted(hosts, by_slot=True), discovered={"a": 2, "b": 3})


def test_where_slots_are_assigned_a_host_must_be_discovered() -> None:
    now = by_slot({"a": 2})
    assert move(now, 1, "a", "b", {"a": 2}) == {"a": 1, "b": 1}
    with pytest.raises(UsageError, match="nobody offers c; let edl-discover offer c to horovodrun"):
        move(now, None, "a", "c", {"a": 2})
    with pytest.raises(UsageError, match=r"5 slots \(a: 2, b: 3\); let edl-discover offer another"):
        place_workers("digits", 6, {"a": 2}, now.available, now.assigned.by_slot)


def test_the_driver_of_horovodrun_keeps_a_host() -> None:
    assert move(by_slot({"a": 2, "b": 1}), None, "a", "b", {"a": 2, "b": 1}) == {"a": 0, "b": 3}
    with pytest.raises(UsageError, match="wants to keep one of them; leave a worker there"):
        move(by_slot({"a": 2, "b": 0}), None, "a", "b", {"a": 2, "b": 0})


def test_a_number_from_a_program_is_a_whole_one() -> None:
    assert type(whole(numpy.int64(3))) is int
    wrong: list[Any] = [1.5, 2.0, "2", None]
    for number in wrong:
        with pytest.raises(UsageError, match="is no whole number"):
            whole(number)
    with pytest.raises(UsageError, match="-1 workers cannot be added or taken away; give 1 or"):
        whole(-1, least=1)


# --- only some sizes ---

FEW = changed(JOB, min_np=1, sizes=(1, 2, 4))


def test_a_host_that_leaves_keeps_the_size_on_free_slots_or_the_next_smaller_is_wanted() -> None:
    now = replace(training("a", "b", a=3, b=1), job=FEW)
    agents = (Host("a", 3, "x"), Host("b", 1, "x"))
    assert without_host(replace(now, hosts=agents), "b", {"a": 3, "b": 1}) == {"a": 2, "b": 0}
    more = (Host("a", 4, "x"), Host("b", 1, "x"))
    assert without_host(replace(now, hosts=more), "b", {"a": 3, "b": 1}) == {"a": 4, "b": 0}
    two = changed(JOB, min_np=2, sizes=(2, 4))
    now = replace(training("a", "b", a=1, b=1), job=two)
    with pytest.raises(UsageError, match="1 worker would be left and min_np is 2"):
        without_host(now, "b", {"a": 1, "b": 1})


def test_a_slot_that_is_given_up_is_replaced_or_the_next_smaller_size_is_wanted() -> None:
    now = replace(training("a", a=4), job=FEW, **wanted({"a": 4}))
    assert without_slot(replace(now, hosts=(Host("a", 4, "x"),)), "a", {3}) == {"a": 2}
    assert without_slot(replace(now, hosts=(Host("a", 5, "x"),)), "a", {3}) == {"a": 4}


def ring_on(*hosts: str, by_slot: bool = False, agents: tuple[Host, ...] = (A, B, C)) -> Snapshot:
    members = tuple(RingMember(n, host, n, "127.0.0.1", 1) for n, host in enumerate(hosts))
    here = {host: hosts.count(host) for host in hosts}
    return Snapshot(
        JOB, agents, **wanted(here, by_slot), generation=Generation(1, 1, members, 0, (), (), "")
    )


@pytest.mark.parametrize(
    ("now", "avoided", "expected"),
    [
        (ring_on("a", "a"), (), ("b", {"a": 1, "b": 1})),  # the most free slots
        (ring_on("a", "a"), ("b",), ("c", {"a": 1, "c": 1})),
        (ring_on("a", "a"), ("b", "c"), None),  # its own is full
        (ring_on("a"), ("b", "c"), ("a", {"a": 1})),
        (ring_on("a"), ("a", "b", "c"), None),
        (ring_on("a", "a", agents=(A, replace(B, leaving=True))), (), None),
        (ring_on("a", "a", agents=(A, replace(B, disabled={"0": "x", "2": "y"}))), (),
         ("b", {"a": 1, "b": 1})),
        (ring_on("a", by_slot=True), (), None),
    ],
)  # fmt: skip
def test_where_a_replacement_comes_to(
    now: Snapshot, avoided: tuple[str, ...], expected: tuple[str, Mapping[str, int]] | None
) -> None:
    assert place_replacement(now, 0, avoided) == expected
    assert place_replacement(now, 9, avoided) is None


def test_a_worker_of_a_host_that_some_leave_anyway_is_not_replaced() -> None:
    """Somebody has moved w0 from a, for example because a is given away and so is slow."""
    moving = ring_on("a", "b", agents=(A, B, C))
    assert place_replacement(replace(moving, **wanted({"a": 0, "b": 1, "c": 1})), 0, ()) is None
    assert place_replacement(replace(moving, **wanted({"b": 1, "c": 1})), 0, ()) is None
    assert place_replacement(replace(moving, **wanted({"b": 1, "c": 1})), 1, ()) is not None


def test_a_replacement_that_did_not_come_is_wanted_where_its_worker_is() -> None:
    now = replace(ring_on("a", "a"), **wanted({"a": 1, "b": 1}))
    assert undo_replacement(now, Request(RequestKind.REPLACE, 1, host="b")) == {"a": 2, "b": 0}
    assert undo_replacement(now, Request(RequestKind.REPLACE, 1, host="a")) == {"a": 1, "b": 1}
    assert undo_replacement(now, Request(RequestKind.REPLACE, 1, host="c")) == {"a": 1, "b": 1}
    assert undo_replacement(now, Request(RequestKind.REPLACE, 7, host="b")) == {"a": 1, "b": 1}
