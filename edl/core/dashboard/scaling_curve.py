"""Say what a job gains from another size: R(k), measured and fitted, and what a change costs.

R(k) is the throughput of k workers together, in samples a second. The fitted curve is the model by
which the job's own size rule decides (:meth:`ScalingProfile.observation`). A change of size stops
training for ``change_s`` seconds. What is lost then, R(now) * change_s samples, has been made up
after

    R(now) * change_s / (R(k) - R(now))    seconds, if R(k) > R(now).

The throughputs are means over all steps at a size. While the present one is far from its mean, as
when a slow worker holds the job up, they say nothing of the present: no gain is told then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.core.job.profile import SAMPLES, Curve
from edl.core.plural import workers
from edl.core.policy.observation import Observation
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.record import Record
from edl.core.sizes import Sizes
from edl.core.snapshot import Snapshot

MOST_SIZES = 64  # of the fitted curve
FAR = 1.5  # the factor between the present throughput and its mean, from which the means are void
FAR_WHEN_SLOW = 1.1  # while the others wait for a slow worker
BEYOND = 2  # a curve without an end goes on to so many times the largest size known


@dataclass(frozen=True)
class SizeThroughput(Record):
    np: int  # the number of workers
    samples_per_s: float  # of all workers together
    steps: int = 0  # the steps in which it was measured; 0: it was not


@dataclass(frozen=True)
class ResizeForecast(Record):
    """The throughput and the end of a job if it had another number of workers."""

    np: int  # that number
    samples_per_s: float  # the throughput that is expected
    measured: bool  # whether that throughput was measured; else it is fitted
    # the throughput, relative to that at the present size; None: the means do not hold now
    gain: float | None
    efficiency: float | None  # the throughput of a worker, relative to the smallest measured size
    eta_s: float | None  # the seconds until the training ends, with the change; None: not known
    pays_after_s: float | None  # the seconds until the cost of the change is made up; None: never


@dataclass(frozen=True)
class ScalingCurve(Record):
    """The throughput of a job by its size."""

    np: int  # the present number of workers
    samples_per_s: float | None  # the present throughput, measured or fitted; None: not known
    # what was measured while it trained, the fewest workers first
    measured: tuple[SizeThroughput, ...]
    profiled: tuple[SizeThroughput, ...]  # what `edl profile` has measured
    fitted: tuple[SizeThroughput, ...]  # the model; empty: none was fitted
    change_s: float  # for how long training stands still at a change of size, in seconds
    change_measured: bool  # whether that was measured; else the value is an assumption
    forecasts: tuple[ResizeForecast, ...]  # what other sizes would bring
    void: str  # why the means do not hold now, so that no gain is told; empty: they do
    data_part: float  # the fraction of a step that workers wait for their data, on average
    room: int | None  # the largest number of workers for which the hosts have slots; None: any


def scaling_curve(
    snapshot: Snapshot,
    learned: ScalingProfile,
    profile: Curve | None,
    present_per_s: float | None = None,
) -> ScalingCurve:
    """Return the throughput of a job by its size."""
    np = len(snapshot.generation.members) if snapshot.generation is not None else 0
    filled = [host.slots for host in snapshot.available]
    slots = sum(filled) or None
    now = learned.observation(
        np, snapshot.job.sizes, slots, False, snapshot.status.left, (), filled
    )
    rates = _rates(now)
    present = present_per_s or rates.get(np, 0.0)
    void = _void(np, rates.get(np, 0.0), present, snapshot.status.slowest)
    return ScalingCurve(
        np=np,
        samples_per_s=rates.get(np),
        measured=tuple(
            SizeThroughput(n, round(one.samples_per_s, 2), one.steps)
            for n, one in sorted(now.seen.items())
        ),
        profiled=tuple(
            SizeThroughput(one.np, round(one.throughput, 2), one.steps)
            for one in (profile.points if profile is not None else ())
            if one.unit == SAMPLES
        ),
        fitted=_fitted(now),
        change_s=round(now.change_s, 3),
        change_measured=learned.change_s > 0,
        forecasts=_forecasts(now, rates, present, is_void=bool(void)),
        void=void,
        data_part=round(learned.data_part, 4),
        room=slots,
    )


def _sizes(now: Observation) -> list[int]:
    """Return allowed sizes from 1 worker on, at most `MOST_SIZES`, evenly spread."""
    seen = max([now.np, *now.seen], default=1)
    limit = min(now.most, BEYOND * max(seen, now.sizes.min_np, 2))
    known = _allowed(now.sizes, range(1, max(limit, seen) + 1))
    every = max(1, -(-len(known) // MOST_SIZES))
    return sorted({*known[::every], *known[-1:]})


def _allowed(sizes: Sizes, numbers: Iterable[int]) -> list[int]:
    return [np for np in numbers if sizes.allows(np)]


def _rates(now: Observation) -> dict[int, float]:
    """Return the throughput of each size that was measured, or else is fitted, by size."""
    fitted = {one.np: one.samples_per_s for one in _fitted(now)}
    return fitted | {np: one.samples_per_s for np, one in now.seen.items()}


def _fitted(now: Observation) -> tuple[SizeThroughput, ...]:
    """Return the model's throughput by size; empty if there is no model, or it has no numbers."""
    if now.model is None:
        return ()
    try:
        return tuple(SizeThroughput(np, round(now.model.throughput(np), 2)) for np in _sizes(now))
    except ArithmeticError:
        return ()


def _void(np: int, mean_per_s: float, present_per_s: float, slowest: str | None) -> str:
    """Return why the means say nothing of the present throughput; empty: they do."""
    low, high = sorted((mean_per_s, present_per_s))
    if not low or high < (FAR_WHEN_SLOW if slowest else FAR) * low:
        return ""
    cause = f", while all wait for {slowest}" if slowest else ""
    return (
        f"the job makes {present_per_s:,.0f} samples/s{cause}, and {mean_per_s:,.0f} is the mean "
        f"of {workers(np)}"
    )


def _forecasts(
    now: Observation, rates: dict[int, float], present_per_s: float, is_void: bool
) -> tuple[ResizeForecast, ...]:
    """Return what other sizes would bring: the next ones, the limits, and the measured ones."""
    present = rates.get(now.np)
    if not present:
        return ()
    near = {now.np - 2, now.np - 1, now.np, now.np + 1, now.np + 2, 2 * now.np, now.least}
    shown = sorted(np for np in near | {now.most} if np in rates and now.sizes.allows(np))
    least = min(now.seen, default=None)
    alone = now.seen[least].samples_per_s / least if least else None
    found = []
    for np in shown[:9]:
        rate, change_s = rates[np], 0.0 if np == now.np else now.change_s
        more = rate - present
        tells = not is_void or np == now.np
        found.append(
            ResizeForecast(
                np=np,
                samples_per_s=round(rate, 2),
                measured=np in now.seen,
                gain=round(rate / present, 4) if tells else None,
                efficiency=round(rate / np / alone, 4) if alone else None,
                eta_s=_eta_s(now.left, present_per_s * rate / present, change_s) if tells else None,
                pays_after_s=round(present * change_s / more, 2) if more > 0 and tells else None,
            )
        )
    return tuple(found)


def _eta_s(left: float | None, samples_per_s: float, change_s: float) -> float | None:
    return round(left / samples_per_s + change_s, 1) if left and samples_per_s > 0 else None
