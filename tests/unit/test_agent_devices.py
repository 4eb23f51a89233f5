"""An agent's record, its devices, and the order of its writes and starts: nothing else runs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import make_job

from edl.errors import CoordinationError
from edl.events import Event, FinishedDetails
from edl.host.adoption import RunningWorker
from edl.host.agent import Agent
from edl.host.decide import AgentLimits
from edl.host.process import ScriptEnd
from edl.host.workers import End
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    Leader,
    Liveness,
    Member,
    RingMember,
    Stage,
)
from edl.zookeeper.events import OnUnreadable, leave_out

HERE = Host("a", 4, "127.0.0.1", 77)
JOB = make_job(max_np=9, max_restarts=1000, template=False)
RING = Generation(1, 1, (RingMember(9, "b", 0, "127.0.0.1", 1),), 9, (9,), (), "start")
LEADING = Member(9, "b", 0, "127.0.0.1", 1, 9, "b-0", Stage.ACTIVE, 1)


class Hosts:
    def __init__(self) -> None:
        self.may_have: list[Host] = []
        self.fails = ""  # of the next write: "lost" (not written) or "unanswered" (written)

    def put(self, host: Host, is_dead: Callable[[Host], bool]) -> None:
        fails, self.fails = self.fails, ""
        if fails == "":
            self.may_have = [host]
            return
        if fails == "unanswered":
            self.may_have.append(host)
        raise CoordinationError("ZooKeeper does not answer")


class Store:
    def __init__(self) -> None:
        self.session = SimpleNamespace(connected=True, epoch=1, add_listener=lambda f: None)
        self.incarnation = (1, 0)
        self.hosts = Hosts()
        self.assigned = Assigned({"a": 0})
        self.members_here: tuple[Member, ...] = ()
        self.name, self.copy = "digits", SimpleNamespace(generation=None)
        self.nodes = SimpleNamespace(run="run")
        self.members = SimpleNamespace(remove=lambda worker, attempt_id: None)
        self.events = SimpleNamespace(
            add=self._add, read_known=lambda after=-1, unreadable=None: [], newest_step=lambda: 0
        )

    def _add(self, event: Event) -> None: ...

    def assign(self, np: int, *devices: int) -> None:
        self.assigned = Assigned({"a": np}, devices={"a": devices})

    def snapshot(self, wake: Callable[[], None] | None = None) -> Snapshot:
        return Snapshot(
            JOB,
            tuple(self.hosts.may_have[-1:]),
            (*self.members_here, LEADING),
            Desired(self.assigned.hosts),
            self.assigned,
            generation=RING,
            leader=Leader(1, 9),
        )


class Workers:
    """Processes that end when a test says so; ``starts`` has the device of each."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.running: dict[str, int | None] = {}
        self.starts: list[int | None] = []
        self.ends: list[str] = []
        self.found: tuple[RunningWorker, ...] = ()
        self.log = Path("/nowhere")

    def start(
        self, attempt_id: str, slot: int, waits_s: float, variables: Mapping[str, str]
    ) -> None:
        device = int(variables["EDL_DEVICE"]) if variables else None
        if device is not None:  # whatever the node has, it has this device
            assert all(device in host.devices for host in self.hosts.may_have)
        self.running[attempt_id] = device
        self.starts.append(device)

    def orphans(self) -> tuple[RunningWorker, ...]:
        return tuple(one for one in self.found if one.attempt_id not in self.running)

    def watch(self, orphans: Iterable[RunningWorker]) -> None:
        self.running |= {one.attempt_id: one.device for one in orphans}

    def keep_logs(self, now: float) -> None:
        pass

    def reap(self) -> dict[str, End]:
        ends, self.ends = self.ends, []
        for attempt_id in ends:
            del self.running[attempt_id]
        return {attempt_id: End(0, None) for attempt_id in ends}

    def end(self, attempt_id: str, kill: bool) -> None:
        if attempt_id not in self.ends:
            self.ends.append(attempt_id)

    def ended_scripts(self) -> dict[str, ScriptEnd]:
        return {}

    def name(self, attempt_id: str, name: str) -> None: ...

    def log_of(self, attempt_id: str) -> Path:
        return self.log


class Case:
    def __init__(self, tmp_path: Path, host: Host = HERE) -> None:
        self.store = Store()
        self.workers = Workers(self.store.hosts)
        output = SimpleNamespace(follow=lambda *a, **k: None, note=lambda text: None)
        output.finish = lambda attempt_id: ""
        output.name = lambda attempt_id, name: None
        self.agent = Agent(
            cast(Any, self.store),
            host,
            JOB,
            cast(Any, output),
            {},
            tmp_path,
            "hello",
            AgentLimits(),
        )
        self.agent._workers = cast(Any, self.workers)
        self.now = 0.0

    def turn(self) -> Host:
        self.agent.on_change()
        self.now += 40.0  # longer than any pause after a failed start
        assert self.agent._turn(self.now) is None
        return self.store.hosts.may_have[-1]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_the_record_has_a_device_before_a_worker_starts_on_it(case: Case) -> None:
    case.store.assign(2, 3, 1)
    first = case.turn()
    assert (first.devices, first.busy, case.workers.starts) == ((1, 3), (), [1, 3])
    assert case.turn().busy == (1, 3)


@pytest.mark.parametrize("how", ["lost", "unanswered"])
def test_nobody_starts_while_it_is_not_known_what_the_record_has(case: Case, how: str) -> None:
    case.store.assign(0)
    case.turn()
    case.store.assign(1, 2)
    case.store.hosts.fails = how
    case.turn()
    assert case.workers.starts == []
    assert case.turn().devices == (2,)
    assert case.workers.starts == [2]


def test_a_device_is_given_back_in_two_steps(case: Case) -> None:
    case.store.assign(2, 0, 1)
    case.turn()
    case.store.assign(1, 0)
    after = case.turn()
    assert (after.devices, after.busy) == ((0,), (0, 1))  # its process lives
    after = case.turn()  # it was a newcomer, so the agent has ended it
    assert (after.devices, after.busy, case.workers.starts) == ((0,), (0,), [0, 1])


def test_a_device_that_was_taken_by_a_write_without_an_answer_is_written_again(case: Case) -> None:
    case.store.assign(1, 0)
    case.turn()
    [worker] = case.workers.running
    case.store.assign(0)
    case.store.hosts.fails = "unanswered"  # the device may be another job's from now on
    case.turn()
    case.workers.ends.append(worker)
    case.store.assign(1, 0)
    assert case.turn().devices == (0,)
    case.turn()  # the pause is over
    assert case.workers.starts == [0, 0]


def test_the_first_record_has_the_devices_of_workers_that_an_earlier_agent_left(case: Case) -> None:
    process = cast(Any, SimpleNamespace(pid=5, create_time=lambda: 0.0))
    case.workers.found = (RunningWorker(process, "old-0", 1, 3), RunningWorker(process, "old-1", 0))
    written: list[Host] = []
    put = case.store.hosts.put
    case.store.hosts.put = lambda *given: (written.append(given[0]), put(*given))[1]
    case.store.assign(3, 0, 1, 3)
    case.turn()
    # The one that was given none counts where devices are limited, before anybody starts.
    assert [(h.devices, h.busy) for h in written] == [((), (3,)), ((0, 1, 3), (0, 3))]
    assert case.workers.starts == [1]


def test_no_record_forgets_the_devices_of_these_workers_when_the_connection_breaks(
    case: Case,
) -> None:
    """The agent has joined, so it reads the events, too; they are reported once."""
    process = cast(Any, SimpleNamespace(pid=5, create_time=lambda: 0.0))
    case.workers.found = (
        RunningWorker(process, "old-0", 0, 0),
        RunningWorker(process, "old-1", 1, 1),
    )
    written: list[Host] = []
    put = case.store.hosts.put
    case.store.hosts.put = lambda *given: (written.append(given[0]), put(*given))[1]
    before, breaks = Event(0.0, 1, 0, "before", FinishedDetails()), [True]

    def read_known(
        after: int = -1, _unreadable: OnUnreadable = leave_out
    ) -> list[tuple[int, Event]]:
        if breaks:
            breaks.pop()
            raise CoordinationError("the connection broke")
        return [(7, before)] if after < 7 else []

    case.store.events.read_known = read_known
    case.agent._joined = True
    reported: list[Event] = []
    case.agent._on_event = reported.append
    case.store.assign(2, 0, 1)
    case.agent._turn(0.0)
    case.store.hosts.fails = "lost"
    case.agent._turn(1.0)
    assert case.turn().busy == (0, 1)
    assert all(host.busy == (0, 1) for host in written)
    assert reported == [before]


@pytest.mark.parametrize("evicted", [{}, {4: "it is frozen or cut off: w4"}])
def test_a_frozen_worker_that_an_earlier_agent_left_is_ended(
    case: Case, monkeypatch: pytest.MonkeyPatch, evicted: dict[int, str]
) -> None:
    """It has no session any more. Before its eviction it is in the ring, and does not answer."""
    process = cast(Any, SimpleNamespace(pid=5, create_time=lambda: 0.0))
    case.workers.found = (RunningWorker(process, "old-0", 0, worker=4),)
    member = RingMember(4, "a", 0, "127.0.0.1", 7)
    ring = RING if evicted else replace(RING, members=(*RING.members, member))
    asked: list[tuple[str, int]] = []

    def ask(doors: Mapping[int, tuple[str, int]], timeout_s: float) -> dict[int, Any]:
        asked.extend(doors.values())
        return dict.fromkeys(doors, SimpleNamespace(liveness=Liveness.SILENT))

    monkeypatch.setattr("edl.host.workers.ask_all", ask)
    read = case.store.snapshot
    case.store.snapshot = lambda wake=None: replace(read(wake), generation=ring, evicted=evicted)
    monkeypatch.setattr(case.agent._frozen, "write_stacks", lambda process: None)
    case.store.assign(1, 0)
    for _ in range(3):  # it is asked, killed after a time limit, and reaped
        case.turn()
    assert "old-0" not in case.workers.running
    assert set(asked) == (set() if evicted else {("127.0.0.1", 7)})


def test_workers_that_another_agent_has_started_are_busy_too(case: Case) -> None:
    case.store.members_here = (Member(4, "a", 0, "127.0.0.1", 1, 9, "other-0", device=1),)
    case.store.assign(2, 0, 1)
    assert case.turn().busy == (1,)
    assert case.workers.starts == [0]


def test_without_devices_the_record_is_written_once(case: Case) -> None:
    case.store.assigned = Assigned({"a": 2})
    first = case.turn()
    assert case.turn() is first
    assert (first.devices, first.busy, case.workers.starts) == ((), (), [None, None])


@pytest.mark.parametrize(("machine", "waits"), [("h (boot, 1)", 1), ("h (boot, 2)", 0), ("", 0)])
def test_a_container_that_begins_again_waits_for_the_session_of_the_former_one(
    tmp_path: Path, machine: str, waits: int
) -> None:
    """The agent of the former one had the same process id, which says nothing about its life."""
    here = replace(HERE, pid=os.getpid(), machine="h (boot, 2)")
    case, waited = Case(tmp_path, here), []

    def wait(timeout_s: float) -> None:
        waited.append(timeout_s)
        case.store.hosts.may_have.clear()  # the session ends

    case.store.session.granted_s = 6.0
    case.store.hosts.may_have = [replace(here, machine=machine)]
    case.agent._wake = cast(Any, SimpleNamespace(wait=wait))
    case.agent._await_former()
    assert len(waited) == waits


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_worker_starts_on_a_device_that_another_job_may_have(
    tmp_path: Path, seed: int
) -> None:
    """``Workers.start`` checks it; here devices come and go, and writes and answers are lost."""
    case, chance = Case(tmp_path), random.Random(seed)
    for _ in range(60):
        if chance.random() < 0.5:
            devices = chance.sample(range(4), chance.randint(0, 4))
            case.store.assign(chance.randint(0, len(devices)), *devices)
        case.store.hosts.fails = chance.choice(["", "", "lost", "unanswered"])
        if case.workers.running and chance.random() < 0.3:
            case.workers.end(chance.choice(sorted(case.workers.running)), False)
        if chance.random() < 0.1:  # the session is another one
            case.store.incarnation = (case.store.incarnation[0] + 1, 0)
        case.turn() if case.store.hosts.may_have else case.agent._turn(case.now)
        living = [device for device in case.workers.running.values() if device is not None]
        assert len(living) == len(set(living))
        taken = [set(host.devices) | set(host.busy) for host in case.store.hosts.may_have]
        assert all(set(living) <= each for each in taken)
    assert case.workers.starts
