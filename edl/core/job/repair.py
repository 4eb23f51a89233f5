"""Decide how a ring that broke is repaired: rule 3 of :mod:`edl.core.job.membership`.

The entry point is :func:`repair`.

The leader waits until each member of the ring has reported its last step, is dead, or is evicted.
Then the survivors go on from the state of one that has made the most progress: by steps, then by
exchanges between steps, then by leaves (all have left an epoch with a batch in hand). No newcomer
joins in the generation that repairs, for the survivors are in the middle of a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edl.core.job.ages import Ages
from edl.core.job.decision import Limits, MembershipDecision
from edl.core.job.ring_failure import broke
from edl.core.plural import names
from edl.core.records import Generation, Member, RingMember


def repair(
    current: Generation,
    ring: Sequence[RingMember],
    training: Mapping[int, Member],
    no_session: Sequence[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision that repairs a broken ring, or one to wait for reports of its members."""
    unreported = [m.id for m in ring if m.id in training and not broke(training[m.id], current)]
    # A member that did not report may have made one step more than the others, and be the only
    # one with that state.
    if unreported or no_session:
        is_safe = has_state(training.values(), current)
        return _await_reports(current, unreported, no_session, is_safe, ages, limits)
    # Newcomers of a generation whose ring was never built hold no state, and may not even know
    # that the other members tried to build it: they are repaired with, but not waited for.
    old = {member.id for member in ring}
    newcomers = [member for member in current.members if member.id not in old]
    survivors = [m for m in (*ring, *newcomers) if broke(training.get(m.id), current)]
    progress = {m.id: b.progress for m in survivors if (b := training[m.id].broken) is not None}
    gone = tuple(member.id for member in ring if member.id not in progress)
    source, behind = _state_source(progress)
    newest, *_ = progress[source]
    lost = f"{names(gone)} went" if gone else "nobody died"
    go_on = f"go on from step {newest} of w{source}" if newest >= 0 else "begin"
    counted = f"{len(survivors)} of {len(survivors) + len(gone)}"
    reason = f"generation {current.number} broke and {lost}; {counted} {go_on}"
    at_epochs = any(b.at_epochs for m in survivors if (b := training[m.id].broken) is not None)
    if at_epochs and not current.at_epochs:
        reason += "; from now on newcomers join at the start of an epoch"
    return MembershipDecision(
        reason,
        Generation(
            current.number + 1,
            term,
            tuple(survivors),
            source,
            behind,
            gone,
            reason,
            at_epochs=at_epochs,
        ),
    )


def _await_reports(
    current: Generation,
    unreported: Sequence[int],
    no_session: Sequence[int],
    is_safe: bool,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision to wait for reports, or to evict who has not reported in time."""
    broken = f"generation {current.number} is broken"
    # The time limit evicts a member only where the state outlives it.
    if is_safe and ages.broken_s >= limits.report_s:
        why = f"{broken}, and it did not report within {limits.report_s:g} s"
        return MembershipDecision(broken, evict=dict.fromkeys((*unreported, *no_session), why))
    parts = [f"{names(unreported)} did not report yet"] if unreported else []
    if no_session:
        only = "" if is_safe or unreported else ", and may be the only one with the state"
        parts.append(
            f"{names(no_session)} left ZooKeeper{only}: no change until it reports or is proven "
            "dead"
        )
    return MembershipDecision(f"{broken}; {'; '.join(parts)}")


def _state_source(progress: Mapping[int, tuple[int, int, int]]) -> tuple[int, tuple[int, ...]]:
    """Choose the worker whose state a repaired ring goes on from, and who receives that state."""
    # In rank order, by worker id: (steps, exchanges, leaves); a step of -1: it has no state.
    most = max(progress.values())
    newest, *_ = most
    # Without any state the first survivor sends its initial one to all.
    if newest < 0:
        return next(iter(progress)), tuple(progress)
    source = next(worker for worker, made in progress.items() if made == most)
    return source, tuple(worker for worker, (step, *_) in progress.items() if step < newest)


def has_state(members: Iterable[Member], current: Generation) -> bool:
    """Return whether one of `members` reports its ring as broken and holds the job's state."""
    return any(m.broken is not None and m.broken.step >= 0 and broke(m, current) for m in members)
