"""A host that comes gets what it brings, within max_np, and the dead take no place."""

from dataclasses import replace
from typing import Any

import pytest
from made import changed, make_job, wanted

from edl.job.placement import is_last, request_workers, withdrawn
from edl.job.snapshot import Snapshot
from edl.records import Generation, Host, Member, RingMember

JOB = make_job()
A, B = Host("a", 2, "127.0.0.1"), Host("b", 4, "127.0.0.1")
RING = Generation(1, 1, (RingMember(0, "a", 0, "127.0.0.1", 1),), 0, (), (), "")


def facts(**values: Any) -> Snapshot:
    some: dict[str, Any] = {"hosts": (A, B), "generation": RING, **values}
    return Snapshot(job=JOB, **some)


@pytest.mark.parametrize(
    ("hosts", "np", "expected"),
    [
        ({"a": 2}, 1, {"a": 2, "b": 1}),
        ({"a": 2}, 2, {"a": 2, "b": 2}),
        ({"a": 2}, 3, {"a": 2, "b": 2}),  # no more than max_np
        ({"a": 4}, 1, {"a": 4, "b": 0}),
        ({"a": 9}, 1, {"a": 9, "b": 0}),  # above it already: nothing is taken away
        ({"a": 1, "b": 3}, 1, {"a": 1, "b": 3}),  # it came back: what it had, it keeps
        ({}, 2, {"b": 2}),
    ],
)
def test_a_host_gets_what_there_is_room_for(
    hosts: dict[str, int], np: int, expected: dict[str, int]
) -> None:
    assert request_workers(facts(**wanted(hosts)), hosts, "b", np) == expected


def test_the_share_of_a_host_that_is_gone_is_free() -> None:
    hosts = {"a": 2, "gone": 2}
    assert request_workers(facts(**wanted(hosts)), hosts, "b", 2) == {"a": 2, "b": 2, "gone": 0}


def test_a_host_without_an_agent_is_not_gone_while_anything_of_it_is_there() -> None:
    """An agent may be killed, and all sessions may end at once while the ring goes on."""
    hosts = {"a": 2, "c": 2}
    kept = {"a": 2, "b": 0, "c": 2}
    ring_member = Generation(1, 1, (RingMember(0, "c", 0, "127.0.0.1", 1),), 0, (), (), "")
    member = Member(0, "c", 0, "127.0.0.1", 1, 100, "t-0")
    assert request_workers(facts(generation=ring_member), hosts, "b", 2) == kept
    assert request_workers(facts(members=(member,)), hosts, "b", 2) == kept
    assert request_workers(facts(**wanted(hosts)), hosts, "b", 2) == {"a": 2, "b": 2, "c": 0}


def test_who_has_come_since_the_facts_were_read_keeps_its_share() -> None:
    """Many hosts come at once, and what is desired is newer than what each knows."""
    hosts = {"a": 2, "d": 2}
    assert request_workers(facts(**wanted({"a": 2})), hosts, "b", 2) == {"a": 2, "b": 0, "d": 2}


def test_before_the_first_ring_nobody_is_gone_until_all_could_register() -> None:
    """Who has created the job a moment ago has no agent yet, or no worker."""
    hosts = {"new": 2, "a": 1}
    start = facts(generation=None, **wanted(hosts))
    assert request_workers(start, hosts, "b", 2) == {"a": 1, "b": 1, "new": 2}
    assert request_workers(start, hosts | {"b": 1}, "b", 2, got=1) == {"a": 1, "b": 1, "new": 2}
    assert request_workers(start, hosts, "b", 2, got=0, late=True) == {"a": 1, "b": 2, "new": 0}
    assert request_workers(start, {"a": 1, "b": 2}, "new", 2) == {"a": 1, "b": 2, "new": 1}


@pytest.mark.parametrize(
    ("hosts", "got", "expected"),
    [
        ({"a": 3, "b": 1}, 1, {"a": 3, "b": 1}),
        ({"a": 1, "b": 1}, 1, {"a": 1, "b": 1}),  # `edl scale` has made it smaller
        ({"a": 1, "b": 0}, 1, {"a": 1, "b": 0}),  # and taken it from this host, as a drain does
        ({"a": 1, "b": 0, "gone": 3}, 1, {"a": 1, "b": 0, "gone": 3}),
        ({"a": 2, "b": 1, "gone": 1}, 1, {"a": 2, "b": 2, "gone": 0}),
        ({"a": 1, "b": 0, "gone": 1}, 0, {"a": 1, "b": 1, "gone": 0}),  # not more than they had
        ({"a": 1, "b": 0, "gone": 3}, 0, {"a": 1, "b": 2, "gone": 0}),
        ({"a": 4, "b": 0, "gone": 3}, 0, {"a": 4, "b": 0, "gone": 0}),
    ],
)
def test_who_asks_again_gets_only_what_the_gone_had(
    hosts: dict[str, int], got: int, expected: dict[str, int]
) -> None:
    assert request_workers(facts(**wanted(hosts)), hosts, "b", 2, got) == expected
    assert withdrawn(hosts["b"], got) == (hosts["b"] < got)
    assert not withdrawn(hosts["b"], None)


def test_who_is_last() -> None:
    assert is_last(facts(**wanted({"a": 2, "b": 0})), "a")
    assert is_last(facts(), "a")
    assert is_last(facts(**wanted({"a": 2, "gone": 1})), "a")
    assert not is_last(facts(**wanted({"a": 2, "b": 1})), "a")


def test_a_host_brings_as_many_as_make_an_allowed_size() -> None:
    now = Snapshot(changed(JOB, sizes=(1, 2, 4)), hosts=(Host("a", 4, "x"), Host("b", 4, "x")))
    assert request_workers(now, {"a": 2}, "b", 1, late=True) == {"a": 2, "b": 0}
    assert request_workers(now, {"a": 2}, "b", 3, late=True) == {"a": 2, "b": 2}


def test_hosts_that_come_with_too_few_each_combine() -> None:
    """Two of sizes 1, 2 and 4 train; b and c bring one worker each."""
    b, c = (Host(name, 1, "x", requested_np=1) for name in "bc")
    few, now = changed(JOB, sizes=(1, 2, 4)), {"a": 2}
    alone = Snapshot(few, hosts=(A, b))
    assert request_workers(alone, now, "b", 1, late=True) == {"a": 2, "b": 0}
    both = replace(alone, hosts=(A, b, c))
    together = {"a": 2, "b": 1, "c": 1}
    assert request_workers(both, now, "b", 1, late=True) == together
    assert request_workers(both, now, "c", 1, late=True) == together
    assert request_workers(both, together, "c", 1, late=True) == together  # b was faster
    third = replace(both, hosts=(A, b, c, Host("d", 1, "x", requested_np=1)))
    assert request_workers(third, now, "d", 1, late=True) == {"a": 2, "b": 1, "c": 0, "d": 1}
    assert request_workers(both, {"a": 2, "b": 0}, "b", 1, got=0, late=True) == {
        "a": 2,
        "b": 0,
    }  # again
