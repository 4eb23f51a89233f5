"""The loop of a launcher, turn by turn: no process, no ZooKeeper, and the clock is a number."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import make_job, wanted

from edl.errors import CoordinationError, UnknownJob
from edl.events import Event, WorkerFailedDetails
from edl.host.agent import Supervisor
from edl.host.decide import AgentState, decide_agent
from edl.host.process import ScriptEnd
from edl.host.supervision import EndProcess, SupervisorDecision, SupervisorLimits
from edl.host.workers import End
from edl.job.snapshot import Snapshot
from edl.records import Generation, JobState, Leader, Member, RingMember
from edl.zookeeper.store import LOST

JOB = make_job(command=("train.py",), np=1)
RING = Generation(1, 1, (RingMember(9, "b", 0, "127.0.0.1", 1),), 9, (9,), (), "start")


class Store:
    def __init__(self) -> None:
        self.session = SimpleNamespace(connected=True, epoch=1, add_listener=lambda f: None)
        self.now = Snapshot(JOB, **wanted({"a": 1}), generation=RING, leader=Leader(1, 9))
        self.written: list[Event] = []
        self.states: list[JobState] = []
        self.fails: Exception | None = None
        self.lost = False
        self.copy = SimpleNamespace(generation=None)
        self.nodes = SimpleNamespace(run="run")
        self.members = SimpleNamespace(remove=lambda worker, attempt_id: None)
        self.events = SimpleNamespace(add=self._add, read=self._read, newest_step=lambda: 0)

    @property
    def incarnation(self) -> tuple[int, int]:
        return self.session.epoch, 0

    def was_lost(self, error: UnknownJob) -> bool:
        return self.lost

    def snapshot(self, wake: Callable[[], None]) -> Snapshot:
        self._fail()
        return self.now

    def _add(self, event: Event) -> None:
        self._fail()
        self.written.append(event)

    def _read(self, after: int = -1) -> list[tuple[int, Event]]:
        return [(n, event) for n, event in enumerate(self.written) if n > after]

    def set_job_state(self, state: JobState, *words: Any, event: Event, **more: Any) -> bool:
        self.states.append(state)
        self.written.append(event)
        return True

    def _fail(self) -> None:
        error, self.fails = self.fails, None
        if error is not None:
            raise error


class Workers:
    def __init__(self) -> None:
        self.running: dict[str, int] = {}  # the slot of each launch
        self.exits: dict[str, int] = {}
        self.waits: dict[str, float] = {}
        self.trained_s: float | None = None  # all of them, before they end
        self.said: dict[str, ScriptEnd] = {}
        self.forked = True
        self.gave_up = 0  # the template, so often
        self.full = False  # the machine: nothing more can be started
        self.signals: list[tuple[str, bool]] = []

    def pid_of(self, attempt_id: str) -> int | None:
        return None  # there is no process

    def start(self, launch: str, slot: int, waits_s: float, variables: Mapping[str, str]) -> None:
        if self.full:
            raise OSError(12, "Cannot allocate memory")
        self.waits[launch] = waits_s
        self.running[launch] = slot

    def keep_logs(self, now: float) -> None:
        pass

    def reap(self) -> dict[str, End]:
        codes, self.exits = self.exits, {}
        self.running = {one: slot for one, slot in self.running.items() if one not in codes}
        return {
            one: End(code, self.trained_s, self.said.get(one), self.forked)
            for one, code in codes.items()
        }

    def disable_template(self) -> None:
        self.gave_up += 1

    def close(self) -> None: ...

    def ended_scripts(self) -> dict[str, ScriptEnd]:
        return {}

    def end(self, launch: str, kill: bool) -> None:
        self.signals.append((launch, kill))

    def kill_all(self, timeout_s: float) -> None:
        self.exits = dict.fromkeys(self.running, -9)
        self.reap()

    def stacks_of(self, launch: str) -> Path:
        return Path("/nowhere")

    def __len__(self) -> int:
        return len(self.running)


class Launcher(Supervisor[AgentState]):
    def __init__(self, store: Store, workers: Workers) -> None:
        super().__init__(cast(Any, store), cast(Any, workers), AgentState("a", "t"), ("x",), 0)
        self.lines: list[str] = []
        self.registered = 0

    def turn(self, now: float) -> int | None:
        return self._turn(now)

    def _register(self, now: float) -> None:
        self.registered += 1

    def _handle_signal(self, snapshot: Snapshot | None, now: float) -> None: ...

    def _follow(self, snapshot: Snapshot, now: float) -> None: ...

    def _decide(self, snapshot: Snapshot, now: float) -> SupervisorDecision:
        return decide_agent(snapshot, self._state, now)

    def _finish(self, snapshot: Snapshot, code: int, now: float) -> int | None:
        return code

    def _notify(self, text: str, for_all: bool = False) -> None:
        self.lines.append(text)

    def _last_line(self, launch: str) -> str:
        return "Boom"


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def workers() -> Workers:
    return Workers()


@pytest.fixture
def launcher(store: Store, workers: Workers) -> Launcher:
    return Launcher(store, workers)


def test_a_program_that_ignores_its_children_does_so_again_after_the_run(
    workers: Workers, launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the exit codes of its workers can be read."""
    seen: list[Any] = []

    def turn(now: float) -> int:
        seen.append(signal.getsignal(signal.SIGCHLD))
        return 7

    monkeypatch.setattr(launcher, "_turn", turn)
    monkeypatch.setattr(workers, "kill_all", lambda timeout_s: None, raising=False)
    monkeypatch.setattr(workers, "close", lambda: None, raising=False)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert launcher.run() == 7
        seen.append(signal.getsignal(signal.SIGCHLD))
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert seen == [signal.SIG_DFL, signal.SIG_IGN]


def test_what_ends_is_logged_once_and_started_again_after_its_back_off(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    assert launcher.turn(100.0) is None
    assert list(workers.running) == ["t-0"]
    workers.exits = {"t-0": 3}
    launcher.turn(110.0)
    launcher.turn(110.9)
    assert not workers.running
    launcher.turn(111.0)
    assert list(workers.running) == ["t-1"]
    assert workers.waits == {"t-0": 0.0, "t-1": 0.0}, "it was in no ring"
    (event,) = store.written
    assert isinstance(event.details, WorkerFailedDetails)
    assert (event.details.exit_code, event.details.termination_message) == (3, "Boom")


def test_the_replacement_of_a_member_of_the_ring_waits_for_the_repair(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    mine = Member(5, "a", 0, "127.0.0.1", 1, 1, "t-0")
    ring = replace(RING, members=(*RING.members, RingMember(5, "a", 0, "127.0.0.1", 1)))
    other = replace(mine, id=9, host="b", attempt_id="other-0")
    store.now = replace(store.now, generation=ring, members=(mine, other))
    launcher.on_change()
    launcher.turn(105.0)
    workers.exits, workers.trained_s = {"t-0": -9}, 30.0
    launcher.turn(110.0)
    launcher.turn(110.1)
    assert workers.waits == {"t-0": 0.0, "t-1": SupervisorLimits.repair_s}


@pytest.mark.parametrize(
    ("code", "trained_s", "forked", "asked", "gave_up"),
    [
        (3, None, True, False, 1),
        (3, 5.0, True, False, 0),
        (3, None, False, False, 0),
        (-9, None, True, False, 0),
        (1, None, True, True, 0),  # a SIGTERM of its launcher may come in the midst of anything
    ],
)
def test_the_template_is_given_up_after_a_forked_worker_that_failed_by_itself_at_once(
    code: int,
    trained_s: float | None,
    forked: bool,
    asked: bool,
    gave_up: int,
    workers: Workers,
    launcher: Launcher,
) -> None:
    launcher.turn(100.0)
    if asked:
        launcher._end(EndProcess("t-0", False, "it is not wanted"), 105.0)
    workers.exits, workers.trained_s, workers.forked = {"t-0": code}, trained_s, forked
    launcher.turn(110.0)
    assert workers.gave_up == gave_up


def test_what_a_process_said_just_before_its_end_is_heard(
    workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    workers.exits = {"t-0": 0}
    workers.said = {"t-0": ScriptEnd(0, handled=True, stopped=True)}
    launcher.turn(110.0)
    assert launcher._state.process("t-0").stopped


def test_an_end_that_could_not_be_logged_is_logged_in_the_next_turn(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    workers.exits = {"t-0": 3}
    read = store.snapshot

    def then_fail(wake: Callable[[], None]) -> Snapshot:
        store.fails = None
        now = read(wake)
        store.fails = CoordinationError("no quorum")
        return now

    store.snapshot = then_fail  # type: ignore[method-assign]
    assert launcher.turn(110.0) is None
    assert store.written == []
    store.snapshot = read  # type: ignore[method-assign]
    assert launcher.turn(110.2) is None
    assert launcher.turn(110.4) is None
    assert [event.kind for event in store.written] == ["worker_failed"]


def test_a_worker_that_cannot_be_started_has_failed_and_is_tried_again(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    workers.full = True
    launcher.turn(100.0)
    launcher.turn(101.0)  # its end is seen; the pause of its slot is over
    details = store.written[0].details
    assert isinstance(details, WorkerFailedDetails)
    assert "cannot start x: Cannot allocate memory" in details.termination_message
    workers.full = False
    launcher.turn(104.0)
    assert len(workers) == 1


def test_while_zookeeper_is_away_workers_train_on_and_without_any_the_launcher_gives_up(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    store.session.connected = False
    assert [launcher.turn(t) for t in (101.0, 102.0, 500.0)] == [None, None, None]
    assert launcher.lines == ["ZooKeeper is away; training goes on, changes wait for its return"]
    store.session.connected, store.session.epoch = True, 2
    launcher.turn(501.0)
    assert launcher.lines[1] == "ZooKeeper is back"
    assert launcher.registered == 2  # the node of the first session is gone
    store.session.connected = False
    workers.exits = {"t-0": -9}
    assert launcher.turn(600.0) is None
    assert launcher.turn(719.9) is None
    assert launcher.turn(720.0) == 1


def test_a_job_that_is_gone_takes_its_workers_along(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    store.fails = UnknownJob("digits")
    launcher.on_change()
    assert launcher.turn(100.2) == 1
    assert not workers.running
    assert "its workers on this host were ended" in launcher.lines[0]


def test_a_job_that_zookeeper_has_lost_is_waited_for_and_signals_are_heard(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    store.lost = True
    for now in (100.2, 100.4):
        store.fails = UnknownJob("digits")
        launcher.on_change()
        assert launcher.turn(now) is None
    assert workers.running
    assert launcher.lines == [LOST]
    assert launcher.turn(100.6) is None


def test_the_launcher_ends_after_its_workers_when_the_job_is_over(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    launcher.turn(100.0)
    store.now = replace(store.now, job=replace(JOB, state=JobState.FAILED, exit_code=7))
    launcher.on_change()
    assert launcher.turn(101.0) is None
    assert workers.signals == [("t-0", False)]
    launcher.turn(106.0)
    assert workers.signals[1:] == [("t-0", True)]
    workers.exits = {"t-0": -9}
    assert launcher.turn(106.2) == 7


def test_a_job_that_cannot_begin_is_concluded(
    store: Store, workers: Workers, launcher: Launcher
) -> None:
    store.now = replace(store.now, generation=None)
    launcher.turn(100.0)
    workers.exits = {"t-0": 3}
    launcher.turn(101.0)
    assert store.states == [JobState.FAILED]
    assert [event.kind for event in store.written] == ["worker_failed", "job_failed"]
