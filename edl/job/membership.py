"""Decide which workers are in the ring next, and why: one pure function of what ZooKeeper says.

The leader calls :func:`decide` whenever a record in ZooKeeper changes, and at intervals. The first
guard of :func:`_decide_ring` that applies decides:

1. A job that is asked to stop gets a generation without members.
2. A job without a ring starts; so does a job whose ring is proven dead to the last worker.
3. A broken ring is repaired (:func:`_repair`).
4. No further generation is decided until all members have entered the announced one, unless a
   newcomer of it is lost.
5. A ring that trains is changed as planned (:func:`_change`, with the sizes of
   :mod:`edl.job.resize`).

The size of a ring follows the number of :class:`~edl.records.Assigned` workers. Where the
launcher assigns by slot, as the driver of horovodrun does, no rule lowers that number: a worker in
a slot beyond it leaves, and a worker that was asked to leave is replaced.

Each decision obeys these rules: a generation's number grows by one, old members keep their relative
rank order, newcomers follow by id (at a start, host by host), no worker both joins and leaves, and
the ring never shrinks below what is wanted and ``min_np`` by a decision of the leader. A generation
with newcomers keeps an old member to send them the state; if all old members are to leave, that one
leaves with the next switch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from edl.job.borrowing import returned, without_reclaimed
from edl.job.decision import DesiredChange, Limits, MembershipDecision, set_desired
from edl.job.liveness import Ages
from edl.job.resize import (
    DepartureCause,
    await_replacements,
    await_same_host,
    choose_target,
    is_stuck,
    sort_newcomers,
    with_allowed_size,
    without_leaving,
    workers_to_leave,
)
from edl.job.snapshot import GONE, Snapshot, reports_broken
from edl.records import Generation, JobState, Member, RequestedBy, RingMember, Stage
from edl.text import names, verb, workers, workers_train

ALL_ASKED = "all workers were asked to leave, as when horovodrun ends"


def decide(
    snapshot: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: Mapping[int, str] = MappingProxyType({}),  # the proof by worker id; a session may live
    silent: frozenset[int] = frozenset(),  # whose port did not answer just now; that proves nothing
    overdue: Mapping[int, str] = MappingProxyType({}),  # why to evict those in borrowed slots
) -> MembershipDecision:
    """Return what the leader does about the members of the job, with the reason."""
    current, members = snapshot.generation, {member.id for member in snapshot.members}
    # The state of the job must outlive the workers that are overdue.
    ring = {member.id for member in snapshot.ring}
    if (ring & members) - {*dead, *overdue, *snapshot.evicted, *silent}:
        dead = {**overdue, **dead}
    # A worker counts while it has a session and is neither proven dead nor evicted, nor a newcomer
    # that has left the ring as its other members have agreed.
    gone = frozenset({*dead, *snapshot.evicted, *snapshot.released})
    healthy = {member.id: member for member in snapshot.members if member.id not in gone}
    decision = _decide_ring(snapshot, healthy, gone, silent, ages, limits)
    if (new := decision.generation) is not None:
        decision = replace(decision, generation=replace(new, term=term).after(current))
    if current is None or snapshot.job.state.over:
        return decision
    # A dead member is evicted at once: then each daemon cuts the ring that it is in, and no worker
    # waits for it. A leaving worker without a node has left as agreed, and the ring that it was in
    # is about to be closed. Its port refuses then, which is no reason to cut that ring. But before
    # the switch, a leaving worker that is silent is frozen or cut off, and is waited for.
    departed = {*current.left} - members
    if not snapshot.switched:
        departed -= silent
    known = {member.id for member in (*current.members, *current.previous)}
    lost = sorted((known - departed - snapshot.evicted.keys()).intersection(dead))
    if lost:
        evict = {**decision.evict, **{worker: dead[worker] for worker in lost}}
        # Who leaves removes its record before it closes its port, maybe after `snapshot` was read.
        registered = frozenset(members.intersection(lost, current.left))
        decision = replace(decision, evict=evict, registered=registered)
    # Borrowed slots whose workers have left are given back when there is nothing else to decide.
    done = () if decision.acts else returned(snapshot, ages.reclaims_s)
    if done:
        noted = DesiredChange(snapshot.desired, without_reclaimed(snapshot.desired, done))
        decision = replace(decision, change=noted, reclaimed=done)
    return decision


def _decide_ring(  # noqa: C901 - one decision, its guards in order
    snapshot: Snapshot,
    healthy: Mapping[int, Member],
    gone: frozenset[int],
    silent: frozenset[int],
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    job, current, ring = snapshot.job, snapshot.generation, snapshot.ring
    # The members of a job that has ended leave by themselves.
    if job.state.over or (current is not None and not current.members):
        return MembershipDecision("the job has ended")
    # Rule 1, before all others: no worker is to join a job that stops. With a generation without
    # members, all workers leave after the same step.
    if job.state is JobState.STOPPING:
        return _end(current, f"the job is asked to stop: {job.reason or 'no reason given'}")
    # Rule 2: there is no ring yet, so no state to keep.
    if current is None:
        # A slot whose workers die as they start is not waited for: its worker may join later.
        failing = sum(len(host.failing) for host in snapshot.hosts)
        return _start(snapshot, job.spec.np - failing, healthy, ages, limits)

    # Rule 2, again: no worker of the ring is left in ZooKeeper, so none can go on from its state.
    # A member that lost its session is not dead for that: it opens another one, and reports then.
    no_session = [m.id for m in ring if m.id not in healthy and m.id not in gone]
    if not any(member.id in healthy for member in ring):
        # A worker without a session may be training, with the newest state; one that has just
        # switched into the new ring may hold the state, too.
        no_session += sorted({*current.worker_ids} - {*healthy, *gone, *no_session})
        if no_session:
            missing = sorted({*no_session, *(member.id for member in ring)})
            return MembershipDecision(
                f"all of {names(missing)} left ZooKeeper and {names(no_session)} may be training; "
                "no change until they come back or are proven dead"
            )
        who = f"all {len(ring)} workers" if len(ring) > 1 else f"w{ring[0].id}, the last worker"
        died = f"{who} of generation {current.number} died"
        # The newcomers of a planned generation may hold the state, from its ring or from one that
        # it has replaced. A newcomer in a ring enters the generation, or reports that it broke; one
        # in no ring takes note that the generation will not come to be. A start would lose the
        # state of one that has done neither yet.
        joined = [healthy[worker] for worker in current.joined if worker in healthy]
        unheard = [
            m.id
            for m in joined
            if not reports_broken(m, current) and m.newest_generation < current.number
        ]
        if unheard:
            late = ages.lost_s >= limits.report_s
            reason = (
                f"{died}, and it did not say within {limits.report_s:g} s whether it holds the "
                "state"
            )
            return MembershipDecision(
                f"{died}; {names(unheard)} may hold the state: no change until it is known",
                evict=dict.fromkeys(unheard if late else (), reason),
            )
        # Newcomers that do hold the state go on with it.
        if any(_has_state(member, current) for member in joined):
            return _repair(current, ring, healthy, no_session, ages, limits)
        # Nothing is left of the state but a checkpoint, so this is a start like the first one.
        return _start_again(snapshot, current, died, healthy, ages, limits)

    # Rule 3, before 4 and 5: a member reports that the ring broke, so no ring is left to change.
    training = {w: m for w, m in healthy.items() if m.stage is not Stage.FINISHED}
    if any(reports_broken(training.get(member.id), current) for member in ring):
        return _repair(current, ring, training, no_session, ages, limits)
    # After the last step the other members are about to end, too: there is nothing to train.
    if any(member.id in healthy and member.id not in training for member in ring):
        return MembershipDecision("the job has trained to its end")

    # Rule 4: newcomers that cannot join hold no state, so a generation without them may take the
    # place of this one, while no member has entered it and the ring before goes on. It does not
    # go on when it has lost a member, too: then it breaks, and its members report that. At a start
    # and after a break there is no ring before; the other members fail to build theirs, and report.
    # Nor can one join whose script is in another call of Keras' `fit` than the ring. But one that
    # has only lost its session can.
    lost = [worker for worker in current.joined if worker in gone]
    lost += [w for w in current.joined if w in healthy and healthy[w].fits != current.fits]
    breaking = bool(gone.difference(lost).intersection(member.id for member in ring))
    goes_on = bool(current.previous) and not breaking and not snapshot.switched
    if lost and goes_on:
        return _without_newcomers(snapshot, current, healthy, lost)
    # Rule 4: newcomers that wait for the end of an epoch hold up no worker that is to leave.
    old = {m.id: healthy[m.id] for m in current.previous if m.id in healthy}
    if current.waits_for_epoch and goes_on and len(old) == len(current.previous):
        before = replace(current, members=current.previous, joined=(), left=())
        leave = _change(snapshot, before, old, silent, ages, limits)
        if leave.generation is not None:
            return leave
        aware = {  # of a further generation, which those who wait enter in place of this one
            w: replace(m, newest_generation=current.number) if w in current.joined else m
            for w, m in healthy.items()
        }
        more = _change(snapshot, before, aware, silent, ages, limits)
        if more.generation is not None and {*more.generation.joined} > {*current.joined}:
            return more
        if sum(snapshot.assigned.hosts.values()) < len(current.members) and more.evict:
            return replace(more, generation=None, change=None)  # it is wanted no more
        enough = job.sizes.enough(len(current.previous))  # else they pause, and it joins
        when = "at the next epoch's start" if enough else "now: too few are left to train"
        joins = verb(len(current.joined), "joins", "join")
        reason = f"{names(current.joined)} {joins} {when}"
        return MembershipDecision(reason, answers=leave.answers)
    # Rule 4: after a further generation, some members would enter this one and others the further.
    waiting = [
        m.id
        for m in current.members
        if m.id in healthy and healthy[m.id].generation < current.number
    ]
    if waiting:
        return MembershipDecision(
            f"generation {current.number} waits for {names(waiting)} to switch"
        )

    # Rule 5 drops no member because its session ended: either it comes back, or the ring breaks.
    absent = [member.id for member in current.members if member.id not in healthy]
    if absent:
        return MembershipDecision(
            f"{names(absent)} of generation {current.number} left ZooKeeper; "
            "no change until it comes back or the ring breaks"
        )
    # Rule 5: all members train in this generation, so they can all switch to the next one.
    return _change(snapshot, current, healthy, silent, ages, limits)


def _next(
    current: Generation | None,
    reason: str,
    members: Sequence[RingMember],
    state_source: int,  # -1: no member stays
    joined: Sequence[int] = (),
    left: Sequence[int] = (),
    previous: Sequence[RingMember] = (),
    fits: int = 0,
    at_epochs: bool = False,
) -> MembershipDecision:
    """Return the decision for a next generation, which lacks only its leader's term."""
    return MembershipDecision(
        reason,
        Generation(
            (current.number if current is not None else 0) + 1,
            0,  # `decide` sets it
            tuple(members),
            state_source,
            tuple(joined),
            tuple(left),
            reason,
            previous=tuple(previous),
            fits=fits,
            at_epochs=at_epochs,
        ),
    )


def _end(current: Generation | None, reason: str) -> MembershipDecision:
    return _next(current, reason, (), -1, left=current.worker_ids if current is not None else ())


def _ring_member(member: Member) -> RingMember:
    return RingMember(member.id, member.host, member.slot, member.address, member.port)


# ------------------------------------------------------------
# Rule 2: a start, and a start again.


def _start(
    snapshot: Snapshot,
    wanted: int,
    healthy: Mapping[int, Member],
    ages: Ages,
    limits: Limits,
    hosts_before: Sequence[str] = (),  # of a ring that has died, in the order of its ranks
) -> MembershipDecision:
    ready = [m for m in healthy.values() if m.stage is Stage.READY]
    count, sizes = len(ready), snapshot.job.sizes
    size = sizes.below(count) if sizes.enough(count) else None
    # With fewer than wanted the ring starts only after a time limit, and never below min_np.
    if size is None or (count < wanted and ages.leading_s < limits.start_s):
        stuck = sorted(m.id for m in healthy.values() if is_stuck(m, ages, limits))
        return MembershipDecision(
            f"{count} of {wanted} workers are ready to start",
            evict=dict.fromkeys(stuck, f"it was not ready after {limits.prepare_s:g} s"),
        )
    chosen = sorted(ready, key=lambda m: (m.host, m.slot, m.id))[:size]
    # Ranks go host by host, for a ring's neighbours send each other every gradient. Hosts keep the
    # order that they had in a ring that has died.
    first = {host: min(m.id for m in chosen if m.host == host) for host in {m.host for m in chosen}}
    first |= {host: at - len(hosts_before) for at, host in reversed([*enumerate(hosts_before)])}
    chosen.sort(key=lambda m: (first[m.host], m.id))
    reason = f"the job starts with {len(chosen)} of {workers(wanted)}"
    joined = [member.id for member in chosen]
    return _next(None, reason, [_ring_member(m) for m in chosen], joined[0], joined)


def _start_again(
    snapshot: Snapshot,
    current: Generation,
    died: str,
    healthy: Mapping[int, Member],
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    job, assigned, agents = snapshot.job, snapshot.assigned, {host.name for host in snapshot.hosts}
    hostless = [host for host, n in assigned.hosts.items() if n and host not in agents]
    startable = sum(n for host, n in assigned.hosts.items() if host in agents)
    # A host without an agent may have died with its workers; an agent that lost its session opens
    # another one within moments. Too few hosts are waited for: one may come back or join.
    wanted, unawaited = job.sizes.fit(assigned.np), ""
    if hostless and ages.leading_s >= limits.gather_s and job.sizes.enough(startable):
        wanted = job.sizes.fit(startable)
        unawaited = f"; nobody waits for {', '.join(hostless)}, where no agent is"
    hosts_before = [member.host for member in snapshot.ring]
    start = _start(snapshot, wanted, healthy, ages, limits, hosts_before)
    if (new := start.generation) is None:
        return replace(start, reason=f"{died}; {start.reason}{unawaited}")
    saved = job.saved_step
    kept = f"the checkpoint of step {saved} is left" if saved >= 0 else "their state is lost"
    reason = f"{died}, {kept}; {new.reason}{unawaited}"
    left = sorted(member.id for member in snapshot.ring)
    return _next(current, reason, new.members, new.state_source, new.joined, left)


# ------------------------------------------------------------
# Rule 3: a repair. The leader waits until each member of the ring has reported its last step, is
# dead, or is evicted. Then the survivors go on from the state of one that has made the most
# progress: by steps, then by exchanges between steps, then by leaves (all have left an epoch with a
# batch in hand). No newcomer joins in the generation that repairs, for the survivors are in the
# middle of a step.


def _repair(
    current: Generation,
    ring: Sequence[RingMember],
    training: Mapping[int, Member],
    no_session: Sequence[int],
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    broken = f"generation {current.number} is broken"
    unreported = [
        m.id for m in ring if m.id in training and not reports_broken(training[m.id], current)
    ]
    # A member that did not report may have made one step more than the others, and be the only one
    # with that state. The time limit evicts a member only where the state outlives it.
    is_safe = any(_has_state(member, current) for member in training.values())
    if (unreported or no_session) and is_safe and ages.broken_s >= limits.report_s:
        reason = f"{broken}, and it did not report within {limits.report_s:g} s"
        return MembershipDecision(broken, evict=dict.fromkeys((*unreported, *no_session), reason))
    if unreported or no_session:
        parts = [f"{names(unreported)} did not report yet"] if unreported else []
        if no_session:
            only = "" if is_safe or unreported else ", and may be the only one with the state"
            parts.append(
                f"{names(no_session)} left ZooKeeper{only}: no change until it reports or is "
                "proven dead"
            )
        return MembershipDecision(f"{broken}; {'; '.join(parts)}")
    # Newcomers of a generation whose ring was never built hold no state, and may not even know
    # that the other members tried to build it: they are repaired with, but not waited for.
    old = {member.id for member in ring}
    newcomers = [member for member in current.members if member.id not in old]
    survivors = [m for m in (*ring, *newcomers) if reports_broken(training.get(m.id), current)]
    # In rank order, by worker id: (steps, exchanges, leaves); a step of -1: it has no state.
    reports = {m.id: report for m in survivors if (report := training[m.id].broken) is not None}
    most = max(report.progress for report in reports.values())
    newest, *_ = most
    if newest >= 0:
        source = next(worker for worker, report in reports.items() if report.progress == most)
        behind = [worker for worker, report in reports.items() if report.step < newest]
        go_on = f"go on from step {newest} of w{source}"
    else:  # without any state the first survivor sends its initial one to all
        source, behind, go_on = survivors[0].id, [*reports], "begin"
    lost = [member.id for member in ring if member.id not in reports]
    counted = f"{len(survivors)} of {len(survivors) + len(lost)}"
    died = f"{names(lost)} went" if lost else "nobody died"
    reason = f"generation {current.number} broke and {died}; {counted} {go_on}"
    at_epochs = any(report.at_epochs for report in reports.values())
    if at_epochs and not current.at_epochs:
        reason += "; from now on newcomers join at the start of an epoch"
    return _next(current, reason, survivors, source, behind, lost, at_epochs=at_epochs)


def _has_state(member: Member, current: Generation) -> bool:
    """Return whether a worker reports its ring as broken and holds the job's state."""
    report = member.broken
    return report is not None and report.step >= 0 and reports_broken(member, current)


# ------------------------------------------------------------
# Rule 4: a planned generation that has lost newcomers.


def _without_newcomers(
    snapshot: Snapshot, current: Generation, healthy: Mapping[int, Member], lost: Sequence[int]
) -> MembershipDecision:
    joined = [worker for worker in current.joined if worker not in lost]
    old = [member.id for member in current.members if member.id not in current.joined]
    # Leavers stay in the places of lost newcomers, so that the ring is as large as is wanted. Those
    # that got SIGTERM are the last to be kept.
    departures = [m.id for m in current.previous if m.id in current.left and m.id in healthy]
    departures.sort(key=lambda worker: healthy[worker].stage is Stage.LEAVING)
    floor = min(len(current.previous), snapshot.job.sizes.fit(snapshot.assigned.np))
    staying = departures[: max(0, min(len(lost), floor - len(old) - len(joined)))]
    members = [m for m in current.previous if m.id in old or m.id in staying]
    members += [m for m in current.members if m.id in joined]
    went = "ended"  # by itself, too, if it differs from the others
    if all(worker in healthy for worker in lost):
        went = "went on to another fit"
    elif not any(snapshot.evicted.get(worker, GONE).startswith(GONE) for worker in lost):
        went = verb(len(lost), "was evicted", "were evicted")
    reason = f"{names(lost)} {went} before joining generation {current.number}"
    if staying:
        reason += f"; {names(staying)} cannot leave yet"
    left = [worker for worker in current.left if worker not in staying]
    source = current.state_source  # an old member
    return _next(
        current, reason, members, source, joined, left, current.previous, fits=current.fits
    )


# ------------------------------------------------------------
# Rule 5: a planned change, in which workers join and leave in one switch. `resize` says who may
# leave, who may join or is evicted, and which size the ring has then.


def _change(  # noqa: C901 - one decision, its guards in order
    snapshot: Snapshot,
    current: Generation,  # which all its members have entered
    healthy: Mapping[int, Member],  # among them all members of `current`
    silent: frozenset[int],
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    active, sizes, assigned = current.members, snapshot.job.sizes, snapshot.assigned
    # A crash may have left a size that is not allowed, and nobody who can start the others.
    snapshot = with_allowed_size(snapshot, active, ages, limits)
    answers, departures = workers_to_leave(snapshot, active, healthy, ages, limits)
    # Workers that have never been in a ring.
    arriving = [
        member
        for member in healthy.values()
        if member.generation == 0 and member.stage in (Stage.PREPARING, Stage.READY)
    ]
    # Horovodrun's driver assigns slots, and sends SIGTERM to each worker when it ends: no worker
    # would be started for those that leave.
    signalled = sum(departure.cause is DepartureCause.SIGNAL for departure in departures)
    if assigned.by_slot and not arriving and signalled == len(active):
        return _end(current, ALL_ASKED)
    newcomers = sort_newcomers(arriving, snapshot, current, departures, silent, ages, limits)
    # A refusal is written at once; an accepted drain is answered with the switch that does it.
    refusals = tuple(answer for answer in answers if not answer.accepted)
    wait = MembershipDecision("", evict=newcomers.evict, answers=refusals)
    # Newcomers that come up together join in one switch, for each switch costs a pause.
    if newcomers.ready and newcomers.coming and newcomers.ready_s < limits.gather_s:
        reason = f"{names(newcomers.ready)} are ready and wait for {names(newcomers.coming)}"
        return replace(wait, reason=reason)
    # Newcomers that join at the end of the epoch hold up no worker that leaves in any case.
    target = choose_target(snapshot, active, departures, ())
    if not (current.at_epochs and target.leaving):
        target = choose_target(snapshot, active, departures, newcomers.ready)
    # Newcomers that take the places of other workers wait for the last of them: meanwhile the ring
    # lacks no worker, and the migration of several workers is one switch.
    together = target.joining
    awaited = await_replacements(snapshot, active, departures, target, newcomers, healthy, limits)
    if together and awaited:
        target = choose_target(snapshot, active, departures, ())
        if not target.leaving:
            move = f"{names(together)} are ready and move together with {', '.join(awaited)}"
            return replace(wait, reason=move)

    # Without a worker that joins or leaves, the next generation would be the present one.
    train, wanted = len(active), snapshot.assigned.np
    if not target.joining and not target.leaving:
        postponed, ready, coming = target.postponed_ids, newcomers.ready, newcomers.coming
        mute = [worker for worker in coming if healthy[worker].stage is Stage.READY]
        if postponed:
            one, more = "leaves when its replacement is", "leave when their replacements are"
            reason = f"{names(postponed)} {verb(len(postponed), one, more)} ready"
        elif ready:
            waits = verb(len(ready), "is ready and waits", "are ready and wait")
            reason = f"{names(ready)} {waits}: the job may have {sizes}; {train} of {wanted} train"
        elif mute:
            do = verb(len(mute), "does", "do")
            reason = f"{names(mute)} {do} not answer; {train} of {wanted} train"
        elif coming:
            reason = f"{names(coming)} {verb(len(coming))} preparing; {train} of {wanted} train"
        else:
            reason = f"{workers_train(train)}; {wanted} {verb(wanted)} wanted"
        return replace(wait, reason=reason)
    # Workers of a host that get SIGTERM one after another leave in one switch, too.
    if not target.joining:
        others = await_same_host(snapshot, active, departures, target.leaving, ages, limits)
        if others is not None:
            reason, again_s = others
            return replace(wait, reason=reason, again_s=again_s)

    # The switch. The members that stay keep their order, then newcomers follow by id.
    leaving, joining = sorted(worker.id for worker in target.leaving), sorted(target.joining)
    stay = [member for member in active if member.id not in leaving]
    members = [*stay, *(_ring_member(healthy[worker]) for worker in joining)]
    lowered = without_leaving(snapshot.assigned.hosts, target.leaving)
    parts = []
    if joining:
        # Too few to train pause, so the newcomer need not wait for the end of an epoch.
        waits_for_epoch = current.at_epochs and sizes.enough(train)
        joins = f"{verb(len(joining), 'joins', 'join')} at the next epoch's start"
        parts.append(f"{names(joining)} {joins if waits_for_epoch else 'joined'}")
    if leaving:
        parts.append(f"{names(leaving)} left")
    np = workers(len(members))
    reason = f"{' and '.join(parts)}: {train} -> {np}, {sum(lowered.values())} wanted"
    reason += "" if members else "; the job ends"
    source = stay[0].id if stay else -1
    fits = max((healthy[worker].fits for worker in joining), default=0)
    decision = _next(current, reason, members, source, joining, leaving, active, fits)
    # The desired number falls with the switch in which a worker leaves, and not before: else it
    # would fall again with each decision. So the drain of a postponed worker stays open, too.
    closed = [a for a in answers if not (a.accepted and a.worker in target.postponed_ids)]
    change = None
    if lowered != assigned.hosts:
        why = f"{names([w.id for w in target.leaving])} {verb(len(leaving), 'leaves', 'leave')}"
        if snapshot.assigned is not assigned:
            why = f"nobody can start who is lacking, and the job may have {sizes}"
        change = set_desired(snapshot.desired, assigned, lowered, RequestedBy.LEADER, why)
    return replace(decision, change=change, evict=newcomers.evict, answers=tuple(closed))
