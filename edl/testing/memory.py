"""Keep the coordination of a job in memory: ZooKeeper's data, a leader, and the workers' daemons.

The leader's decisions are real (:func:`edl.job.membership.decide`). A daemon writes what its worker
has to report, reads what is new, and breaks a ring in which its worker could wait for ever
(docs/explanation/protocol.md in its simplest form), when the schedule lets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from edl.events import Event
from edl.job.decision import Limits
from edl.job.liveness import AgeTracker
from edl.job.membership import decide
from edl.job.run import JobEnd
from edl.job.script import ScriptOfJob
from edl.job.snapshot import Snapshot
from edl.job.stall import FOR_GRADIENTS, FOR_NUMBERS
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    Job,
    JobState,
    Leader,
    Member,
    Request,
    RingFailure,
    Stage,
)
from edl.ring.loopback import LoopbackNetwork
from edl.ring.ring import Ring
from edl.testing.schedule import BackgroundTask, TaskScheduler
from edl.worker.coordinator import NoPolicy
from edl.worker.shared_state import SharedState

ADDRESS = "127.0.0.1"
POLL_S = 0.5  # how often a leader looks although nothing has changed
CUT_S = 0.05  # again and again: a ring that is being built opens connections all the time
SESSION_S = 6.0  # until ZooKeeper drops the session of a process that is gone or frozen
LIMITS = Limits(
    start_s=20.0,
    prepare_s=50.0,
    gather_s=3.0,
    leave_grace_s=30.0,
    notice_s=10.0,
    report_s=100.0,
    leave_gather_s=0.5,
)


class MemoryJob:
    """The records of one job that ZooKeeper would hold, and the decisions of the job's leader."""

    def __init__(
        self, job: Job, hosts: Mapping[str, int], schedule: TaskScheduler, network: LoopbackNetwork
    ) -> None:
        self.job = job
        self.hosts = dict(hosts)  # workers desired and assigned
        self.schedule = schedule
        self.network = network
        self.nodes: dict[int, Member] = {}  # by worker id, the record that the worker has written
        self.generation: Generation | None = None  # the newest
        self.generations: list[Generation] = []
        self.evicted: dict[int, str] = {}  # worker id -> why
        self.on_generation: Callable[[Generation], None] = lambda _: None  # one was written
        self.requests: dict[int, Request] = {}
        self.answered: list[Request] = []
        self.events: list[Event] = []
        self.agents: dict[str, int] = {}  # host -> slots
        self.script = ScriptOfJob()  # of those in the ring
        self.leader: Leader | None = None  # the present or last leader; None before the first
        self.gone: dict[int, float] = {}  # worker id -> when its process ended, in virtual seconds
        self.frozen: dict[int, float] = {}  # worker id -> when it was frozen
        self.away = False  # nobody reaches ZooKeeper
        self.reasons: list[tuple[float, str]] = []  # of decisions, when they changed
        self.news = 0  # changes that daemons watch
        self.changes = 0  # all changes
        self._candidates: list[int] = []
        self._ages = AgeTracker(0.0)
        self._decided = (-1, -POLL_S)
        schedule.actors += [
            BackgroundTask("leader", self._may_decide, self._decide, self._decides_at),
            BackgroundTask(
                "sessions",
                lambda: (at := self._expires_at()) is not None and at <= schedule.now_s(),
                lambda: self.drop_session(self._ended()[0][1]),
                self._expires_at,
            ),
            BackgroundTask(
                "election",
                lambda: not self.away and not self.gone.keys().isdisjoint(self._candidates[:1]),
                lambda: self.resign(self._candidates[0]),
            ),
        ]

    # --- writes

    def changed(self, news: bool = False) -> None:
        """Count a change of the records, after which the leader decides again."""
        self.changes += 1
        self.news += news

    def put_member(self, member: Member) -> None:
        self.nodes[member.id] = member
        self.changed()

    def remove_member(self, worker: int) -> None:
        if self.nodes.pop(worker, None) is not None:
            self.changed()
        if not self.nodes and self.job.state is JobState.STOPPING:
            self.set_state(JobState.STOPPED, self.job.reason)

    def set_desired(self, hosts: Mapping[str, int]) -> None:
        self.hosts = dict(hosts)
        self.changed()

    def ask(self, kind: str, worker: int) -> None:
        number = len(self.requests) + len(self.answered)
        self.requests[number] = Request(kind, worker, number)
        self.changed()

    def set_state(self, state: JobState, reason: str) -> bool:
        """Set the state of the job and the reason for it, unless the job is over."""
        if self.job.state.over:
            return False
        self.job = replace(self.job, state=state, reason=reason)
        self.changed(news=True)
        return True

    # --- the election

    def campaign(self, worker: int) -> None:
        """Make `worker` the last candidate for leader, unless it is one; the first leads."""
        if worker not in self._candidates:
            self._candidates.append(worker)
            self._elect()

    def resign(self, worker: int) -> None:
        if worker in self._candidates:
            self._candidates.remove(worker)
            self._elect()

    def _elect(self) -> None:
        first = self._candidates[0] if self._candidates else None
        if first is not None and (self.leader is None or self.leader.worker != first):
            term = self.leader.term + 1 if self.leader is not None else 1
            self.leader, self._ages = Leader(term, first), AgeTracker(self.schedule.now_s())
            self.changed(news=True)

    # --- sessions

    def _ended(self) -> list[tuple[float, int]]:
        """Return (time, worker id) of those gone or frozen, the earliest end of a session first."""
        if not self.gone and not self.frozen:
            return []
        here = {*self.nodes, *self._candidates}
        since = {**self.frozen, **self.gone}
        return sorted((at + SESSION_S, worker) for worker, at in since.items() if worker in here)

    def _expires_at(self) -> float | None:
        ended = self._ended()
        return ended[0][0] if ended and not self.away else None

    def drop_session(self, worker: int) -> None:
        self.nodes.pop(worker, None)
        self.changed(news=True)
        self.resign(worker)

    # --- the leader

    @property
    def _leads(self) -> bool:
        """Whether there is a leader that can act: alive, not frozen, and in reach of ZooKeeper."""
        if self.leader is None or self.away or self.job.state.over:
            return False
        worker = self.leader.worker
        return worker in self._candidates[:1] and not (worker in self.gone or worker in self.frozen)

    def _may_decide(self) -> bool:
        seen, at = self._decided
        return (self.changes != seen or self.schedule.now_s() >= at + POLL_S) and self._leads

    def _decides_at(self) -> float | None:
        return self._decided[1] + POLL_S if self._leads else None

    def _decide(self) -> None:
        # Nothing else happens in between, as in one transaction.
        now_s, now = self.schedule.now_s(), self.snapshot()
        self._decided = (self.changes, now_s)
        assert self.leader is not None
        dead = {w: f"the process of w{w} is gone" for w in self.gone}
        dead |= {w: f"w{w} is frozen" for w in self.frozen if w not in self.nodes}
        silent = frozenset(self.frozen)
        ages = self._ages.observe(now, now_s)
        decision = decide(now, self.leader.term, ages, LIMITS, dead, silent)
        said = "; ".join([decision.reason, *decision.evict.values()])
        if not self.reasons or self.reasons[-1][1] != said:
            self.reasons.append((now_s, said))
        if (new := decision.generation) is not None:
            self.generation = replace(new, scope=f"g{new.number}-00")
            self.generations.append(self.generation)
            self.on_generation(self.generation)
        if decision.change:
            self.hosts = dict(decision.change.desired.hosts)
        self.evicted |= decision.evict
        for answer in decision.answers:
            del self.requests[answer.number]
            self.answered.append(answer)
        if decision.acts:
            self.changed(news=True)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            job=self.job,
            hosts=tuple(Host(h, self.agents[h], ADDRESS) for h in sorted(self.agents)),
            members=tuple(self.nodes[worker] for worker in sorted(self.nodes)),
            desired=Desired(dict(self.hosts)),
            assigned=Assigned(dict(self.hosts)),
            generation=self.generation,
            leader=self.leader,
            requests=tuple(self.requests[number] for number in sorted(self.requests)),
            evicted=dict(self.evicted),
        )


class MemoryCoordinator:
    """The `Coordinator` of one worker with the job in memory; it acts as the daemon, too."""

    is_shared = True
    run = "loopback"

    def __init__(self, job: MemoryJob, member: Member, shared: SharedState, ring: Ring) -> None:
        self._job = job
        self._member = member
        self._shared = shared
        self._ring = ring
        self._written = shared.clock.condition()
        self._dirty = False
        self._ends: list[tuple[JobEnd, Event | None]] = []
        self._candidate = False
        self._resigned = False
        self._open = False
        self._seen = -1
        self._newest = 0
        self._cut_after = 0.0
        self.settings, self.sizes = job.job.spec.settings, job.job.sizes
        self.leave_requested = False
        self.released_from = ""
        self._ended_in = 0  # the generation in whose ring the script has ended
        self.policy = NoPolicy()
        name = f"daemon of w{member.id}"
        job.schedule.actors.append(BackgroundTask(name, self._is_due, self._turn, self._cuts_at))

    @property
    def away(self) -> bool:
        return self._job.away

    def last_step(self) -> int:
        """Return 0 as the last step that a leader has published: none publishes its steps here."""
        return 0  # nothing is saved here

    def put_saved(self, directory: str, step: int) -> None:
        self._job.job = replace(self._job.job, checkpoint=directory, saved_step=step)

    # --- called by the training thread

    def start(self) -> tuple[Member, Generation | None]:
        self._shared.worker = self._member.id
        self._job.put_member(self._member)
        self._open = True
        return self._member, self._job.generation

    def close(self) -> None:
        if not self._open:
            return
        self._write()
        self._open = False
        self._job.resign(self._member.id)
        self._job.remove_member(self._member.id)

    def resign(self) -> None:
        self._resigned = True
        self._dirty = True

    def script_of_job(self) -> ScriptOfJob:
        return self._job.script

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        """Return the message of this worker, `payload`, alone: no script here is unchanged."""
        return [payload]

    def campaign(self) -> None:
        self._candidate = True
        self._job.campaign(self._member.id)

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> None:
        self._change(self._member.at(stage, generation, newest_generation, fits))

    def report_broken(self, failure: RingFailure) -> None:
        self._change(replace(self._member, broken=failure))

    def end_job(self, end: JobEnd, event: Event | None = None) -> None:
        self._ends.append((end, event))
        self._dirty = True

    def release_others(self, generation: Generation | None) -> None:
        self._ended_in = 0 if generation is None else generation.number

    def flush(self, timeout_s: float) -> bool:
        with self._written:
            return self._written.wait_for(lambda: not self._dirty, timeout_s)

    def _change(self, member: Member) -> None:
        self._member = member
        self._dirty = True

    # --- the daemon's thread

    def _is_due(self) -> bool:
        job, worker = self._job, self._member.id
        if not self._open or job.away or worker in job.gone or worker in job.frozen:
            return False
        fresh = self._dirty or self.leave_requested or self._seen != job.news
        if fresh or not (job.evicted or self._ended_in or self._ring.is_building):
            return fresh  # what follows is asked a hundred times a step, and not needed
        return self._must_cut() or bool(self._needed_for())

    def _needed_for(self) -> str:
        """Return for which collective other workers wait for this one, whose script has ended."""
        if not self._ended_in or self._ring.membership[0] != self._ended_in:
            return ""
        member = self._job.network.member(self._member.id)
        if member.is_missed_in("edl.gradient"):
            return FOR_GRADIENTS
        return FOR_NUMBERS if member.is_missed_in("edl.exchange") else ""

    def _turn(self) -> None:
        job, worker = self._job, self._member.id
        if self.leave_requested:
            self.leave_requested = False
            self.set_stage(Stage.LEAVING)
        if worker not in job.nodes and not self._resigned:
            self._dirty = True  # its session was lost
            if self._candidate and worker not in job.evicted:
                job.campaign(worker)
        if waits_for := self._needed_for():
            self._ring.break_(self._ended_in)
            self._ended_in, self.released_from = 0, waits_for
        if self._dirty:
            self._write()
        self._read()
        if self._must_cut():
            number, members = self._ring.membership
            self._ring.break_(number)
            self._cut_after = job.schedule.now_s() + CUT_S
            current = job.generation
            if {*job.evicted} & {*members} and current is not None and number == current.number:
                job.network.abort(worker, current)

    def _write(self) -> None:
        job = self._job
        for end, event in self._ends:
            if job.set_state(end.state, end.reason) and event is not None:
                job.events.append(event)
        self._ends.clear()
        if self._resigned:
            job.resign(self._member.id)
            job.remove_member(self._member.id)
        else:
            job.put_member(self._member)
        while (event := self._shared.next_event()) is not None:
            job.events.append(event)
            self._shared.event_is_written()
        with self._written:
            self._dirty = False
            self._written.notify_all()

    def _read(self) -> None:
        job, worker = self._job, self._member.id
        self._seen = job.news
        self._shared.leads(job.leader)
        self._shared.evicted = frozenset(job.evicted)
        if worker in job.evicted:
            self._shared.evict(job.evicted[worker])
            job.resign(worker)
        generation = job.generation
        if generation is not None and generation.number > self._newest:
            self._newest = generation.number
            job.network.serve(worker, generation.number)
            self._shared.announce(generation)
        self._shared.job_is(job.job.state, job.job.reason)

    def _must_cut(self) -> bool:
        return self._job.schedule.now_s() >= self._cut_after and self._wants_cut()

    def _wants_cut(self) -> bool:
        number, members = self._ring.membership
        if number == 0 or not (self._job.evicted or self._ring.is_building):
            return False
        lost = bool({*self._job.evicted} & {*members}) and self._seen == self._job.news
        return lost or (self._ring.is_building and number < self._newest)

    def _cuts_at(self) -> float | None:
        stands_still = self._member.id in {*self._job.gone, *self._job.frozen}
        wants = self._open and not stands_still and not self._job.away and self._wants_cut()
        return self._cut_after if wants else None
