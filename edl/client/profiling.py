"""A job is stepped through sizes while it trains, downwards, and its throughput measured in each.

Downwards, because a worker leaves within a step and a newcomer needs its whole start: only the
largest size may have to be waited for. Then the job has the size back that it had, whatever
happened meanwhile, unless somebody else has changed it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from edl.client.scaling import Plan, Wanted
from edl.client.waiting import POLL_S, Story, Tell, looks, running
from edl.coordination.store import JobStore
from edl.core.decision import workers_train
from edl.core.facts import Event, Host, Snapshot
from edl.core.placement import check_scale, place, workers
from edl.core.profile import Curve, Point, Reading, in_order, measured
from edl.errors import CoordinationError, RequestError, Superseded, UnknownJob, UsageError

RESTORE_S = 30.0  # for ZooKeeper to take the old size again


def profile(
    store: JobStore, sizes: Iterable[int], steps: int, timeout_s: float, tell: Tell
) -> Curve:
    """The curve of the job over ``sizes``, stored with it point by point.

    Args:
        steps: measured in each size, after a few that are not.
        timeout_s: for each size, to be reached and measured.

    Raises:
        UsageError: sizes that the job's limits or hosts forbid; nothing was changed.
        Superseded: somebody else has changed the size; it stays as it is.
        TimedOut, JobEnded: the message says which sizes were measured.
    """
    order = in_order(sizes)
    if steps < 1:
        raise UsageError(f"{steps} steps cannot be measured; at least 1 is needed")
    if timeout_s <= 0:
        raise UsageError(f"nothing can be measured in {timeout_s:g} s; give a longer time-out")
    what = f"profile job {store.name}"
    now = running(store, what)
    for np in order:
        check_scale(now.job, np)
    hold = _Hold(store, Wanted(store, now.job, what), now)
    curve = Curve(store.name, time.time())
    try:
        for np in order:
            hold.take(np)
            point, generation = _measure(store, hold, np, steps, timeout_s, tell)
            curve = curve.with_point(point)
            store.put_profile(curve)
            _log(store, point, generation)
    except RequestError as error:
        sizes_done = ", ".join(str(point.np) for point in curve.points) or "no size"
        kept = f"measured with {sizes_done} workers" if curve.points else "nothing was measured"
        raise type(error)(store.name, f"{error}; {kept}") from error
    except KeyboardInterrupt as end:
        kept = f"what was measured is kept (`edl profile {store.name} --show`)"
        told = kept if curve.points else "nothing was measured"
        end.add_note(f"the job has the size back that it had; {told}")  # see below
        raise
    finally:
        hold.give_back()
    return curve


class _Hold:
    """The plan of the job: ours to change as long as it is one that we have written."""

    def __init__(self, store: JobStore, wanted: Wanted, now: Snapshot) -> None:
        self._store = store
        self._wanted = wanted
        self._hosts: Sequence[Host] = wanted.hosts(now)
        self._before: Plan = dict(wanted.of(now))
        self._ours: list[Plan] = [self._before]

    def take(self, np: int) -> None:
        """Want ``np`` workers from now on."""

        def change(plan: dict[str, int]) -> dict[str, int]:
            self._check(plan)
            self._ours.append(place(self._store.name, np, plan, self._hosts))
            return dict(self._ours[-1])  # noted before it is written: we may be interrupted

        self._wanted.change(change)

    def check(self, now: Snapshot) -> None:
        """Raises Superseded when somebody else has changed the plan."""
        self._check(self._wanted.of(now))

    def _check(self, plan: Plan) -> None:
        if plan not in self._ours:
            told = f"somebody has changed the plan of job {self._store.name} to"
            size = f"{workers(sum(plan.values()))} while it was profiled; that stays"
            raise Superseded(self._store.name, f"{told} {size}")

    def give_back(self) -> None:
        """Want the workers again that were wanted at first.

        Raises:
            RequestError: they are not; the message says how to, as does the note of a
                KeyboardInterrupt.
        """
        deadline = time.monotonic() + RESTORE_S
        name, np = self._store.name, sum(self._before.values())
        lost = f"job {name} does not have its size back; `edl scale {name} --np {np}`"
        try:
            while not self._is_given_back(deadline, lost):
                time.sleep(POLL_S)
        except KeyboardInterrupt as end:
            end.add_note(lost)
            raise

    def _is_given_back(self, deadline: float, lost: str) -> bool:
        try:
            self._wanted.change(lambda p: dict(self._before) if p in self._ours else p)
        except UnknownJob:  # it is gone, and its plan with it
            return True
        except CoordinationError as error:
            if time.monotonic() >= deadline:
                raise RequestError(self._store.name, f"{lost}: {error}") from error
            return False
        return True


def _measure(
    store: JobStore, hold: _Hold, np: int, steps: int, timeout_s: float, tell: Tell
) -> tuple[Point, Reading]:
    """The point of ``np`` workers, and the last reading of it."""
    story = Story(tell)
    what = f"profiling job {store.name} with {workers(np)}"
    readings: list[Reading] = []
    for now in looks(store, timeout_s, what, story):
        hold.check(now)
        ring = len(now.generation.seats) if now.generation is not None else 0
        if "counted" in now.status:
            reading = Reading.from_json(now.status["counted"])
            if reading not in readings[-1:]:
                readings.append(reading)
            point = measured(readings, np, steps)
            if point is not None:
                return point, reading
        reason = now.status.get("reason", "")
        step = now.status.get("step", 0)
        story(f"step {step} with {workers(ring)}: {reason}")
    raise AssertionError("looks() ends with an error")


def _log(store: JobStore, point: Point, last: Reading) -> None:
    reason = (
        f"{workers_train(point.np)} {point.throughput:.1f} {point.unit}/s, "
        f"{point.step_s:.3g} s a step over {point.steps} steps"
    )
    store.add_event(
        Event(time.time(), "profile", last.generation, last.step, reason, point.to_json())
    )
