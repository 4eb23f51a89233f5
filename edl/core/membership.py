"""Who is in the ring next, and why: one pure function of what ZooKeeper says.

The leader calls :func:`decide` whenever a fact changes. Its guards, in order; the first that
applies decides:

1. A stopping job gets a generation without seats: everybody leaves after the same step.
2. A job without a ring starts with ``np`` ready workers, or with ``min_np`` after a time limit.
3. A broken ring: all its members report or are dead, then the survivors go on. Newcomers wait,
   for the survivors are in the middle of a step.
4. A generation that was announced is adopted by all its members before the next one. Only the
   death of one of its newcomers replaces it earlier: they hold no state, so nothing is lost.
5. Workers that are asked to leave, that the plan no longer wants, or that are ready, change
   places in one switch. Newcomers that come up together are waited for, briefly.

Whatever is decided: a generation's number grows by one, old members keep their relative rank
order, newcomers follow by id, nobody is both in and out, and the ring never shrinks below what
the plan and ``min_np`` ask for by our own decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.facts import Generation, JobState, Member, Request, Seat, Snapshot, Stage


@dataclass(frozen=True)
class Limits:
    """Time limits of the leader's decisions, in seconds."""

    start_s: float  # for `np` workers to come up at the start of the job
    prepare_s: float  # for a newcomer, from its registration to ready
    gather_s: float  # how long ready newcomers wait for others that are preparing
    leave_grace_s: float  # how long a leaver that is needed waits for its replacement


@dataclass(frozen=True)
class Ages:
    """How long things have stood as they are, in seconds by the leader's own clock.

    A new leader starts to count afresh, so limits may stretch but never shrink.
    """

    leading_s: float = 0.0
    stage_s: Mapping[int, float] = field(default_factory=dict)  # worker -> time in its stage


@dataclass(frozen=True)
class Decision:
    """What the leader does now; all of it in one transaction. ``reason`` is always set."""

    reason: str
    generation: Generation | None = None
    plan: Mapping[str, int] | None = None
    evict: Mapping[int, str] = field(default_factory=dict)
    answers: tuple[Request, ...] = ()

    @property
    def acts(self) -> bool:
        return bool(self.generation or self.plan is not None or self.evict or self.answers)


def decide(
    now: Snapshot, term: int, ages: Ages, limits: Limits, dead: frozenset[int] = frozenset()
) -> Decision:
    """The leader's next act, or none, with the reason.

    Args:
        now: what ZooKeeper says.
        term: the leader's own term.
        dead: workers proven dead although their session may still live.
    """
    alive = {m.id: m for m in now.members if m.id not in dead and m.id not in now.evicted}
    current = now.generation
    if current is not None and not current.seats:
        return Decision("the job has ended")
    if now.job.state is JobState.STOPPING:
        return _end(now, term)
    if current is None:
        return _start(now, alive, term, ages, limits)
    if any(_broke(alive.get(seat.id), current) for seat in current.seats):
        return _recover(current, alive, term)
    waiting = [s.id for s in current.seats if s.id in alive and not _adopted(alive[s.id], current)]
    if waiting:
        lost = tuple(w for w in current.joined if w not in alive)
        if lost:
            return _replace_newcomers(current, lost, term)
        return Decision(f"generation {current.number} waits for {_names(waiting)} to switch")
    return _change(now, current, alive, term, ages, limits)


def _end(now: Snapshot, term: int) -> Decision:
    current = now.generation
    number, members = (current.number, current.members) if current else (0, ())
    reason = f"the job is asked to stop: {now.job.reason or 'no reason given'}"
    return Decision(reason, Generation(number + 1, term, (), -1, (), members, reason))


def _start(
    now: Snapshot, alive: Mapping[int, Member], term: int, ages: Ages, limits: Limits
) -> Decision:
    ready = [m for m in alive.values() if m.stage is Stage.READY]
    count, job = len(ready), now.job
    if count < job.np and not (count >= job.min_np and ages.leading_s >= limits.start_s):
        return Decision(f"{count} of {job.np} workers are ready to start")
    chosen = sorted(ready, key=lambda m: (m.host, m.slot, m.id))[: job.max_np]
    chosen.sort(key=lambda m: m.id)
    seats = tuple(_seat(m) for m in chosen)
    reason = f"the job starts with {len(seats)} of {job.np} workers"
    members = tuple(seat.id for seat in seats)
    return Decision(reason, Generation(1, term, seats, seats[0].id, members, (), reason))


def _recover(current: Generation, alive: Mapping[int, Member], term: int) -> Decision:
    """Close the roll-call of a broken ring once nobody is left to be heard."""
    silent = [s.id for s in current.seats if s.id in alive and not _broke(alive[s.id], current)]
    if silent:
        return Decision(
            f"generation {current.number} is broken; {_names(silent)} did not report yet"
        )
    survivors = [seat for seat in current.seats if seat.id in alive]
    gone = tuple(seat.id for seat in current.seats if seat.id not in alive)
    steps = {s.id: b.step for s in survivors if (b := alive[s.id].broken) is not None}
    newest = max(steps.values())
    if newest < 0:
        root, behind = survivors[0].id, tuple(steps)
    else:
        root = next(seat.id for seat in survivors if steps[seat.id] == newest)
        behind = tuple(worker for worker, step in steps.items() if step < newest)
    lost = f"{_names(gone)} died" if gone else "nobody died"
    reason = (
        f"generation {current.number} broke and {lost}; {len(survivors)} of {len(current.seats)} "
        f"go on from step {newest} of w{root}"
    )
    return Decision(
        reason,
        Generation(current.number + 1, term, tuple(survivors), root, behind, gone, reason),
    )


def _replace_newcomers(current: Generation, lost: tuple[int, ...], term: int) -> Decision:
    seats = tuple(seat for seat in current.seats if seat.id not in lost)
    joined = tuple(worker for worker in current.joined if worker not in lost)
    reason = f"{_names(lost)} died before joining generation {current.number}"
    if not seats:
        return Decision(f"{reason}; nobody is left")
    root = current.sync_root if current.sync_root not in lost else seats[0].id
    return Decision(
        reason,
        Generation(current.number + 1, term, seats, root, joined, current.left, reason),
    )


def _change(
    now: Snapshot,
    current: Generation,
    alive: Mapping[int, Member],
    term: int,
    ages: Ages,
    limits: Limits,
) -> Decision:
    """A planned change of a ring that runs."""
    if any(seat.id in alive and alive[seat.id].stage is Stage.FINISHED for seat in current.seats):
        return Decision("the job has trained to its end")
    active = [seat for seat in current.seats if seat.id in alive]
    newcomers = [
        m for m in alive.values() if m.generation == 0 and m.stage in (Stage.PREPARING, Stage.READY)
    ]
    plan, answers, drained = _requests(now, active)

    # Who was asked to leave. Each lowers the plan, unless min_np then needs a replacement.
    leaving = [s.id for s in active if alive[s.id].stage is Stage.LEAVING and s.id not in drained]
    for seat in (s for s in active if s.id in leaving):
        surplus = sum(s.host == seat.host for s in active) > plan.get(seat.host, 0)
        if not surplus and sum(plan.values()) - 1 >= now.job.min_np and plan.get(seat.host, 0) > 0:
            plan[seat.host] -= 1
    leaving += drained

    # Who the plan no longer wants: the highest ranks of each host first.
    for host in sorted({seat.host for seat in active}):
        staying = [s.id for s in active if s.host == host and s.id not in leaving]
        leaving += staying[plan.get(host, 0) :]

    # Who comes in: per host as many as the plan lacks; the rest is not wanted any more.
    evict, joining, preparing = _newcomers(newcomers, active, leaving, plan, ages, limits)
    changed_plan = plan if plan != dict(now.plan) else None

    def only(reason: str) -> Decision:
        """No switch now: an accepted drain stays open, so that its worker is the one to leave."""
        refused = tuple(answer for answer in answers if not answer.accepted)
        return Decision(reason, None, None if drained else changed_plan, evict, refused)

    if joining and preparing and max(ages.stage_s.get(w, 0.0) for w in joining) < limits.gather_s:
        return only(f"{_names(joining)} are ready and wait for {_names(preparing)}")
    room = now.job.max_np - (len(active) - len(leaving))
    joining = joining[: max(0, room)]
    floor = min(len(active), max(sum(plan.values()), now.job.min_np))
    after = len(active) - len(leaving) + len(joining)
    held: list[int] = []
    if after < floor:
        # The last to be asked wait for their replacements, in one switch with them.
        patient = [
            w
            for w in leaving
            if not (
                alive[w].stage is Stage.LEAVING and ages.stage_s.get(w, 0.0) >= limits.leave_grace_s
            )
        ]
        held = patient[: floor - after]
        leaving = [w for w in leaving if w not in held]
    if not joining and not leaving:
        if held:
            return only(f"{_names(held)} leave when their replacements are ready")
        wanted = sum(plan.values())
        if preparing:
            return only(f"{_names(preparing)} are preparing; {len(active)} of {wanted} train")
        return only(f"{len(active)} workers train; {wanted} are wanted")
    members = {m.id: m for m in newcomers}
    stay = [seat for seat in active if seat.id not in leaving]
    seats = (*stay, *(_seat(members[w]) for w in sorted(joining)))
    parts = []
    if joining:
        parts.append(f"{_names(sorted(joining))} joined")
    if leaving:
        parts.append(f"{_names(sorted(leaving))} left")
    reason = (
        f"{' and '.join(parts)}: {len(active)} -> {len(seats)} workers, {sum(plan.values())} wanted"
    )
    root = stay[0].id if stay else active[0].id
    generation = Generation(
        current.number + 1,
        term,
        seats,
        root,
        tuple(sorted(joining)),
        tuple(sorted(leaving)),
        reason,
    )
    return Decision(reason, generation, changed_plan, evict, answers)


def _requests(
    now: Snapshot, active: Sequence[Seat]
) -> tuple[dict[str, int], tuple[Request, ...], list[int]]:
    """Answer the open requests; each accepted drain lowers the plan of its host by one."""
    plan = dict(now.plan)
    answers: list[Request] = []
    drained: list[int] = []
    for request in now.requests:
        seat = next((seat for seat in active if seat.id == request.worker), None)
        if request.kind != "drain":
            accepted, outcome = (
                False,
                f"this leader does not know requests of kind {request.kind!r}",
            )
        elif seat is None or seat.id in drained:
            accepted, outcome = False, f"w{request.worker} is not training in this job"
        elif (
            sum(plan.values()) - 1 < now.job.min_np or len(active) - len(drained) <= now.job.min_np
        ):
            accepted = False
            outcome = (
                f"cannot drain w{seat.id}: {len(active) - len(drained)} workers train and min_np "
                f"is {now.job.min_np}; scale out first"
            )
        else:
            accepted, outcome = True, f"w{seat.id} leaves with the next switch"
            drained.append(seat.id)
            plan[seat.host] = max(0, plan.get(seat.host, 0) - 1)
        answers.append(
            Request(request.kind, request.worker, request.number, True, accepted, outcome)
        )
    return plan, tuple(answers), drained


def _newcomers(
    newcomers: Sequence[Member],
    active: Sequence[Seat],
    leaving: Sequence[int],
    plan: Mapping[str, int],
    ages: Ages,
    limits: Limits,
) -> tuple[dict[int, str], list[int], list[int]]:
    """Sort newcomers into those given up, those ready and those still preparing."""
    evict: dict[int, str] = {}
    joining: list[int] = []
    preparing: list[int] = []
    for host in sorted({m.host for m in newcomers}):
        staying = sum(seat.host == host and seat.id not in leaving for seat in active)
        lacking = max(0, plan.get(host, 0) - staying)
        here = (m for m in newcomers if m.host == host)
        for member in sorted(here, key=lambda m: (m.stage is not Stage.READY, m.id)):
            age = ages.stage_s.get(member.id, 0.0)
            if lacking == 0:
                evict[member.id] = (
                    f"host {host} is planned for {plan.get(host, 0)} workers and has them"
                )
            elif member.stage is Stage.PREPARING and age >= limits.prepare_s:
                evict[member.id] = f"it was not ready after {limits.prepare_s:g} s"
                lacking -= 1
            else:
                (joining if member.stage is Stage.READY else preparing).append(member.id)
                lacking -= 1
    return evict, joining, preparing


def _seat(member: Member) -> Seat:
    return Seat(member.id, member.host, member.slot, member.address, member.port)


def _adopted(member: Member, generation: Generation) -> bool:
    return member.generation >= generation.number


def _broke(member: Member | None, generation: Generation) -> bool:
    return (
        member is not None
        and member.broken is not None
        and member.broken.generation >= generation.number
    )


def _names(workers: Sequence[int]) -> str:
    return ", ".join(f"w{worker}" for worker in workers)
