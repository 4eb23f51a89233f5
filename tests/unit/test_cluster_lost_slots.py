"""Policies of fixed sizes after a loss of slots: jobs that train shrink, and none is halted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from cluster_world import World, running
from clusters import decide, job, nodes, sizes

from edl.cluster.policies.simple import Fifo
from edl.cluster.policies.tiresias import Tiresias
from edl.cluster.state import ClusterPolicy
from edl.spec import Sizes

FIXED_SIZES = ("fifo", "fifo_backfill", "priority", "tiresias")
ELASTIC, RIGID = {"min": 1, "max": 4}, {"min": 2, "max": 2}


def drain(world: World, host: str) -> None:
    world.machines[host].drained = True


def lose(world: World, host: str) -> None:
    world.machine_dies(host)
    world.offer_ends(host)


def halted(world: World) -> list[str]:
    return [line for line in world.story if "-> halting" in line]


@pytest.mark.parametrize("policy", FIXED_SIZES)
@pytest.mark.parametrize("first", ["elastic", "rigid"])
@pytest.mark.parametrize("happens", [drain, lose])
def test_who_loses_a_host_shrinks_until_there_are_slots(
    policy: str, first: str, happens: Callable[[World, str], None]
) -> None:
    jobs = {"elastic": ELASTIC, "rigid": RIGID}
    order = sorted(jobs, key=lambda name: name != first)
    world = running(2, 2, 2, policy=policy, **{name: jobs[name] for name in order})
    world.until(lambda: world.workers("elastic") == 4)
    host = next(host for host in world.devices("elastic") if host not in world.devices("rigid"))
    happens(world, host)
    world.until(lambda: world.workers("elastic") == 2)
    world.rounds(3, seconds=40.0)
    assert (world.workers("elastic"), world.workers("rigid")) == (2, 2)
    assert world.reasons["elastic"].startswith("has 2 of the 4 slots that it requested: ")
    world.machines[host].drained = False
    world.host_returns(host)
    world.until(lambda: world.workers("elastic") == 4, rounds=200)
    assert not halted(world)


@pytest.mark.parametrize("policy", FIXED_SIZES)
def test_for_a_higher_priority_a_job_shrinks(policy: str) -> None:
    world = running(2, 2, policy=policy, elastic=ELASTIC)
    world.until(lambda: world.workers("elastic") == 4)
    world.submit("first", **RIGID)
    world.want("first", priority=5)
    world.until(lambda: world.workers("first") == 2)
    world.rounds(3, seconds=40.0)
    assert world.workers("elastic") == 2
    assert not halted(world)


A = job("a", 4)
B = job("b", 2, min_slots=2, max_slots=2)
TWO_OF_A, B_ON_1 = {"a": (("n0", 2),)}, {"b": (("n1", 2),)}


@pytest.mark.parametrize("policy", [Fifo(), Fifo(backfill=True), Tiresias()])
def test_jobs_grow_back_with_slots_that_no_other_job_has(policy: ClusterPolicy) -> None:
    present = TWO_OF_A | B_ON_1
    assert decide(policy, [A, B], nodes(2, 2), present).placements == present
    assert sizes(decide(policy, [A, B], nodes(2, 2, 1), present)) == {"a": 3, "b": 2}
    assert sizes(decide(policy, [A, B], nodes(2, 2, 2), present)) == {"a": 4, "b": 2}


def test_an_earlier_job_shrinks_before_a_later_one_is_halted() -> None:
    present = {"a": (("n0", 2), ("n2", 2)), **B_ON_1}  # more than there is for jobs of this kind
    assert sizes(decide(Fifo(), [A, B], nodes(2, 2), present)) == {"a": 2, "b": 2}
    # With 2 slots just one of them can go on.
    assert sizes(decide(Fifo(), [B, A], nodes(2), present)) == {"b": 2}


def test_first_in_first_out_lets_whole_jobs_run_before_one_that_has_lost_slots() -> None:
    # wide has 2 of at least 3 slots. What b and c have is not taken, and they are not held up.
    wide = job("wide", 4, min_slots=3)
    c = job("c", 1, max_slots=1)
    present = {"wide": (("n0", 2),), "c": (("n2", 1),), **B_ON_1}
    decision = decide(Fifo(), [wide, B, c, job("d")], nodes(2, 2, 1), present)
    assert decision.placements == B_ON_1 | {"c": (("n2", 1),)}
    assert decision.reasons["wide"] == "waits: it has lost slots, needs 4 slots and 2 are left"
    assert decision.reasons["d"] == "waits behind wide: submitted 100 s ago"
    filled = decide(Fifo(), [wide, B, c, job("d")], nodes(2, 2, 2), present)
    assert sizes(filled) == {"b": 2, "c": 1, "wide": 3}
    assert filled.reasons["wide"] == "has 3 of the 4 slots that it requested: it has lost slots"


def test_a_job_that_cannot_go_on_holds_up_none_that_can() -> None:
    # Of 3 slots b has 2: a job that runs and needs 4 waits, and one behind it keeps its slot.
    whole = job("whole", 4, min_slots=4)
    c = job("c", 1, max_slots=1)
    present = {"whole": (("n0", 2), ("n3", 2)), "c": (("n2", 1),), **B_ON_1}
    assert sizes(decide(Fifo(), [B, whole, c], nodes(2, 1), present)) == {"b": 2, "c": 1}


def test_jobs_that_shrank_shrink_further_for_a_newcomer_of_the_first_queue() -> None:
    old = [job(name, 4, attained_slot_s=1e6) for name in ("a", "b")]
    one, both = {"a": (("n0", 2),)}, {"a": (("n0", 2),), "b": (("n1", 2),)}
    new = job("new", 1)
    assert sizes(decide(Tiresias(), [old[0], new], nodes(2), one)) == {"new": 1, "a": 1}
    found = decide(Tiresias(), [*old, job("new", 3)], nodes(2, 2), both)
    assert sizes(found) == {"new": 3, "a": 1}
    assert sizes(decide(Tiresias(), [old[0], new], nodes(1), {"a": (("n0", 1),)})) == {"new": 1}


def test_jobs_that_shrank_leave_the_fewest_slots_of_jobs_behind_them() -> None:
    a, c = (job(name, 4, attained_slot_s=1e6) for name in ("a", "c"))
    present = {"a": (("n0", 4),), "c": (("n1", 3),)}
    found = decide(Tiresias(), [a, c, job("new", 4)], nodes(4, 3), present)
    assert sizes(found) == {"new": 4, "a": 2, "c": 1}
    # One slot is left: the first of them goes on.
    found = decide(Tiresias(), [a, c, job("new", 6)], nodes(4, 3), present)
    assert sizes(found) == {"new": 6, "a": 1}


def test_the_slots_that_a_job_gives_up_are_for_jobs_that_have_some() -> None:
    """A waiting job behind it does not get them, and the job for which it shrank is not halted."""
    present = {"a": (("n0", 4),), "c": (("n1", 3),)}
    old = {"attained_slot_s": 1e6}
    jobs = [
        job("a", 4, **old),
        job("waits", 2, min_slots=2, **old),
        job("c", 4, min_slots=2, **old),
        job("new", 3),
    ]
    decision = decide(Tiresias(), jobs, nodes(4, 3), present)
    assert sizes(decision) == {"new": 3, "a": 2, "c": 2}
    assert decision.reasons["waits"].endswith("needs 2 slots and 0 are left")


def test_a_job_goes_on_with_its_fewest_slots_though_one_before_it_cannot() -> None:
    present = {"a": (("n0", 3),), "x": (("n1", 3),), "c": (("n0", 1),)}
    old = {"attained_slot_s": 1e6}
    jobs = [job("a", 7, min_slots=5, **old), job("x", 7, min_slots=3, **old)]
    jobs += [job("c", 1, **old), job("new", 3)]
    assert sizes(decide(Tiresias(), jobs, nodes(4, 3), present)) == {"new": 3, "x": 3, "c": 1}


@pytest.mark.parametrize("policy", [Fifo(), Fifo(backfill=True), Tiresias()])
@pytest.mark.parametrize("allowed", [Sizes(sizes=(4, 8)), Sizes(size_step=4)])
def test_jobs_shrink_to_sizes_that_their_users_allow(policy: ClusterPolicy, allowed: Sizes) -> None:
    big = job("big", 8, min_slots=4, sizes=allowed)
    other, new = job("other", 2, max_slots=2), job("b", 2, min_slots=2, max_slots=2)
    present = {"big": (("n0", 4), ("n1", 3), ("n2", 1)), "other": (("n3", 2),)}
    decision = decide(policy, [big, other, new], nodes(4, 3, 1), present)
    assert sizes(decision) == {"big": 4, "other": 2, "b": 2}
    assert decision.reasons["big"].startswith("has 4 of the 8 slots that it requested")


@pytest.mark.parametrize("policy", ["fifo", "fifo_backfill", "tiresias"])
def test_no_slot_is_idle_behind_a_job_of_few_sizes(policy: str) -> None:
    big = {"min": 4, "max": 8, "sizes": (4, 8)}
    world = running(4, 3, 1, 2, policy=policy, big=big, other={"min": 1, "max": 2})
    world.until(lambda: world.workers("big") == 8 and world.workers("other") == 2)
    drain(world, "h3")
    world.until(lambda: world.workers("big") == 4)
    world.submit("b", **RIGID)
    world.until(lambda: world.workers("b") == 2)
    assert (world.workers("big"), world.workers("other")) == (4, 2)
    assert not halted(world)
