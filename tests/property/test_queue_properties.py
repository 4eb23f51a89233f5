"""Queues under any jobs and policies: quotas are met in time, and nobody is halted in vain.

The rules by example are in tests/unit/test_cluster_queues.py; shares alone, as numbers, in
tests/unit/test_cluster_queue_shares.py.
"""

from __future__ import annotations

from typing import Any

from cluster_world import World
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edl.cluster.lifecycle import LifeState
from edl.cluster.policies.registry import POLICIES
from edl.cluster.records import QueueRecord

LIVE = [name for name in POLICIES if not name.startswith("jsa_")]
FEW = settings(
    max_examples=min(12, settings().max_examples)
    if settings.get_current_profile_name() == "ci"
    else 300
)


def cluster(policy: str, prod: int, dev: int) -> World:
    world = World(4, 4, policy=policy)
    world.queues = {"prod": QueueRecord(prod), "dev": QueueRecord(dev)}
    return world


JOBS = st.lists(
    st.tuples(
        st.sampled_from(("prod", "dev", "other")),
        st.integers(1, 4),
        st.integers(0, 4),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
IN_TIME = 15  # rounds until a job has what its queue's quota has for it
SETTLED = 40  # rounds of a second: starts, halts and the 30 s between two questions included


@FEW
@given(
    jobs=JOBS,
    quotas=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    policy=st.sampled_from(("max_min", "edl", "elastic_tiresias")),
)
def test_quotas_are_met_and_nobody_is_halted_in_vain(
    jobs: list[tuple[str, int, int, bool]], quotas: tuple[int, int], policy: str
) -> None:
    """A queue whose jobs can use its quota has it ``SETTLED`` rounds after the last submission.

    All jobs of ``prod`` come last. Nobody is halted unless the quotas, and the fewest slots of all
    jobs beside them, do not fit in the cluster.
    """
    world = cluster(policy, *quotas)
    order = sorted(enumerate(jobs), key=lambda one: one[1][0] == "prod")
    names = []
    for number, (queue, least, more, at_once) in order:
        name = f"{queue}{number}"
        world.submit(name, min=least, max=least + more, left=1e9, queue=queue)
        names.append((name, queue, least, least + more))
        if not at_once:
            world.rounds(8)
    world.rounds(SETTLED)
    have = {name: world.slots(name) for name in world.jobs}
    assert sum(have.values()) <= 8
    for queue, quota in (("prod", quotas[0]), ("dev", quotas[1])):
        mine = [one for one in names if one[1] == queue]
        size = sum(have[name] for name, *_ in mine)
        for name, _, least, _ in mine:
            fits = have[name] == 0 and size + least <= quota
            assert not fits, f"{name} needs {least}, {queue} has {size} of {quota}\n{world}"
        if mine and all(least == 1 for _, _, least, _ in mine):
            assert size >= min(quota, sum(most for *_, most in mine)), str(world)
    needed = 0
    for queue, quota in (("prod", quotas[0]), ("dev", quotas[1]), ("other", 0)):
        mine = [one for one in names if one[1] == queue]
        guaranteed = min(quota, sum(most for *_, most in mine))
        needed += max(guaranteed, sum(least for _, _, least, _ in mine))
    if needed <= 8 and policy == "max_min":
        halted = [line for line in world.story if "running -> halting" in line]
        assert not halted, f"{halted}\n{world}"


@FEW
@given(
    borrowers=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 7)), min_size=1, max_size=5),
    least=st.integers(1, 4),
    rounds=st.integers(0, 12),
    policy=st.sampled_from(LIVE),
)
def test_a_job_within_an_unused_quota_trains_in_time(
    borrowers: list[tuple[int, int]], least: int, rounds: int, policy: str
) -> None:
    """Whatever borrowers do, whichever policy it is: the first job of a queue is not starved.

    Here borrowers start in at most ``IN_TIME`` rounds and stop in one. In a live cluster the bound
    is the time that a borrower may take to start and to stop, as docs/guides/queues.md says.
    """
    world = cluster(policy, 4, 0)
    for number, (fewest, more) in enumerate(borrowers):
        request: dict[str, Any] = {
            "min": fewest,
            "max": min(8, fewest + more),
            "min_run_s": 1e6,
            "snooze_s": 1e6,
        }
        world.submit(f"d{number}", left=1e9, **request, cool_down_s=1e6, queue="dev")
    world.rounds(rounds)
    world.submit("p", min=least, max=4, left=1e9, queue="prod")
    world.until(lambda: world.state("p") is LifeState.RUNNING, rounds=IN_TIME)
    world.rounds(SETTLED)
    assert world.slots("p") >= least
    assert world.state("p") is LifeState.RUNNING


@FEW
@given(
    ahead=st.lists(st.integers(1, 4), max_size=4),
    least=st.integers(1, 4),
    pause=st.integers(1, 4),
    borrows=st.booleans(),
    policy=st.sampled_from(("max_min", "edl", "elastic_tiresias")),
)
@example(ahead=[1], least=4, pause=1, borrows=False, policy="max_min")
def test_no_stream_of_small_jobs_starves_one_that_may_not_be_preempted(
    ahead: list[int], least: int, pause: int, borrows: bool, policy: str
) -> None:
    """A job that fits in its queue's quota starts when those before it have ended, at the latest.

    Small jobs that may not be preempted either come after it without end.
    """
    world = cluster(policy, 4, 0)
    trains = 10  # rounds
    rigid: dict[str, Any] = {"preemptible": False, "queue": "prod"}
    if borrows:
        world.submit("d", min=1, max=8, left=1e9, queue="dev")
    for number, size in enumerate(ahead):
        world.submit(f"a{number}", min=size, max=size, left=trains * size, **rigid)
    world.rounds(2)
    world.submit("large", min=least, max=4, left=1e9, **rigid)
    for number in range((len(ahead) + 1) * (trains + IN_TIME)):
        if world.state("large") is LifeState.RUNNING:
            break
        if number % pause == 0:
            world.submit(f"s{number}", max=1, left=trains, **rigid)
        world.round()
    assert world.state("large") is LifeState.RUNNING, str(world)
