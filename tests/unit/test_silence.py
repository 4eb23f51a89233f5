"""Whom a leader asks when its ring stands still, and what it makes of the answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from made import make_job

from edl.config import Config
from edl.http.client import Health
from edl.job import leader as failure_detector
from edl.job.leader import FailureDetector
from edl.job.liveness import LivenessLimits
from edl.job.snapshot import Snapshot
from edl.job.stall import Activity
from edl.records import Generation, Liveness, Member, RingMember, Stage, WorkerProgress
from edl.worker.shared_state import SharedState

SETTLED_S = 60.0  # since the generation was announced
SEATS = tuple(RingMember(worker, "a", worker, "127.0.0.1", 9000 + worker) for worker in range(3))
MEMBERS = tuple(
    Member(s.id, s.host, s.slot, s.address, s.port, 100 + s.id, f"t-{s.id}", Stage.ACTIVE, 4)
    for s in SEATS
)
WHOLE = Snapshot(
    job=make_job(np=3, max_np=3),
    members=MEMBERS,
    generation=Generation(4, 1, SEATS, 0, (), (), "w2 joined"),
)
W1_LEFT = replace(WHOLE, members=(MEMBERS[0], MEMBERS[2]))


class Asked:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.liveness: dict[int, Liveness] = {}
        self.last: set[int] = set()
        monkeypatch.setattr(failure_detector, "ask_all", self._ask_all)

    def _ask_all(self, ports: Mapping[int, tuple[str, int]], timeout_s: float) -> dict[int, Health]:
        self.last = set(ports)
        return {w: self._answer(w) for w in ports}

    def _answer(self, worker: int) -> Health:
        if worker in self.liveness:
            return Health(self.liveness[worker])
        return Health(Liveness.ALIVE, {"worker": f"w{worker}"})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def leader(quiet_s: float, silence_s: float = 1.0) -> FailureDetector:
    shared = SharedState(0)
    shared.progress = WorkerProgress(
        generation=4, size=3, step=40, median_step_s=0.01, updated_at=time.monotonic() - quiet_s
    )
    busy = Activity("waiting for the step records of the others", "", "records", quiet_s)
    limits = LivenessLimits(switch_s=0.0, silence_s=silence_s)  # the generation is no news
    return FailureDetector(Config(), 0, "run", lambda: shared.progress, lambda: busy, limits)


def test_nobody_is_asked_while_steps_complete(asked: Asked) -> None:
    assert leader(quiet_s=0.0).dead(WHOLE, SETTLED_S)[0] == {}
    assert asked.last == set()


def test_who_was_silent_when_its_session_ends_is_dead_at_once(asked: Asked) -> None:
    """Asked beforehand, since the ring stands still: the end of the session is the last proof."""
    asked.liveness[1] = Liveness.SILENT
    eyes = leader(quiet_s=5.0)
    assert eyes.dead(WHOLE, SETTLED_S)[0] == {}
    assert asked.last == {1, 2}
    assert eyes.dead(W1_LEFT, SETTLED_S)[0][1].startswith(
        "it is frozen or cut off: w1 (rank 1, host a) left"
    )
    assert asked.last == {2}


def test_silence_long_ago_proves_nothing(asked: Asked) -> None:
    asked.liveness[1] = Liveness.SILENT
    eyes = leader(quiet_s=5.0, silence_s=0.0)
    assert eyes.dead(WHOLE, SETTLED_S)[0] == {}
    del asked.liveness[1]
    assert eyes.dead(W1_LEFT, SETTLED_S)[0] == {}
    assert asked.last == {1, 2}


def test_silence_proves_nothing_while_steps_complete(asked: Asked) -> None:
    asked.liveness[1] = Liveness.SILENT
    assert leader(quiet_s=0.0).dead(W1_LEFT, SETTLED_S)[0] == {}
    assert asked.last == {1, 2}


def test_a_ring_that_stands_still_does_not_hide_a_death(asked: Asked) -> None:
    asked.liveness[1] = Liveness.REFUSED
    dead, _ = leader(quiet_s=5.0).dead(WHOLE, SETTLED_S)
    assert dead == {1: "its process is gone: 127.0.0.1:9001 refuses connections"}
