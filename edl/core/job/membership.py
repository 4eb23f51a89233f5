"""Who is in the ring next, and why: one pure function of what ZooKeeper says.

The leader calls :func:`decide` whenever a fact changes. Its guards, in order; the first that
applies decides:

1. A stopping job gets a generation without members: everybody leaves after the same step.
2. A job without a ring starts with ``np`` ready workers, or with ``min_np`` after a time limit.
   So does a job whose last ring is proven dead to the last worker, once no newcomer may have the
   state from it.
3. A broken ring: all its members report or are dead, then the survivors go on from one that has
   made the most progress, by steps and then by exchanges between steps. Who left ZooKeeper is not
   dead for that: its session is opened again, and then it reports. Whoever lets the others wait
   for too long is evicted. Newcomers wait, for the survivors are in the middle of a step. Until a
   generation is adopted, the ring is the one before it, with those who were to leave.
4. A generation that was announced is adopted by all its members before the next one. Only the
   proven death of one of its newcomers replaces it earlier, or that one has gone on to another fit
   (:mod:`edl.core.job.fits`): they hold no state, so nothing is lost. Leavers whose replacement
   died stay. At a start and after a break there is no ring to go on meanwhile: then the others fail
   to build theirs, and report it.
5. A ring that runs is changed as planned (:mod:`edl.core.job.resize`). Workers that are asked to
   leave, that are more than are assigned, or that are ready, change places in one switch. Newcomers
   that come up together are waited for, briefly; those that take the places of others until the
   last of them is ready, for meanwhile the ring lacks nobody (a migration of several workers is
   one switch). Nobody is dropped for being absent from ZooKeeper: either it comes back, or the
   ring breaks. A newcomer becomes a member only while it answers, and has taken note of the
   generation before: so one that is stuck spoils one switch at most, and is evicted when it does
   not come round.

A ring follows what is :class:`~edl.core.records.Assigned`. Where that is by slot, as the driver of
horovodrun does it, it is never lowered from here: a worker in a slot beyond it leaves, and the
place of one that was asked to leave is filled again.

Whatever is decided: a generation's number grows by one, old members keep their relative rank
order, newcomers follow by id (those of a start host by host), nobody is both in and out, and the
ring never shrinks below what is wanted and ``min_np`` by our own decision. A generation with
newcomers keeps an old member to send them the state; if all old ones are to go, one of them goes
with the next switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from edl.core.job.ages import Ages
from edl.core.job.borrowing import returned, without
from edl.core.job.decision import Limits, MembershipDecision, end, is_stuck, seat_of
from edl.core.job.desired import Change
from edl.core.job.resize import change
from edl.core.job.ring_failure import broke
from edl.core.plural import names, workers
from edl.core.records import Generation, JobState, Member, RingMember, Snapshot, Stage


def decide(
    now: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: Mapping[int, str] = MappingProxyType({}),
    silent: frozenset[int] = frozenset(),
    overdue: Mapping[int, str] = MappingProxyType({}),
) -> MembershipDecision:
    """The leader's next act, or none, with the reason.

    Args:
        now: what ZooKeeper says.
        term: the leader's own term.
        dead: workers proven dead, whether or not their session still lives, with the proof.
        silent: workers whose port has not answered just now; that alone proves nothing.
        overdue: workers whose slots were to be given back by now, with the reason. They count as
            dead as soon as another one, which answers, has the state.

    A dead member is evicted at once: then every daemon cuts the ring that it is
    in, and nobody waits for it. Not so a leaver that has taken back its own node: it has left as
    agreed, and the others are about to close that ring anyway. Its port refuses then; when it is
    ``silent`` and nobody has switched yet, it is frozen or cut off, and they would wait for it.
    """
    others = {ring_member.id for ring_member in now.ring} - {*dead, *overdue, *now.evicted, *silent}
    if others & {member.id for member in now.members}:
        dead = {**overdue, **dead}
    decision = _decide(now, term, ages, limits, frozenset(dead), silent)
    if decision.generation is not None:
        decision = replace(decision, generation=decision.generation.after(now.generation))
    current = None if now.job.state.over else now.generation
    seated = {s.id for s in (*current.members, *current.previous)} if current else set()
    agreed = set(current.left) - {member.id for member in now.members} if current else set()
    if current and not now.switched:
        agreed -= silent
    lost = {w: dead[w] for w in sorted(dead) if w in seated - agreed and w not in now.evicted}
    decision = replace(decision, evict={**decision.evict, **lost}) if lost else decision
    done = returned(now) if current and not decision.acts else ()
    if not done:
        return decision
    noted = Change(now.desired, without(now.desired, done))
    return replace(decision, change=noted, reclaimed=done)


def _decide(
    now: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: frozenset[int],
    silent: frozenset[int],
) -> MembershipDecision:
    """The guards of the module's docstring."""
    alive = {m.id: m for m in now.members if m.id not in dead and m.id not in now.evicted}
    current = now.generation
    if now.job.state.over or (current is not None and not current.members):
        return MembershipDecision("the job has ended")
    if now.job.state is JobState.STOPPING:
        why = now.job.reason or "no reason given"
        return end(now, term, f"the job is asked to stop: {why}")
    if current is None:
        return _start(now, now.job.spec.np, alive, term, ages, limits)
    ring = now.ring
    absent = [s.id for s in ring if not (s.id in alive or s.id in dead or s.id in now.evicted)]
    if not any(member.id in alive for member in ring):
        # Who has just switched into the new ring may hold the state, and have left ZooKeeper, too.
        absent += sorted({*current.worker_ids} - {*alive, *dead, *now.evicted, *absent})
        return _restart(now, current, ring, alive, absent, term, ages, limits)
    training = {w: m for w, m in alive.items() if m.stage is not Stage.FINISHED}
    if any(broke(training.get(member.id), current) for member in ring):
        return _recover(current, ring, training, absent, term, ages, limits)
    if any(member.id in alive and member.id not in training for member in ring):
        return MembershipDecision("the job has trained to its end")
    waiting = [
        s.id for s in current.members if s.id in alive and not _has_entered(alive[s.id], current)
    ]
    lost = tuple(w for w in current.joined if w in dead or w in now.evicted)
    lost += tuple(w for w in current.joined if w in alive and alive[w].fits != current.fits)
    breaking = not {s.id for s in ring} <= {*alive, *absent, *lost}  # it will report
    if lost and current.previous and not breaking and not now.switched:
        return _replace_newcomers(now, current, alive, lost, term)
    if waiting:
        return MembershipDecision(
            f"generation {current.number} waits for {names(waiting)} to switch"
        )
    missing = [member.id for member in current.members if member.id not in alive]
    if missing:
        return MembershipDecision(
            f"{names(missing)} of generation {current.number} left ZooKeeper; "
            "no change until it comes back or the ring breaks"
        )
    return change(now, current, alive, term, ages, limits, silent)


def _start(
    now: Snapshot,
    wanted: int,
    alive: Mapping[int, Member],
    term: int,
    ages: Ages,
    limits: Limits,
    before: Sequence[str] = (),
) -> MembershipDecision:
    """``before``: the hosts in the order that they had in the ring before."""
    ready = [m for m in alive.values() if m.stage is Stage.READY]
    count, job = len(ready), now.job
    size = job.sizes.below(count) if job.sizes.enough(count) else None
    if size is None or (count < wanted and ages.leading_s < limits.start_s):
        stuck = sorted(m.id for m in alive.values() if is_stuck(m, ages, limits))
        return MembershipDecision(
            f"{count} of {wanted} workers are ready to start",
            evict=dict.fromkeys(stuck, f"it was not ready after {limits.prepare_s:g} s"),
        )
    chosen = sorted(ready, key=lambda m: (m.host, m.slot, m.id))[:size]
    # Host by host, for a ring's neighbours send each other every gradient.
    first = {host: min(m.id for m in chosen if m.host == host) for host in {m.host for m in chosen}}
    first |= {host: place - len(before) for place, host in reversed([*enumerate(before)])}
    chosen.sort(key=lambda m: (first[m.host], m.id))
    ring_members = tuple(seat_of(m) for m in chosen)
    reason = f"the job starts with {len(ring_members)} of {workers(wanted)}"
    members = tuple(member.id for member in ring_members)
    return MembershipDecision(
        reason, Generation(1, term, ring_members, ring_members[0].id, members, (), reason)
    )


def _restart(
    now: Snapshot,
    current: Generation,
    ring: Sequence[RingMember],
    alive: Mapping[int, Member],
    absent: Sequence[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Nobody of the ring is left in ZooKeeper: start again, if they are proven dead.

    The newcomers of a planned generation may hold the state, from its ring or from one that it has
    replaced. A newcomer that is in no ring takes note that the generation will not come to be; one
    that is adopts it, or reports that it broke. Nobody starts before all of them have done either,
    and those with the state go on.
    """
    if absent:
        gone = sorted({*absent, *(member.id for member in ring)})
        return MembershipDecision(
            f"all of {names(gone)} left ZooKeeper and {names(absent)} may be training; no change "
            "until they come back or are proven dead"
        )
    who = f"all {len(ring)} workers" if len(ring) > 1 else f"w{ring[0].id}, the last worker"
    lost = f"{who} of generation {current.number} died"
    unheard = [w for w in current.joined if w in alive and not _heard(alive[w], current)]
    if unheard:
        late = ages.lost_s >= limits.report_s
        why = f"{lost}, and it did not say within {limits.report_s:g} s whether it holds the state"
        return MembershipDecision(
            f"{lost}; {names(unheard)} may hold the state: no change until it is known",
            evict=dict.fromkeys(unheard if late else (), why),
        )
    if _have_state((alive[w] for w in current.joined if w in alive), current):
        return _recover(current, ring, alive, absent, term, ages, limits)
    wanted, hostless = _wanted_after_death(now, ages, limits)
    hosts = [member.host for member in ring]
    start = _start(now, wanted, alive, term, ages, limits, before=hosts)
    unawaited = f"; nobody waits for {', '.join(hostless)}, where no agent is" if hostless else ""
    if start.generation is None:
        return replace(start, reason=f"{lost}; {start.reason}{unawaited}")
    saved = now.job.saved_step
    kept = f"the checkpoint of step {saved} is left" if saved >= 0 else "their state is lost"
    reason = f"{lost}, {kept}; {start.generation.reason}{unawaited}"
    generation = replace(
        start.generation,
        number=current.number + 1,
        left=tuple(sorted(member.id for member in ring)),
        reason=reason,
    )
    return replace(start, reason=reason, generation=generation)


def _wanted_after_death(now: Snapshot, ages: Ages, limits: Limits) -> tuple[int, tuple[str, ...]]:
    """How many workers a job starts again with, and the hosts that are not waited for.

    A host may have died with its workers: where no agent is, after a moment in which one that lost
    its session opens it again, nobody starts any. Under horovodrun the driver knows better.
    """
    agents = {host.name for host in now.hosts}
    gone = tuple(host for host, n in now.assigned.hosts.items() if n and host not in agents)
    there = sum(n for host, n in now.assigned.hosts.items() if host in agents)
    sizes = now.job.sizes
    if not gone or ages.leading_s < limits.gather_s or not sizes.enough(there):
        return sizes.fit(now.assigned.np), ()
    return sizes.fit(there), gone


def _recover(
    current: Generation,
    ring: Sequence[RingMember],
    training: Mapping[int, Member],
    absent: Sequence[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """End the wait for the survivors of a broken ring once nobody is left to be heard.

    Newcomers of a generation whose ring was never built are not of ``ring``: they hold no state,
    and may not even know that the others tried to build it. Who is ``absent`` from ZooKeeper may
    live, and hold the newest state. After ``limits.report_s`` the others go on without those who
    have not reported, unless nobody else has the state.
    """
    silent = [s.id for s in ring if s.id in training and not broke(training[s.id], current)]
    has_state = _have_state(training.values(), current)
    if silent or absent:
        broken = f"generation {current.number} is broken"
        if has_state and ages.broken_s >= limits.report_s:
            why = f"{broken}, and it did not report within {limits.report_s:g} s"
            return MembershipDecision(broken, evict=dict.fromkeys((*silent, *absent), why))
        parts = [f"{names(silent)} did not report yet"] if silent else []
        if absent:
            held = "" if has_state or silent else ", and may be the only one with the state"
            parts.append(
                f"{names(absent)} left ZooKeeper{held}: no change until it reports or is proven "
                "dead"
            )
        return MembershipDecision(f"{broken}; {'; '.join(parts)}")
    members = {member.id for member in ring}
    newcomers = [member for member in current.members if member.id not in members]
    survivors = [s for s in (*ring, *newcomers) if broke(training.get(s.id), current)]
    progress = {s.id: b.progress for s in survivors if (b := training[s.id].broken) is not None}
    gone = tuple(member.id for member in ring if member.id not in progress)
    most = max(progress.values())
    newest, _ = most
    if newest < 0:
        root, behind = survivors[0].id, tuple(progress)
    else:
        root = next(member.id for member in survivors if progress[member.id] == most)
        behind = tuple(worker for worker, (step, _) in progress.items() if step < newest)
    lost = f"{names(gone)} went" if gone else "nobody died"
    go_on = f"go on from step {newest} of w{root}" if newest >= 0 else "begin"
    counted = f"{len(survivors)} of {len(survivors) + len(gone)}"
    reason = f"generation {current.number} broke and {lost}; {counted} {go_on}"
    return MembershipDecision(
        reason,
        Generation(current.number + 1, term, tuple(survivors), root, behind, gone, reason),
    )


def _replace_newcomers(
    now: Snapshot,
    current: Generation,
    alive: Mapping[int, Member],
    lost: tuple[int, ...],
    term: int,
) -> MembershipDecision:
    """The generation again, without the newcomers that died, and with leavers in their stead."""
    joined = tuple(worker for worker in current.joined if worker not in lost)
    old = [member.id for member in current.members if member.id not in current.joined]
    floor = min(len(current.previous), now.job.sizes.fit(now.assigned.np))
    short = min(len(lost), floor - len(old) - len(joined))
    leavers = [s.id for s in current.previous if s.id in current.left and s.id in alive]
    leavers.sort(key=lambda w: alive[w].stage is Stage.LEAVING)
    back = leavers[: max(0, short)]
    members = (
        *(member for member in current.previous if member.id in old or member.id in back),
        *(member for member in current.members if member.id in joined),
    )
    went = "went on to another fit" if all(worker in alive for worker in lost) else "died"
    reason = f"{names(lost)} {went} before joining generation {current.number}"
    if back:
        reason += f"; {names(back)} cannot leave yet"
    root = current.state_source  # an old member
    left = tuple(worker for worker in current.left if worker not in back)
    return MembershipDecision(
        reason,
        Generation(
            current.number + 1,
            term,
            members,
            root,
            joined,
            left,
            reason,
            previous=current.previous,
            fits=current.fits,
        ),
    )


def _have_state(members: Iterable[Member], current: Generation) -> bool:
    """Whether one of those whose ring broke holds the job's state."""
    return any(m.broken is not None and m.broken.step >= 0 and broke(m, current) for m in members)


def _heard(newcomer: Member, planned: Generation) -> bool:
    """Return whether it has said what became of it in a ring that had its old members."""
    return broke(newcomer, planned) or newcomer.newest_generation >= planned.number


def _has_entered(member: Member, generation: Generation) -> bool:
    return member.generation >= generation.number
