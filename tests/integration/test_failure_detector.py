"""A leader that is in no ring hears from the ring how far it is, and calls nobody dead or stuck.

Newcomers stand for election: when the sessions of all others end at once, one of them leads a ring
that trains.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from made import make_job
from scenario import scenario
from test_sessions import OPEN, expire, has_come_up, whole

from edl.config import Config
from edl.http.server import DaemonServer
from edl.job.leader import FailureDetector
from edl.job.snapshot import Snapshot
from edl.job.stall import IN_USER_CODE, Activity
from edl.records import Generation, Member, RingMember, Stage, WorkerProgress
from edl.spec import JobSettings
from edl.testing.throttle import Throttle
from edl.worker.shared_state import SharedState

pytestmark = [pytest.mark.integration]

HERE = "127.0.0.1"
SETTLED_S = 60.0  # since the generation was announced
RUN = "this start of the job"
WAITS = Activity("waiting for the leader's next generation", "train.py:9", "warmed_up", 99.0)
BUSY = Activity(IN_USER_CODE, "train.py:33", "step", 0.1)


class Ring:
    """w0 trains, w1 is a member whose port is silent; w2 is a newcomer that leads."""

    def __init__(self, w0: int, w1: int) -> None:
        self.quiet_s = 0.0
        self.run = RUN
        self.step = 40
        ports = (w0, w1, 1)
        self.members = tuple(
            Member(i, "h", i, HERE, ports[i], 1, "launch", Stage.ACTIVE, 7) for i in range(2)
        )
        members = tuple(RingMember(m.id, m.host, m.slot, m.address, m.port) for m in self.members)
        self.generation = Generation(7, 1, members, 0, (), (), "so it began")
        self.shared = SharedState(2)
        config = Config(address=HERE, job_settings=JobSettings(stall_s=0.1))
        self.detector = FailureDetector(config, 2, RUN, lambda: self.shared.progress, lambda: WAITS)

    def health(self) -> dict[str, object]:
        quiet_at = time.monotonic() - self.quiet_s
        progress = WorkerProgress(
            generation=7,
            size=2,
            step=self.step,
            epoch=1,
            epoch_done=30,
            epoch_total=90,
            median_step_s=0.01,
            updated_at=quiet_at,
        )
        return {
            "worker": "w0",
            "run": self.run,
            **progress.for_others(time.monotonic()),
            "activity": BUSY.to_json(),
        }

    def snapshot(self, *members: int) -> Snapshot:
        here = tuple(m for m in self.members if m.id in members)
        return Snapshot(
            make_job("job", command=("true",), max_np=3), members=here, generation=self.generation
        )


@pytest.fixture
def ring() -> Iterator[Ring]:
    with ExitStack() as stack:
        silent = stack.enter_context(listening())
        made: list[Ring] = []
        server = stack.enter_context(DaemonServer(HERE, health=lambda: made[0].health()))
        made.append(Ring(server.port, silent))
        yield made[0]


@contextmanager
def listening() -> Iterator[int]:
    """Yield a port that takes connections and never answers."""
    with socket.create_server((HERE, 0)) as server:
        yield server.getsockname()[1]


def test_how_far_the_job_is(ring: Ring) -> None:
    ring.detector.update(ring.snapshot(0, 1))
    heard = ring.detector.newest_report
    assert (heard.worker, heard.progress.step, heard.progress.epoch_done) == (0, 40, 30)
    assert time.monotonic() - heard.progress.updated_at < 1.0
    own = WorkerProgress(generation=8, step=41)
    ring.shared.progress = own
    ring.detector.update(ring.snapshot(0, 1))
    assert (ring.detector.newest_report.worker, ring.detector.newest_report.progress) == (2, own), (
        "it is in the ring"
    )


def test_who_left_zookeeper_is_not_dead_while_steps_complete(ring: Ring) -> None:
    """However long the newcomer itself has not trained."""
    ring.shared.progress = WorkerProgress(updated_at=time.monotonic() - 60.0)
    now = ring.snapshot(0)
    ring.detector.update(now)
    assert ring.detector.dead(now, SETTLED_S) == ({}, {1})
    ring.quiet_s = 5.0
    ring.detector.update(now)
    dead, _ = ring.detector.dead(now, SETTLED_S)
    assert list(dead) == [1]
    assert "no step completes for 5." in dead[1]


def test_another_jobs_worker_on_its_port_is_not_the_worker(ring: Ring) -> None:
    ring.quiet_s = 5.0
    now = ring.snapshot(1)
    ring.detector.update(now)
    assert 0 not in ring.detector.dead(now, SETTLED_S)[0]
    ring.run = "the start of another job"
    dead, _ = ring.detector.dead(now, SETTLED_S)
    port = ring.members[0].port
    assert dead == {0: f"its process is gone: on {HERE}:{port} w0 of another job answers"}


def test_who_has_never_heard_of_the_ring_does_not_think_that_it_stands(ring: Ring) -> None:
    """A newcomer that is cut off from the ring's host leads; the ring may be in order."""
    cut_off = replace(ring.members[0], port=ring.members[1].port)
    members = tuple(
        RingMember(m.id, m.host, m.slot, m.address, m.port) for m in (cut_off, ring.members[1])
    )
    ring.generation = replace(ring.generation, members=members)
    soon = JobSettings(start_timeout_s=1.0)
    now, hasty = ring.snapshot(), Config(address=HERE, job_settings=soon)
    impatient = FailureDetector(hasty, 2, RUN, lambda: SharedState(2).progress, lambda: WAITS)
    time.sleep(1.2)  # a ring of which it had heard would stand
    for detector, dead in ((ring.detector, set()), (impatient, {0, 1})):
        detector.update(now)
        assert detector.dead(now, SETTLED_S)[0].keys() == dead


def test_a_ring_that_trains_is_not_stalled(ring: Ring) -> None:
    ring.shared.progress = WorkerProgress(updated_at=time.monotonic() - 60.0)
    time.sleep(0.3)  # it leads for longer than stall_s and 20 steps
    now = ring.snapshot(0, 1)
    ring.detector.update(now)
    assert ring.detector.stall(now) is None
    ring.quiet_s = 5.0
    ring.detector.update(now)
    stall = ring.detector.stall(now)
    assert stall is not None
    assert stall.reason.startswith("stalled in step 41: w1 (rank 1, host h) does not answer")


def test_a_ring_whose_workers_are_all_dead_is_not_stalled(ring: Ring) -> None:
    """It would read "everybody waits: ", and hide why the job stands still."""
    now_s = 1000.0
    quiet = WorkerProgress(generation=7, size=2, step=40, updated_at=0.0)
    config = Config(address=HERE, job_settings=JobSettings(stall_s=0.1))
    detector = FailureDetector(config, 2, RUN, lambda: quiet, lambda: WAITS, clock=lambda: now_s)
    now_s += 60.0
    assert detector.stall(ring.snapshot(0, 1)) is not None, "nothing is evicted: it stands still"
    dead = replace(ring.snapshot(), evicted=dict.fromkeys(ring.generation.worker_ids, "it died"))
    assert detector.stall(dead) is None


@pytest.mark.slow
@pytest.mark.chaos
def test_a_newcomer_leads_a_ring_that_trains(tmp_path: Path, zk_hosts: str) -> None:
    """Its steps take so long that it waits for its seat; the status is of the ring's."""
    slow = {"throttled": Throttle(6.0), "epochs": 1, "samples": 240}
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, environment=OPEN, **slow) as job:
        job.wait_for_step(1)
        with job.store() as store:
            before = whole(job, store)
            job.scale(3)
            job.until(lambda: has_come_up(store), "a newcomer that is ready")
            expire(job, store, before.members)
            now = job.wait(lambda now: now["leader"] == "w2", "the newcomer to lead", 10.0)
            assert store.snapshot().members[2].generation == 0, "it is in no ring"
            later = job.wait(lambda then: then["step"] > now["step"], "a step in the status", 20.0)
            assert later["epoch_done"] > now["epoch_done"] > 0
            assert "stalled" not in later["reason"]
            after = whole(job, store)
            assert [m.attempt_id for m in after.members[:2]] == [
                m.attempt_id for m in before.members
            ]
        job.wait_for_size(3)
        assert not job.events("evicted")
        job.prove(workers=3)
