"""Cause faults in a running job, one worker at a time, and watch the job until it trains again.

Only workers of this host are chosen. A worker's process id comes from ZooKeeper, where it may be
old, or of another machine. So the process gets a signal through a handle (pidfd) that is opened
before the worker's own launch token is looked for in the environment of the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from edl.chaos.fault_schedule import Action, ObservedWorker, Order, Plan, choose_worker
from edl.errors import CoordinationError, EdlError, RingError, UsageError
from edl.events import Event, EventKind, SwitchDetails
from edl.http import client
from edl.http.signing import http_key
from edl.job.snapshot import Snapshot
from edl.records import JobState, Member, Stage, WorkerProgress
from edl.zookeeper.store import JobStore

POLL_S = 0.05
HEALTH_S = 1.0
STEPS = 2  # so many complete steps after a fault prove that the job trains again
PARTS_S = 3.0  # how long the event that splits a recovery into its parts is waited for
ENDPOINTS = {Action.EXPIRE: "expire", Action.CUT: "cut"}  # see edl.chaos.endpoints


@dataclass(frozen=True)
class Fault:
    """One fault that `edl chaos` caused, and what followed from it."""

    number: int
    order: Order  # the order that was carried out
    worker: int  # the number of the worker
    led: bool  # whether the worker led the job when the fault was caused
    step: int  # the job's newest complete step when the fault was caused
    recovered: bool  # in time the job trained again, ended without failing, or was being stopped
    text: str  # the outcome as a clause, for people
    # the outcome for programs, as JSON values: `generation`, and if it is a new one `reasons`,
    # `parts` (seconds by part of the longest stall) and `stall_s`, if the log has it. Without a
    # recovery: `events`, the reasons of the events since the fault. Empty: the job ended or was
    # being stopped.
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "fault": self.number,
            "action": str(self.order.action),
            "target": self.order.target,
            "worker": f"w{self.worker}",
            "leader": self.led,
            "step": self.step,
            "recovered": self.recovered,
            "outcome": self.text,
            **self.details,
        }

    def __str__(self) -> str:
        who = f"w{self.worker}" + (", the leader," if self.led else "")
        return f"fault {self.number}: {self.order.action} {who} at step {self.step}: {self.text}"


class Chaos:
    """The execution of one plan of faults on one job; call `run` once."""

    def __init__(
        self, store: JobStore, plan: Plan, limit_s: float, note: Callable[[str], None]
    ) -> None:
        self._store = store
        self._plan = plan
        self._limit_s = limit_s
        self._note = note
        self._random = Random(plan.seed)
        self._thaws: list[threading.Timer] = []
        self._faults = 0
        self._said = ""

    def run(self) -> Iterator[Fault]:
        """Cause the plan's faults one after the other; yield each once its outcome is known."""
        snapshot = self._snapshot()
        if snapshot.job.state is not JobState.RUNNING:
            raise UsageError(f"job {snapshot.job.name} {snapshot.job.state.phrase}")
        doors = [order for order in self._plan.orders if order.action in ENDPOINTS]
        if doors and not snapshot.job.spec.settings.chaos:
            raise UsageError(
                f"--{doors[0].action} needs the workers' help; start the job with `edl run --chaos`"
            )
        try:
            yield from self._strikes()
        finally:
            for thaw in self._thaws:  # nobody stays frozen
                thaw.cancel()
                thaw.function()

    def _strikes(self) -> Iterator[Fault]:
        plan, began = self._plan, time.monotonic()
        at_steps, moments = list(plan.at_steps), plan.moments(self._random)
        due = next(moments, None)
        while at_steps or due is not None:
            elapsed = time.monotonic() - began
            if plan.count is not None and self._faults >= plan.count:
                return
            if plan.duration_s is not None and elapsed >= plan.duration_s:
                return
            snapshot = self._snapshot()
            if snapshot.job.state is not JobState.RUNNING:
                return
            order: Order | None = None
            if at_steps and self._step(snapshot) >= (at_steps[0].step or 0):
                order = at_steps[0]
            elif due is not None and elapsed >= due[0]:
                order = due[1]
            fault = self._strike(order, snapshot) if order is not None else None
            if fault is None:
                time.sleep(POLL_S)
                continue
            yield fault
            if not fault.recovered:
                return
            if order is not None and order.step is not None:
                at_steps.pop(0)
            else:
                due = next(moments, None)

    # --- one fault

    def _strike(self, order: Order, snapshot: Snapshot) -> Fault | None:
        members = {member.id: member for member in snapshot.members}
        led = snapshot.leader.worker if snapshot.leader else None
        chosen, reason = choose_worker(order, self._workers(snapshot), led, self._random)
        if chosen is None:
            self._say(f"{order}: {reason}; waiting")
            return None
        step = self._step(snapshot)
        seen = max((number for number, _ in self._store.events.read()), default=-1)
        generation = snapshot.generation.number if snapshot.generation else 0
        try:
            self._do(order.action, members[chosen])
        except (ProcessLookupError, ConnectionRefusedError, RingError) as error:
            self._say(f"{order}: w{chosen} could not be struck ({error}); again")
            return None
        self._faults += 1
        struck = time.monotonic()
        recovered = self._await_recovery(order, chosen, generation, step)
        text, details = self._outcome(recovered, seen, generation, time.monotonic() - struck)
        return Fault(
            self._faults, order, chosen, chosen == led, step, recovered is not None, text, details
        )

    def _do(self, action: Action, member: Member) -> None:
        if action in ENDPOINTS:
            status = post_fault(self._store, member, action)
            if status != 200:
                raise EdlError(
                    f"w{member.id} refused --{action} with HTTP {status}; "
                    "start the job with `edl run --chaos`"
                )
            return
        number = {Action.KILL: signal.SIGKILL, Action.TERM: signal.SIGTERM}.get(
            action, signal.SIGSTOP
        )
        send_signal(member, number)
        if number is signal.SIGSTOP:

            def thaw() -> None:
                with contextlib.suppress(ProcessLookupError):
                    send_signal(member, signal.SIGCONT)

            timer = threading.Timer(self._plan.freeze_s, thaw)
            timer.daemon = True
            timer.start()
            self._thaws = [t for t in self._thaws if t.is_alive()] + [timer]

    def _await_recovery(
        self, order: Order, worker: int, generation: int, step: int
    ) -> Snapshot | None:
        """Wait until the job trains again after a fault, or does not run any more."""
        deadline = time.monotonic() + self._limit_s
        base: tuple[int, int] | None = None  # generation and step when the ring was whole again
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            snapshot = self._snapshot()
            if snapshot.job.state is not JobState.RUNNING:
                return None if snapshot.job.state is JobState.FAILED else snapshot
            if not _settled(snapshot, order.action, worker, generation):
                base = None
                continue
            assert snapshot.generation is not None
            now = (snapshot.generation.number, self._step(snapshot))
            if base is None or base[0] != now[0]:
                base = now
            elif now[1] >= max(base[1], step) + STEPS:
                return snapshot
        return None

    def _outcome(
        self, recovered: Snapshot | None, seen: int, generation: int, took_s: float
    ) -> tuple[str, dict[str, Any]]:
        if recovered is None:
            snapshot = self._snapshot()
            why = snapshot.status.reason if snapshot.job.state is JobState.RUNNING else ""
            text = (
                f"NOT recovered after {took_s:.1f} s; job {snapshot.job.name} is "
                f"{snapshot.job.state}: {snapshot.job.reason or why or 'no reason given'}"
            )
            return text, {"events": [e.reason for _, e in self._store.events.read(seen)]}
        if recovered.job.state is not JobState.RUNNING:
            return f"the job {recovered.job.state}: {recovered.job.reason}", {}
        number = recovered.generation.number if recovered.generation else generation
        if number == generation:
            return "the ring goes on, no change of membership", {"generation": number}
        events = self._events_of(number, seen)
        reasons = [e.reason for e in events if e.kind is EventKind.GENERATION]
        parts = slowest_parts([e for e in events if e.generation == number])
        details: dict[str, Any] = {"generation": number, "reasons": reasons, "parts": parts}
        text = f"generation {number}: {reasons[-1] if reasons else 'no reason logged'}"
        if parts:
            stall = parts.pop("stall_s")
            spent = ", ".join(f"{n.removesuffix('_s')} {s:.2f}" for n, s in parts.items() if s)
            details["stall_s"] = stall
            text += f"; it stood still for {stall:.2f} s ({spent})"
        return text, details

    def _events_of(self, generation: int, seen: int) -> list[Event]:
        deadline = time.monotonic() + PARTS_S
        while True:
            events = [event for _, event in self._store.events.read(seen)]
            # It is logged two steps after the switch.
            done = any(e.kind is EventKind.SWITCH and e.generation >= generation for e in events)
            if done or time.monotonic() >= deadline:
                return events
            time.sleep(POLL_S)

    # --- facts

    def _workers(self, snapshot: Snapshot) -> list[ObservedWorker]:
        members = snapshot.generation.worker_ids if snapshot.generation else ()
        number = snapshot.generation.number if snapshot.generation else 0
        workers = []
        for member in snapshot.members:
            in_ring = member.id in members and member.generation > 0
            ring = health(member).generation if in_ring else 0
            broken = member.broken is not None and member.broken.generation >= number
            trained = ring == number > 0 and not broken
            here = is_process_of(member) and member.stage is not Stage.FINISHED
            workers.append(ObservedWorker(member.id, in_ring, here, trained))
        return workers

    def _step(self, snapshot: Snapshot) -> int:
        members = snapshot.generation.worker_ids if snapshot.generation else ()
        for member in snapshot.members:
            if member.id in members:
                return max(snapshot.status.step, health(member).step)
        return snapshot.status.step

    def _snapshot(self) -> Snapshot:
        """Return a new snapshot of the job's records; for `limit_s` try again if it fails."""
        deadline = time.monotonic() + self._limit_s
        while True:
            try:
                return self._store.snapshot()
            except CoordinationError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(POLL_S)

    def _say(self, text: str) -> None:
        """Pass `text` to `note`, unless the text before it was the same."""
        if text != self._said:
            self._said = text
            self._note(text)


def _settled(snapshot: Snapshot, action: Action, worker: int, generation: int) -> bool:
    # After CUT the generation must be newer; after KILL and TERM the worker must be out of it.
    current = snapshot.generation
    if current is None or not current.members:
        return False
    members = {member.id: member for member in snapshot.members}
    entered = all(
        w in members and members[w].generation >= current.number for w in current.worker_ids
    )
    if not entered:
        return False
    if action is Action.CUT:
        return current.number > generation
    if action in (Action.KILL, Action.TERM):
        return worker not in current.worker_ids
    return True


def post_fault(store: JobStore, member: Member, action: Action) -> int:
    access = store.session.access
    assert access is not None
    key, path = http_key(access.secret, access.job), f"/chaos/{ENDPOINTS[action]}"
    return client.send_change(key, member.id, "POST", member.address, member.port, path, HEALTH_S)[
        0
    ]


def send_signal(member: Member, number: signal.Signals) -> None:
    """Send the signal `number` to the process of the worker `member`, and to no other process."""
    with _opened(member) as handle:
        signal.pidfd_send_signal(handle, number)


def is_process_of(member: Member) -> bool:
    try:
        with _opened(member):
            return True
    except ProcessLookupError:
        return False


@contextmanager
def _opened(member: Member) -> Iterator[int]:
    """Open a handle (pidfd) to the process of the worker `member`, and close it after the block."""
    handle = os.pidfd_open(member.pid)  # from now on the number cannot mean somebody else
    try:
        words = Path(f"/proc/{member.pid}/environ").read_bytes().split(b"\0")
        if not member.attempt_id or f"EDL_ATTEMPT_ID={member.attempt_id}".encode() not in words:
            raise ProcessLookupError(f"process {member.pid} is not w{member.id}")
        yield handle
    except (FileNotFoundError, PermissionError) as error:
        raise ProcessLookupError(f"process {member.pid} is not w{member.id}") from error
    finally:
        os.close(handle)


def slowest_parts(events: list[Event]) -> dict[str, float]:
    """Return the parts of the longest stall of a worker in a switch, in seconds by name."""
    slowest: dict[str, float] = {}
    for event in events:
        if not isinstance(event.details, SwitchDetails):
            continue
        workers = event.details.workers.values()
        for parts in workers:
            if parts.role == "new" and len(workers) > 1:
                continue
            if parts.stall_s >= slowest.get("stall_s", 0.0):
                slowest = parts.seconds()
                del slowest["median_step_s"]
    return slowest


def summary(faults: list[Fault], seed: int) -> str:
    if not faults:
        return "no fault was made"
    count = {action: sum(f.order.action is action for f in faults) for action in Action}
    kinds = ", ".join(f"{number} {action}" for action, number in count.items() if number)
    text = f"{len(faults)} faults ({kinds}), {sum(f.recovered for f in faults)} recovered"
    stalls = sorted(float(f.details["stall_s"]) for f in faults if "stall_s" in f.details)
    if stalls:
        text += f"; the job stood still {statistics.median(stalls):.2f} s in the median, "
        text += f"{stalls[-1]:.2f} s at most"
    return f"{text}; seed {seed}"


def health(member: Member) -> WorkerProgress:
    try:
        _, body = client.fetch(member.address, member.port, "/health", HEALTH_S)
        return WorkerProgress.from_json(json.loads(body))
    except (OSError, RingError, ValueError, CoordinationError):
        return WorkerProgress()
