"""A worker dies at each named point of its life: in a step, in a switch, as a newcomer, at the end.

What is killed comes up again, so the death at a point of a switch follows the one before it: the
replacement's join is the next switch. It may come two steps after the death: such a fault is armed
one step after it, when the ring is repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from fault_scenario import Fault, even, fault, fault_scenario, refilled, survives

from edl import failpoints as named

pytestmark = [pytest.mark.chaos]

STEP = ("boundary", "step", "gradient", "records", "reduced", "applied", "exchange", "exchanged")
SWITCH = ("agreed", "closed", "build", "built", "broadcast")
NEWCOMER = ("warmed_up", "build", "built", "broadcast")
REPAIR = ("broken", "reported", "build", "built", "broadcast")
LEADING = ("deciding", "decided")
ACCUMULATING = ("accumulated", "gradient", "records", "reduced", "applied")
SEVERAL = (*(2 * STEP[1:6]), "reduced")
Groups = Sequence[Sequence[Fault]]


def test_every_named_point_has_its_death() -> None:
    missed = {"averaged"}  # by one that lives on
    tried = {*STEP, *missed, *SWITCH, *NEWCOMER, *REPAIR, *LEADING, *ACCUMULATING, "finish"}
    assert tried == set(named.NAMES)


def test_two_at_once_then_leader_newcomer_and_worker(tmp_path: Path, zk_hosts: str) -> None:
    """The last three one at a time; the ring is whole again in between."""
    one_by_one = [[fault("reduced", "leader")], [fault("broadcast", "new")], [fault("gradient")]]
    faults = [*AT_ONCE["the leader and another"], *one_by_one]
    survives(tmp_path, zk_hosts, np=4, max_np=4, faults=faults, epochs=4)


@pytest.mark.parametrize("point", ["build", "built"])
def test_while_the_job_starts(point: str, tmp_path: Path, zk_hosts: str) -> None:
    """Two of four die in `edl.init()`, and nobody has any state yet."""
    faults = [[fault(point, "first"), fault(point, "first")]]
    with fault_scenario(tmp_path, zk_hosts, np=4, max_np=4, faults=faults, samples=600) as job:
        job.wait_for_strikes()
        job.wait_for_size(4)
        job.prove()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("role", ["plain", "leader"])
@pytest.mark.parametrize("points", [STEP[:3], STEP[3:6], STEP[6:]], ids="-".join)
def test_in_a_step(
    points: Sequence[str], role: str, num_workers: int, tmp_path: Path, zk_hosts: str
) -> None:
    """One after the other of four workers; two or more are left."""
    faults = [[fault(point, role)] for point in points]
    survives(tmp_path, zk_hosts, np=4, max_np=4, faults=faults, num_workers=num_workers)


@pytest.mark.parametrize("role", ["plain", "leader"])
def test_in_a_step_of_several_optimizers(role: str, tmp_path: Path, zk_hosts: str) -> None:
    """An even and an odd number of steps after the strike before: in both steps of a batch."""
    faults = [[fault(point, role, after=4 + n % 2, size=3)] for n, point in enumerate(SEVERAL)]
    script = {"EDL_TEST_SCRIPT": "counting_several.py"}
    survives(tmp_path, zk_hosts, np=4, max_np=4, faults=faults, environment=script)


@pytest.mark.parametrize(("role", "num_workers"), [("plain", 2), ("leader", 0)])
def test_in_a_step_of_several_batches(
    role: str, num_workers: int, tmp_path: Path, zk_hosts: str
) -> None:
    faults = [[fault(point, role, size=3)] for point in ACCUMULATING]
    survives(
        tmp_path,
        zk_hosts,
        np=4,
        max_np=4,
        faults=faults,
        num_workers=num_workers,
        batch_size=2,
        more=("--exchange", "2", "--accumulate", "3"),
        throttled=even(0.05),
    )


@pytest.mark.parametrize(
    ("stream", "role", "num_workers"), [("shards", "plain", 2), ("stateful", "leader", 0)]
)
def test_in_a_step_of_a_stream(
    stream: str, role: str, num_workers: int, tmp_path: Path, zk_hosts: str
) -> None:
    """What a dead worker has left of a shard is read on by another one."""
    faults = [[fault(point, role, size=3)] for point in STEP[1:6]]
    # The last of them may need no broadcast but that of its replacement, which may soon be there.
    faults += [[fault(REPAIR[-1], role, after=1, size=3)]]
    more = ("--exchange", "2", "--stream", stream)
    settings = {"num_workers": num_workers, "more": more}
    survives(tmp_path, zk_hosts, np=4, max_np=4, faults=faults, **settings)


@pytest.mark.parametrize("role", ["plain", "leader"])
def test_in_a_switch(role: str, tmp_path: Path, zk_hosts: str) -> None:
    agreed, closed, build, built, broadcast = [[fault(at, role, after=1)] for at in SWITCH]
    faults = [agreed, closed, refilled(4), build, built, refilled(4), broadcast]
    with fault_scenario(tmp_path, zk_hosts, np=3, max_np=4, faults=faults) as job:
        job.wait_for_step(5)
        job.scale(4)
        job.wait_for_strikes()
        job.prove()


def test_as_a_newcomer(tmp_path: Path, zk_hosts: str) -> None:
    faults = [[fault(point, "new")] for point in NEWCOMER]
    with fault_scenario(tmp_path, zk_hosts, np=2, max_np=3, faults=faults) as job:
        job.wait_for_step(5)
        job.scale(3)
        job.wait_for_strikes()
        job.wait_for_size(3)
        job.prove()


@pytest.mark.parametrize("role", ["plain", "leader"])
@pytest.mark.parametrize("points", [REPAIR[:3], REPAIR[3:]], ids="-".join)
def test_while_another_death_is_repaired(
    points: Sequence[str], role: str, tmp_path: Path, zk_hosts: str
) -> None:
    """Each group: one dies in a step, and another one on the way to the next ring."""
    first = "leader" if role == "plain" else "plain"
    faults = [
        group
        for point in points
        for group in ([fault("gradient", first, size=3)], [fault(point, role, after=0)])
    ]
    survives(tmp_path, zk_hosts, np=4, max_np=4, faults=faults)


@pytest.mark.parametrize("point", LEADING)
def test_leader_while_it_decides(point: str, tmp_path: Path, zk_hosts: str) -> None:
    """About a planned switch, then about a repair."""
    faults: Groups = [
        [fault(point, "leader")],
        [fault("gradient", "plain")],
        [fault(point, "leader", after=0)],
    ]
    with fault_scenario(tmp_path, zk_hosts, np=3, max_np=4, faults=faults) as job:
        job.wait_for_step(5)
        job.scale(4)
        job.wait_for_strikes()
        job.prove()


AT_ONCE: dict[str, Groups] = {
    "two plain": [[fault("gradient", "plain"), fault("gradient", "plain")]],
    "the leader and another": [[fault("records", "leader"), fault("records", "plain")]],
    "all but one": [[fault("step"), fault("gradient"), fault("step")]],
    "all but one at the update": [[fault("reduced"), fault("applied"), fault("reduced")]],
    "old and new": [[fault("built", "new"), fault("built", "plain")]],
    "the leader and new": [[fault("broadcast", "new"), fault("broadcast", "leader")]],
    "the replacement too": [[fault("gradient")], [fault("broadcast", "new")]],
}


@pytest.mark.parametrize("faults", AT_ONCE.values(), ids=AT_ONCE)
def test_several_at_once(faults: Groups, tmp_path: Path, zk_hosts: str) -> None:
    joins = any(one["role"] == "new" for group in faults for one in group)
    np = 3 if joins else 4
    with fault_scenario(tmp_path, zk_hosts, np=np, max_np=4, faults=faults, epochs=4) as job:
        job.wait_for_step(5)
        if joins:
            job.scale(4)
        job.wait_for_strikes()
        job.prove()


@pytest.mark.parametrize("role", ["plain", "leader"])
def test_at_the_end_of_training(role: str, tmp_path: Path, zk_hosts: str) -> None:
    """The job has finished; the exit code says that a worker died before its script's end.

    The worker may have been about to save its result.
    """
    faults = [[fault("finish", role)]]
    with fault_scenario(tmp_path, zk_hosts, np=3, max_np=3, faults=faults, samples=300) as job:
        job.hurry()
        assert len(job.prove(code=137)) == 2


@pytest.mark.parametrize("signal", ["TERM", "STOP"])
def test_other_signals(signal: str, tmp_path: Path, zk_hosts: str) -> None:
    """A worker that is asked to leave while a switch is under way; one that freezes for good."""
    faults = [
        [fault("gradient", "plain", signal=signal)],
        [fault("build", "leader", signal=signal)],
    ]
    with fault_scenario(tmp_path, zk_hosts, np=3, max_np=4, faults=faults) as job:
        job.wait_for_step(5)
        job.scale(4)
        job.wait_for_strikes()
        job.prove()
