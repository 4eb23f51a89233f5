"""A worker freezes for good in the middle of a switch, or just before its first one.

The others stand still until its session is over, and a little more; then they go on, and a
replacement makes the ring whole. Its agent does not see that it is suspended, as on a machine that
is cut off; if it does, all goes faster (the last test here).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from fault_scenario import Fault, FaultScenario, even, fault, fault_scenario
from scenario import longest_stall

from edl.events import GenerationDetails
from edl.host.supervision import SupervisorLimits
from edl.records import Member, Stage
from edl.zookeeper.store import JobStore

pytestmark = [pytest.mark.chaos]

SLACK_S = 6.0  # to probe, to agree and to build a ring, on a busy machine

IN_A_SWITCH = {
    "old before the ring": fault("build", "plain", signal="STOP"),
    "state source in the broadcast": fault("broadcast", "root", signal="STOP"),
    "newcomer before the ring": fault("build", "new", signal="STOP"),
    "newcomer in the ring": fault("built", "new", signal="STOP"),
}


@pytest.mark.parametrize("one", IN_A_SWITCH.values(), ids=IN_A_SWITCH.keys())
def test_in_a_switch(one: Fault, tmp_path: Path, zk_hosts: str) -> None:
    with patient(tmp_path, zk_hosts, np=3, max_np=4, faults=[[one]], epochs=5) as job:
        scale_out(job)
        job.wait_for_strikes()
        job.wait_for_size(4)
        (given_up,) = job.events("evicted")
        assert "it is frozen or cut off: " in given_up["reason"], given_up
        reports = job.prove(workers=4)
    stall_s = longest_stall(reports)
    print(f"frozen ({one['role']} at {one['point']}): {stall_s:.2f} s, session {job.session_s:g} s")
    assert stall_s < job.session_s + SLACK_S


def test_on_its_way_out(tmp_path: Path, zk_hosts: str) -> None:
    """It leaves in a switch, and the other one waits for it to close their ring.

    That one does not begin to close it before: a thread of Horovod in the departure would answer.
    """
    faults = [[fault("agreed", "root", signal="WAIT"), fault("agreed", "last", signal="STOP")]]
    with patient(tmp_path, zk_hosts, np=2, max_np=2, faults=faults) as job:
        job.wait_for_step(5)
        job.scale(1)
        job.wait_for_strikes()
        job.until(lambda: job.events("evicted"), "that it is evicted", 60.0)
        (given_up,) = job.events("evicted")
        assert "it is frozen or cut off: w1 (without a rank" in given_up["reason"], given_up
        job.wait_for_size(1)
        reports = job.prove(workers=1)
    stall_s = longest_stall(reports)
    print(f"frozen on its way out: {stall_s:.2f} s, session {job.session_s:g} s")
    assert stall_s < job.session_s + SLACK_S


@pytest.mark.parametrize("dies", ["leader", "plain"])
@pytest.mark.parametrize("point", ["broken", "reported", "build"])
def test_in_a_repair(point: str, dies: str, tmp_path: Path, zk_hosts: str) -> None:
    """One of three dies, another one freezes in the repair: the third one goes on."""
    faults = [[fault("gradient", dies)], [fault(point, after=0, signal="STOP")]]
    with patient(tmp_path, zk_hosts, np=3, max_np=3, faults=faults, epochs=4) as job:
        job.wait_for_strikes()
        with job.store() as store:
            job.until(lambda: 1 in ring_sizes(store), "the third one alone", 240.0)
        job.wait_for_size(3, 240.0)
        reports = job.prove(workers=3)
    stall_s = longest_stall(reports)
    print(f"frozen ({point}, the {dies} died): {stall_s:.2f} s, session {job.session_s:g} s")
    assert stall_s < job.session_s + SLACK_S


def test_a_newcomer_that_is_ready(tmp_path: Path, zk_hosts: str) -> None:
    """It is a member already, or is about to become one; it never enters its first ring."""
    slow = even(1.0)  # a ready newcomer waits for the end of a step
    with patient(tmp_path, zk_hosts, np=2, max_np=3, throttled=slow) as job:
        scale_out(job)
        new = first_ready(job)
        os.kill(new.pid, signal.SIGSTOP)
        now = job.wait_for_size(3)
        assert new.name not in [member["id"] for member in now["members"]]
        reports = job.prove(workers=3)
    stall_s = longest_stall(reports)
    print(f"frozen when ready: {stall_s:.2f} s, session {job.session_s:g} s")
    assert stall_s < job.session_s + SLACK_S


def test_a_newcomer_before_it_is_ready(tmp_path: Path, zk_hosts: str) -> None:
    """The others never notice; its agent replaces it, since nobody has heard of it for long."""
    faults = [[fault("warmed_up", "new", signal="STOP")]]
    with patient(tmp_path, zk_hosts, np=2, max_np=3, faults=faults) as job:
        scale_out(job)
        job.wait_for_strikes()
        job.wait_for_size(3, 60.0 + SupervisorLimits().absent_s)
        assert not job.events("evicted")
        reports = job.prove(workers=3)
    assert longest_stall(reports) < 3.0


def test_a_newcomer_that_hangs_on_its_way_in(tmp_path: Path, zk_hosts: str) -> None:
    """It answers, but never comes. It spoils one switch, and is given up before it has another."""
    faults = [[fault("build", "new", signal="HANG")]]
    soon = {"EDL_SWITCH_TIMEOUT_S": "10"}
    with patient(tmp_path, zk_hosts, np=2, max_np=3, faults=faults, environment=soon) as job:
        scale_out(job)
        job.wait_for_strikes()
        job.wait_for_size(3, 180.0)
        (given_up,) = job.events("evicted")
        joins = [event["joined"] for event in job.events("generation")]
        reports = job.prove(workers=3)
    assert given_up["reason"] == (
        "w2 was evicted: it was ready and takes no note of what goes on for 10 s"
    )
    assert [w for joined in joins[1:] for w in joined] == ["w2", "w3"], "one seat each"
    print(f"hanging newcomer: {longest_stall(reports):.2f} s")


@pytest.mark.parametrize("point", ["gradient", "records", "build", "broadcast", "built"])
def test_its_agent_sees_that_it_is_suspended(point: str, tmp_path: Path, zk_hosts: str) -> None:
    """In a step, and in a switch to more workers: long before its session is over."""
    role = "root" if point == "broadcast" else "plain"
    faults = [[fault(point, role, signal="STOP")]]
    with fault_scenario(
        tmp_path, zk_hosts, np=3, max_np=4, faults=faults, epochs=5, session_s=60.0
    ) as job:
        job.wait_for_step(5)
        job.scale(4)
        job.wait_for_strikes()
        job.wait_for_size(4)
        reports = job.prove(workers=4)
    stall_s = longest_stall(reports)
    print(f"suspended ({point}): {stall_s:.2f} s, session {job.session_s:g} s")
    assert stall_s < 30.0


@contextmanager
def patient(
    directory: Path,
    zookeeper: str,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[FaultScenario]:
    """Run a job under faults, whose agents do not end suspended workers."""
    beside = {"EDL_SUSPENDED_S": "0", **environment}
    with fault_scenario(directory, zookeeper, environment=beside, **settings) as job:
        yield job


def ring_sizes(store: JobStore) -> list[int]:
    """Those of all generations; a status may miss one, for newcomers may join at once."""
    details = [event.details for _, event in store.events.read()]
    return [len(one.members) for one in details if isinstance(one, GenerationDetails)]


def scale_out(job: FaultScenario) -> None:
    now = job.wait_for_step(5)
    job.scale(now["world_size"] + 1)


def first_ready(job: FaultScenario) -> Member:
    found: list[Member] = []
    with job.store() as store:

        def look() -> bool:
            members = [m for m in store.snapshot().members if m.id == 2]
            found[:] = [m for m in members if m.stage is Stage.READY]
            assert not any(m.stage is Stage.ACTIVE for m in members), "too late"
            return bool(found)

        job.until(look, "a newcomer that is ready")
    return found[0]
