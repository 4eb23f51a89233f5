"""A job in memory: processes, ZooKeeper's nodes and rings, small enough to be obviously right.

Only the decisions are the real ones (:func:`edl.job.membership.decide`). Everything else
follows docs/explanation/protocol.md in its barest form, and everything that may happen late or
never is a method of its own, so that a test chooses when it happens.

A worker's model is one number: the step it has completed, -1 while it has no state. What a test
must see is that workers of one ring always agree about it, and that it is never lost while one
who holds it lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from edl.errors import UsageError
from edl.job.borrowing import (
    NO_TERMS,
    ReclaimTerms,
    ReclaimTracker,
    borrow,
    overdue,
    reclaim,
    returned,
    without_reclaimed,
)
from edl.job.decision import Limits, MembershipDecision, set_desired
from edl.job.liveness import Ages, AgeTracker
from edl.job.membership import decide
from edl.job.placement import Placement
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    Job,
    JobState,
    Member,
    Request,
    RequestedBy,
    RequestKind,
    RingFailure,
    RingMember,
    Stage,
)

LIMITS = Limits(
    start_s=20,
    prepare_s=50,
    gather_s=3,
    leave_grace_s=30,
    notice_s=10,
    report_s=100,
    leave_gather_s=0.5,
)


@dataclass
class Worker:
    """A process; ``member`` is what it wants ZooKeeper to say of it."""

    member: Member
    hangs: bool = False  # it never gets ready
    sleeps: bool = False  # ready, it never moves again, though its port answers
    running: bool = True  # the process exists
    frozen: bool = False
    step: int = -1
    seen: Generation | None = None  # the newest generation that it knows
    ring: int = 0  # the ring it computes in
    target: int = 0  # the generation whose rendezvous it goes to, or stands in
    entered: bool = False  # it stands in the rendezvous of `target`
    failed: int = 0  # the last ring that failed under it, until it is in the next

    @property
    def id(self) -> int:
        return self.member.id

    @property
    def works(self) -> bool:
        return self.running and not self.frozen


@dataclass
class Leader:
    """What one leader knows by itself, in its term."""

    term: int = 1
    ages: AgeTracker = field(default_factory=lambda: AgeTracker(0.0))
    dead: dict[int, str] = field(default_factory=dict)  # its proofs
    silent: set[int] = field(default_factory=set)  # whose port it found silent
    snapshot: Snapshot | None = None  # what it has read and not yet acted on


@dataclass
class Model:
    """The whole job. Methods are events; each does nothing when it cannot happen now."""

    job: Job
    wanted: Desired  # and assigned
    slots: int = 8
    time: float = 0.0
    workers: dict[int, Worker] = field(default_factory=dict)
    nodes: dict[int, Member] = field(default_factory=dict)  # what ZooKeeper says
    evicted: dict[int, str] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    answered: list[Request] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    leader: Leader = field(default_factory=Leader)
    deposed: list[Leader] = field(default_factory=list)  # that do not know it yet
    total_losses: int = 0
    agentless: set[str] = field(default_factory=set)  # hosts whose agent is gone
    reclaims: ReclaimTracker = field(default_factory=ReclaimTracker)  # of all agents
    cut_off: set[int] = field(default_factory=set)  # workers that do not reach ZooKeeper
    steps_back: bool = False  # a newcomer has: others join at the start of an epoch
    in_epoch: bool = False  # no ring is at the end of one

    # --- reading ---

    @property
    def desired(self) -> dict[str, int]:
        return dict(self.wanted.hosts)

    @property
    def current(self) -> Generation | None:
        return self.generations[-1] if self.generations else None

    @property
    def ended(self) -> bool:
        return self.current is not None and not self.current.members

    def generation(self, number: int) -> Generation:
        return self.generations[number - 1]

    def ring(self, number: int) -> list[Worker]:
        return [w for w in self.workers.values() if w.running and w.ring == number]

    def running(self) -> list[Worker]:
        return [w for w in self.workers.values() if w.running]

    @property
    def given_up(self) -> set[int]:
        """Workers that the leader holds for dead, rightly or not."""
        return {*self.evicted, *self.leader.dead}

    # --- processes ---

    def spawn(self, host: str, hangs: bool = False, sleeps: bool = False) -> None:
        if len(self.running()) >= 16:
            return
        used = {w.member.slot for w in self.running() if w.member.host == host}
        slot = next(n for n in range(99) if n not in used)
        number = len(self.workers)
        member = Member(number, host, slot, "::1", 1000 + number, number, f"launch{number}")
        self.workers[number] = Worker(member, hangs, sleeps)
        self.nodes[number] = member

    def warmed_up(self, w: Worker) -> None:
        if w.works and not w.hangs and w.member.stage is Stage.PREPARING:
            known = w.seen.number if w.seen else 0
            w.member = replace(w.member, stage=Stage.READY, newest_generation=known)

    def sigterm(self, w: Worker) -> None:
        if w.works and w.member.generation == 0:
            self.exit(w)
        elif w.works and w.member.stage is Stage.ACTIVE:
            w.member = replace(w.member, stage=Stage.LEAVING)

    def exit(self, w: Worker) -> None:
        w.running, w.ring = False, 0
        self.nodes.pop(w.id, None)

    def kill(self, w: Worker, ahead: Iterable[int] = ()) -> None:
        """End the process of a worker; ``ahead`` of its ring had completed the step it died in."""
        if w.running:
            self._break_step(w, ahead)
            w.running = False

    def freeze(self, w: Worker, ahead: Iterable[int] = ()) -> None:
        if w.works:
            self._break_step(w, ahead)
            w.frozen = True

    def _break_step(self, w: Worker, ahead: Iterable[int]) -> None:
        others = self.ring(w.ring) if w.ring else []
        if others and self._whole(w.ring):
            for other in others:
                if other.id in ahead and other is not w:
                    other.step += 1

    def expire(self, w: Worker) -> None:
        """ZooKeeper drops the session: of the dead, the frozen or the merely unlucky."""
        self.nodes.pop(w.id, None)

    def thaw(self, w: Worker) -> None:
        """Wake a frozen process; one that was declared dead finds all access closed."""
        if w.running and w.frozen:
            w.frozen = False
            if self._whole(w.ring):  # nobody has noticed: all complete the step
                for other in self.ring(w.ring):
                    other.step = max(m.step for m in self.ring(w.ring))
            if w.id in self.evicted:
                self.exit(w)

    def write(self, w: Worker) -> None:
        """Its member node says what it wants it to say; a lost session is opened again."""
        if w.works and w.id not in self.cut_off:
            if w.id in self.evicted:
                self.exit(w)
            else:
                self.nodes[w.id] = w.member

    # --- the ring ---

    def _whole(self, number: int) -> bool:
        """Whether ring ``number`` still computes: all its members are in it, none is stuck."""
        if number == 0:
            return False
        members = [self.workers[i] for i in self.generation(number).worker_ids]
        return all(w.works and w.ring == number and not w.target for w in members)

    def learn(self, w: Worker) -> None:
        if w.works and w.id not in self.cut_off and self.current is not None:
            w.seen = self.current

    def train(self, number: int) -> None:
        if self._whole(number):
            for w in self.ring(number):
                w.step += 1

    def agree(self, number: int) -> None:
        known = {w.seen.number if w.seen else 0 for w in self.ring(number)}
        newest = self.generations[-1]
        if self.in_epoch and newest.waits_for_epoch and max(known, default=0) == newest.number:
            return
        if self._whole(number) and len(known) == 1 and max(known) > number:
            for w in self.ring(number):
                w.step += 1
                w.target = max(known)

    def notice(self, w: Worker) -> None:
        if w.works and w.ring and not w.target and not self._whole(w.ring):
            self._fail(w, w.ring)

    def go(self, w: Worker) -> None:
        generation = self._next_generation(w)
        if generation is None:
            return
        if not generation.members:
            self.exit(w)
        elif w.id in generation.worker_ids:
            self._enter(w, generation)
        elif w.step >= 0:
            self.exit(w)
        elif not w.sleeps:
            w.member = replace(w.member, newest_generation=generation.number)

    def _next_generation(self, w: Worker) -> Generation | None:
        """Return the generation that ``w`` must go to now; None while it has to stay."""
        if not w.works or w.entered or w.member.stage is Stage.PREPARING:
            return None
        if w.target:  # agreed in its ring
            return self.generation(w.target)
        if w.ring or w.seen is None or w.seen.number <= w.failed:
            return None
        if w.step >= 0 and w.id in ids(w.seen.previous):
            return None  # planned before its ring was known to be broken
        return w.seen

    def _enter(self, w: Worker, generation: Generation) -> None:
        if w.sleeps and generation.previous and w.step < 0:
            return
        if w.step >= 0 or not generation.previous or self._called(generation):
            w.ring, w.target, w.entered = 0, generation.number, True
        elif generation.state_source in self.evicted:
            w.failed = generation.number  # it never comes to be
            w.member = replace(w.member, newest_generation=generation.number)

    def _called(self, generation: Generation) -> bool:
        """Newcomers come to a rendezvous when the state source has said that it goes there."""
        root = self.workers[generation.state_source]
        return root.target == generation.number or root.ring == generation.number

    def build(self, number: int) -> None:
        """All seats stand in the rendezvous: the ring is there, newcomers receive the state."""
        generation = self.generation(number)
        members = [self.workers[i] for i in generation.worker_ids]
        if not members or not all(w.works and w.entered and w.target == number for w in members):
            return
        root = self.workers[generation.state_source]
        lost = max((w.step for w in members), default=-1)
        assert root.step == lost, f"w{root.id} sends step {root.step}, somebody has {lost}"
        for w in members:
            if w.id in generation.joined:
                w.step = max(root.step, 0)
            assert w.step == max(root.step, 0), f"w{w.id} is at {w.step}, the root at {root.step}"
            stage = Stage.LEAVING if w.member.stage is Stage.LEAVING else Stage.ACTIVE
            w.ring, w.target, w.entered, w.failed = number, 0, False, 0
            w.member = replace(w.member, stage=stage, generation=number)

    def give_up(self, w: Worker) -> None:
        """Fail a rendezvous, for a reason or without one (a time-out)."""
        if w.works and w.entered:
            self._fail(w, w.target)

    def unrecoverable(self, number: int) -> bool:
        asleep = bool(self.generation(number).previous)

        def comes(w: Worker) -> bool:
            here = number in (w.target, w.ring)
            if asleep and w.sleeps and w.step < 0:
                return False
            return w.works and (here or w.seen is None or w.failed < number >= w.seen.number)

        return not all(comes(self.workers[i]) for i in self.generation(number).worker_ids)

    def _fail(self, w: Worker, number: int) -> None:
        w.failed, w.ring, w.target, w.entered = number, 0, 0, False
        known = number if w.step < 0 else w.member.newest_generation
        broken = RingFailure(number, w.step, at_epochs=self.steps_back)
        w.member = replace(w.member, broken=broken, newest_generation=known)

    # --- people ---

    def want(self, hosts: Placement, terms: ReclaimTerms = NO_TERMS) -> None:
        asked = set_desired(
            self.wanted, Assigned(self.desired), hosts, RequestedBy.PERSON, "so", self.time, terms
        )
        self.wanted = asked.desired

    def borrow(self, slots: int) -> None:
        with suppress(UsageError):
            self.want(
                borrow(self.snapshot(), slots, None, self.desired), ReclaimTerms(borrows=True)
            )

    def reclaim(self, slots: int | None, within_s: float) -> None:
        with suppress(UsageError):
            hosts = reclaim(self.snapshot(), slots, None, self.desired)
            self.want(hosts, ReclaimTerms(within_s=within_s))

    # --- the leader ---

    def new_leader(self) -> None:
        self.deposed.append(self.leader)
        self.leader = Leader(self.leader.term + 1, AgeTracker(self.time))

    def prove(self, w: Worker) -> None:
        """Let the leader ask the worker's port: it is gone, or frozen with its session over."""
        silent, dead = self.leader.silent, self.leader.dead
        (silent.add if w.running and w.frozen else silent.discard)(w.id)
        if not w.running:
            dead[w.id] = "its port is refused"
        elif w.frozen and w.id not in self.nodes:
            dead[w.id] = "it is frozen"
        else:
            dead.pop(w.id, None)

    def look(self) -> None:
        self.leader.snapshot = self.snapshot()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            job=self.job,
            hosts=tuple(Host(h, self.slots, "::1") for h in self._offered()),
            members=tuple(self.nodes[i] for i in sorted(self.nodes)),
            desired=self.wanted,
            assigned=Assigned(dict(self.desired)),
            generation=self.current,
            requests=tuple(self.requests[n] for n in sorted(self.requests)),
            evicted=dict(self.evicted),
        )

    def act(self, leader: Leader) -> MembershipDecision | None:
        """Decide about what was read, perhaps a while ago, and carry it out.

        The fence refuses all writes of a leader whose term is over; nothing in a decision gets
        round it.
        """
        now, leader.snapshot = leader.snapshot, None
        if now is None:
            return None
        ages = leader.ages.observe(now, self.time)
        silent, late = frozenset(leader.silent), overdue(now, ages.reclaims_s)
        decision = decide(now, leader.term, ages, LIMITS, leader.dead, silent, late)
        assert decision.reason
        assert decision.generation is None or decision.generation.term == leader.term
        if leader is not self.leader:
            return None
        change = decision.change
        if change and change.before != self.wanted:
            return None  # compare-and-set: somebody scaled in between
        if decision.generation is not None:
            self._check(now, decision, ages)
            self.generations.append(decision.generation)
            self._count_loss(now, decision.generation)
        if change:
            assert not change.moves or self.job.sizes.allows(change.desired.np), decision.reason
            self.wanted = change.desired
        self.evicted.update(decision.evict)
        for answer in decision.answers:
            assert answer.done
            assert answer.outcome
            del self.requests[answer.number]
            self.answered.append(answer)
        return decision

    def _count_loss(self, now: Snapshot, new: Generation) -> None:
        if set(new.joined) != set(new.worker_ids) or not new.members:
            return
        last = now.generation
        ring = set(ids((*last.members, *last.previous))) if last else set()
        holders = [w.id for w in self.running() if w.step >= 0 and w.id in ring - self.given_up]
        assert not holders or new.state_source in holders, f"{holders} held the state: {new}"
        self.total_losses += 1

    def _check(self, now: Snapshot, decision: MembershipDecision, ages: Ages) -> None:
        new, last = decision.generation, now.generation
        assert new is not None
        assert new.number == (last.number if last else 0) + 1
        assert new.number == len(self.generations) + 1, "one generation for each number"
        assert last is None or last.members, "an ended job stays ended"
        assert len(set(new.worker_ids)) == len(new.worker_ids)
        assert not set(new.worker_ids) & set(new.left)
        assert not set(new.worker_ids) & set(now.evicted)
        assert set(new.joined) <= set(new.worker_ids)
        if not new.members:
            return
        assert new.state_source in new.worker_ids
        assert new.reason
        if not new.previous:
            self._check_repair(now, decision)
            return
        # A planned change.
        old = [i for i in new.worker_ids if i in ids(new.previous)]
        assert old == [i for i in ids(new.previous) if i in old], "rank order of old members"
        assert new.worker_ids == (*old, *sorted(new.joined)), "newcomers follow by id"
        assert new.state_source in old
        assert set(ids(new.previous)) == set(old) | set(new.left), "nobody is forgotten"
        assert len(new.members) <= max(now.job.sizes.max_np or 0, len(new.previous), 2)
        released = [
            m.id
            for m in now.members
            if m.stage is Stage.LEAVING and ages.stage_s[m.id] >= LIMITS.leave_grace_s
        ]
        assigned = (decision.change or now).desired.hosts
        floor = min(len(new.previous), now.job.sizes.fit(sum(assigned.values())))
        assert last is not None
        adopted = {m.id for m in now.members if m.generation >= last.number}
        if set(last.worker_ids) <= adopted:
            assert new.previous == last.members
            asked = {m.id for m in now.members if m.stage is Stage.LEAVING}
            asked |= {one.worker for one in decision.answers if one.accepted}
            assert len(new.members) + len(asked & set(new.left)) >= floor
            assert len(new.members) + len(released) >= min(floor, self._attainable(now, assigned))
            assert not {one.worker for one in decision.answers if one.accepted} & set(
                new.worker_ids
            )
            kept = now.job.sizes.keeps(len(new.members), len(new.previous))
            alone = len(new.previous) == 1 and len(new.members) == 2
            assert kept or alone or released, f"{len(new.members)} is not among {now.job.sizes}"
            self._check_moves(now, new, assigned, ages)
        else:  # the only change while another is being adopted: a newcomer died before the switch
            assert new.previous == last.previous
            assert set(new.joined) < set(last.joined)
            gone = [i for i in new.left if i not in {m.id for m in now.members}]
            excused = len(released) + len(gone) + len(self.leader.dead)
            assert len(new.members) + excused >= min(floor, len(last.members))

    def _check_repair(self, now: Snapshot, decision: MembershipDecision) -> None:
        """Who works and holds the state goes on, whether or not its session lives.

        Not who is in a slot that was to be given back: it is evicted for that.
        """
        new = decision.generation
        assert new is not None
        for w in map(self.workers.__getitem__, new.left):
            proven = w.id in {*self.given_up, *now.evicted, *decision.evict}
            assert proven or not w.running or w.step < 0, f"w{w.id} works and is dropped: {new}"

    @staticmethod
    def _attainable(now: Snapshot, assigned: Mapping[str, int]) -> int:
        """Of the assigned, without those of hosts that are gone or have no agent."""
        assert now.generation is not None
        here = Counter(member.host for member in now.generation.members)
        agents = {host.name for host in now.hosts}
        wanted = sum(n if host in agents else min(n, here[host]) for host, n in assigned.items())
        return now.job.sizes.fit(wanted)

    def _check_moves(
        self, now: Snapshot, new: Generation, assigned: Mapping[str, int], ages: Ages
    ) -> None:
        """Who replaces others joins with all of them, unless somebody is needed or late."""
        here = Counter(member.host for member in new.members)
        kept = [host for host in here if here[host] > assigned.get(host, 0)]
        late = any(ages.stage_s[worker] >= LIMITS.prepare_s for worker in new.joined)
        urgent = any(m.stage is Stage.LEAVING for m in now.members)
        full = not now.job.sizes.room(len(new.members), 8)
        short = len(new.previous) < self._attainable(now, assigned) or full
        if new.joined and kept and not (late or urgent or short):
            lacking = [h.name for h in now.hosts if here[h.name] < assigned.get(h.name, 0)]
            assert not lacking, f"{lacking} lack workers, {kept} keep theirs: {new}"

    # --- everything at once, for the quiet times ---

    def each(self, event: Callable[[Worker], None]) -> None:
        for w in list(self.workers.values()):
            event(w)

    def round(self, late: frozenset[int] = frozenset(), seconds: float = 1.0) -> None:
        self.time += seconds
        present = [w for w in self.workers.values() if w.id not in late]
        recent = [g.number for g in self.generations[-3:]]

        def each(event: Callable[[Worker], None]) -> None:
            for w in present:
                event(w)

        self.lead()
        each(self.write)
        each(self.learn)
        for number in recent:
            self.train(number)
            self.agree(number)
        each(self.notice)
        each(self.go)
        for number in recent:
            self.build(number)
        for w in present:
            if w.entered and self.unrecoverable(w.target):
                self.give_up(w)
        each(self.warmed_up)
        each(self.write)

    def lead(self) -> None:
        if self.leader.snapshot is None:
            self.look()
        self.act(self.leader)

    def agents(self) -> None:
        """Agents start who is lacking, and note which borrowed slots are free again."""
        if self.ended or self.job.state is not JobState.RUNNING:
            return
        ages_s = self.reclaims.observe(self.wanted, self.time)
        for host in self._offered():
            wanted = self.desired[host]
            replaced = {r.worker for r in self.requests.values() if r.kind == RequestKind.REPLACE}
            here = [
                w
                for w in self.running()
                if w.member.host == host
                and w.member.stage is not Stage.LEAVING
                and w.id not in self.evicted.keys() | replaced
            ]
            for _ in range(wanted - len(here)):
                self.spawn(host)
            unknown = sum(w.member.host == host and w.id not in self.nodes for w in self.running())
            done = returned(self.snapshot(), ages_s, host, unknown)
            self.wanted = without_reclaimed(self.wanted, done)

    def _offered(self) -> list[str]:
        return sorted({*self.desired} - self.agentless)

    def settled(self) -> str:
        if self.ended:
            left = [w.id for w in self.running() if not w.hangs]
            return f"{left} still run" if left else ""
        current = self.current
        if current is None:
            return "the job did not start"
        if not self._whole(current.number):
            return f"ring {current.number} does not compute"
        if {w.id for w in self.running()} != set(current.worker_ids):
            return f"{[w.id for w in self.running()]} run, {current.worker_ids} train"
        if self.requests:
            return f"open requests {self.requests}"
        if self.wanted.reclaims:
            return f"{self.wanted.reclaims} are not given back"
        return size_gap(current.members, self.desired)


def ids(members: Iterable[RingMember]) -> tuple[int, ...]:
    return tuple(member.id for member in members)


def size_gap(members: Iterable[RingMember], desired: Mapping[str, int]) -> str:
    here = dict.fromkeys(desired, 0)
    for member in members:
        here[member.host] = here.get(member.host, 0) + 1
    return "" if here == dict(desired) else f"{here} train, {dict(desired)} is desired"
