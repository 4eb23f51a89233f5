"""Measure a running job's throughput with several numbers of workers (:func:`profile`).

The order is downwards because a worker leaves within a step, but a new worker has to start its
process first: so only the largest number may have to be waited for. Afterwards the job gets back
the number of workers that it had, whatever happened meanwhile, unless another number was requested.
Only kill -9 of the profiling process, or a ZooKeeper that stays away, leaves the job at the number
that is being measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from edl.client.holding import HeldSize
from edl.client.waiting import USUAL, ClientLimits, Messages, OnMessage, looks, resizable
from edl.coordination.job_store import JobStore
from edl.core.events import Event, ProfileDetails, ProfilingDetails
from edl.core.job.placement import Placement
from edl.core.job.profile import Curve, Point, in_order, measured_point
from edl.core.plural import verb, workers, workers_train
from edl.core.progress import ProgressSample
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, RequestError, Superseded, UsageError


def profile(
    store: JobStore,
    sizes: Iterable[int],
    steps: int,
    timeout_s: float,
    on_message: OnMessage,
    limits: ClientLimits = USUAL,
) -> Curve:
    """Measure the throughput of a job with each number of workers in `sizes`."""
    order = in_order(sizes)
    if steps < 1:
        raise UsageError(f"{steps} steps cannot be measured; at least 1 is needed")
    if timeout_s <= 0:
        raise UsageError(f"nothing can be measured in {timeout_s:g} s; give a longer time-out")
    now = resizable(store, f"profile job {store.name}", limits)
    for np in order:
        now.job.sizes.check_scale(store.name, np)
    hold = HeldSize(store, now, limits)
    curve = Curve(store.name, time.time())
    try:
        with hold:
            _log_start(store, hold.before, order, now)
            for np in order:
                hold.take(np)
                point, last = _measure(store, hold, np, steps, timeout_s, on_message, limits)
                curve = curve.with_point(point)
                store.profile.put(curve)
                _log(store, point, last)
    except RequestError as error:
        sizes_done = ", ".join(str(point.np) for point in curve.points) or "no size"
        kept = f"measured with {sizes_done} workers" if curve.points else "nothing was measured"
        said = "" if isinstance(error, Superseded) and hold.outcome else str(error)
        outcome = hold.outcome if hold.kept or not said else ""
        raise type(error)(store.name, "; ".join(filter(None, (said, outcome, kept)))) from error
    except KeyboardInterrupt as end:
        kept = f"what was measured is kept (`edl profile {store.name} --show`)"
        if hold.outcome:
            end.add_note(f"{hold.outcome}; {kept if curve.points else 'nothing was measured'}")
        raise
    return curve


def _measure(
    store: JobStore,
    hold: HeldSize,
    np: int,
    steps: int,
    timeout_s: float,
    on_message: OnMessage,
    limits: ClientLimits,
) -> tuple[Point, ProgressSample]:
    """Wait until the throughput with `np` workers is measured."""
    messages = Messages(on_message)
    what = f"profiling job {store.name} with {workers(np)}"
    readings: list[ProgressSample] = []
    for now in looks(store, timeout_s, what, messages, limits=limits):
        hold.check(now)
        ring = len(now.generation.members) if now.generation is not None else 0
        reading = now.status.progress_sample
        if reading is not None:
            if reading not in readings[-1:]:
                readings.append(reading)
            point = measured_point(readings, np, steps)
            if point is not None:
                return point, reading
        messages(f"step {now.status.step} with {workers(ring)}: {now.status.reason}")
    raise AssertionError("looks() ends with an error")


def _log_start(store: JobStore, before: Placement, order: Sequence[int], now: Snapshot) -> None:
    """Log the size of the job, so that a user can restore it if this process dies."""
    had = sum(before.values())
    reason = f"{workers(had)} {verb(had)} wanted; profiled with {', '.join(map(str, order))}"
    number = now.generation.number if now.generation else 0
    with suppress(CoordinationError):
        store.events.add(
            Event(time.time(), number, now.status.step, reason, ProfilingDetails(had, dict(before)))
        )


def _log(store: JobStore, point: Point, last: ProgressSample) -> None:
    """Record a measured point as an event of the job; do nothing while ZooKeeper is away."""
    reason = (
        f"{workers_train(point.np)} {point.throughput:.1f} {point.unit}/s, "
        f"{point.step_s:.3g} s a step over {point.steps} steps"
    )
    with suppress(CoordinationError):
        store.events.add(
            Event(time.time(), last.generation, last.step, reason, ProfileDetails(**vars(point)))
        )
