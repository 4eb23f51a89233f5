"""Decide what follows when the rows of one table show workers at different points of the script.

One worker calls ``edl.mean`` where another takes the next batch, has left the epoch, or has ended:
each would wait for the other for ever. All workers see it in the same table, and decide alike
(:func:`find_mismatch`). Who was there first is right: a count of the script's own begins at 0 in a
worker that joined later. If the first ones differ among themselves, the script is wrong, and the
job ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.step.record import StepRecords, Stop
from edl.step.state_check import what_follows
from edl.text import names, verb

CALL_BITS = 2**33 - 1  # of the field `exchange`: what is called; above are sizes that must be equal

CURE = (
    "what a script counts itself begins at 0 in a newcomer; loader.batch_index (in TensorFlow that "
    "of edl.Dataset) and edl.step() are the job's"
)


@dataclass(frozen=True)
class Mismatch:
    """Which workers go another way than those that joined first."""

    leaving: tuple[int, ...] = ()  # in rank order; empty: the first ones differ themselves
    back: bool = False  # they join again at the start of an epoch, because they joined inside one
    over: bool = False  # the first ones have ended the training, so it is over for all
    ended: bool = False  # one of `leaving` has ended it


def find_mismatch(records: StepRecords) -> Mismatch | None:
    """Return who leaves, by the rows of all workers; None: all are at the same point."""
    if not any(records.differ_in(name) for name in ("stop", "epoch", "exchange", "site")):
        return None  # as in nearly every step
    first = records.column("joined") == records.column("joined").min()
    ended, epochs = records.column("stop") >= Stop.FINISHED, records.values("epoch")
    rows = zip(ended.tolist(), epochs, records.values("exchange"), strict=True)
    points = [(1, 0, 0) if over else (0, epoch, call & CALL_BITS) for over, epoch, call in rows]
    of_first = {point for point, is_first in zip(points, first, strict=True) if is_first}
    if len(of_first) > 1:
        return Mismatch()
    out = [at for at, point in enumerate(points) if point not in of_first]
    calls = {*records.column("exchange")[first].tolist()}
    if not out and len(calls) == 1:  # means of other numbers, for one
        out = [at for at, call in enumerate(records.values("exchange")) if call not in calls]
    if not out:
        # Lines count where workers have met before: `if rank == 0: mean(x) else: mean(x)` has two.
        sites = {*records.column("site")[first].tolist()}
        site = sites.pop() if len(sites) == 1 else 0
        out = [at for at, other in enumerate(records.values("site")) if abs(other) != site > 0]
    if not out:
        return None
    gone, over = bool(ended[out].any()), bool(ended[first].any())
    back = bool(records.column("inside")[out].all()) and not (gone or over)
    return Mismatch(tuple(records.values("worker")[at] for at in out), back, over, gone)


def why_mismatch(found: Mismatch, records: StepRecords, doing: Mapping[int, str]) -> str:
    """Return a sentence that says what each worker does, and what follows."""
    step, workers = records[0].step, records.values("worker")
    groups: dict[str, list[int]] = {}
    for worker in workers:
        groups.setdefault(doing[worker], []).append(worker)
    said = " while ".join(f"{names(them)} {what}" for what, them in groups.items())
    if not found.leaving:
        return (
            f"after step {step} of the job {said}: they would wait for each other for ever. All "
            "workers must make the same calls after the same steps, not by their rank or by what "
            "one of them sees"
        )
    who, many = names(found.leaving), len(found.leaving)
    joined = dict(zip(workers, records.values("joined"), strict=True))
    when = " and ".join(map(str, sorted({joined[worker] - 1 for worker in found.leaving})))
    head = f"{who} joined after step {when}, and after step {step} {said}"
    if found.over:
        return (
            f"{head}: the job has trained to its end with those that were there before, and "
            f"{who} {verb(many, 'ends', 'end')} with it"
        )
    cause = CURE
    if found.ended:
        cause = "a length that follows from hvd.size() or len(loader) is another one in a newcomer"
    return f"{head}: {cause}. {who} {what_follows(many, found.back)}"
