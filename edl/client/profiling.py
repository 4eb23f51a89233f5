"""A job is stepped through sizes while it trains, downwards, and its throughput measured in each.

Downwards, because a worker leaves within a step and a newcomer needs its whole start: only the
largest size may have to be waited for. Then the job has the size back that it had, whatever
happened meanwhile, unless somebody has asked for another one. Only kill -9 leaves it as it is.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from edl.client.scaling import Plan, Wanted
from edl.client.waiting import POLL_S, Story, Tell, looks, running
from edl.coordination.store import JobStore
from edl.core.facts import Event, Host, Snapshot
from edl.core.placement import check_scale, place
from edl.core.profile import Curve, Hold, Point, Reading, given_back, in_order, measured
from edl.core.wording import verb, workers, workers_train
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
        UsageError: another profile of this job is under way.
        Superseded: somebody has asked for another size, which stays; or hosts or workers came or
            left, then the others are wanted again.
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
        with hold:
            _log_start(store, hold.before, order, now)
            for np in order:
                hold.take(np)
                point, last = _measure(store, hold, np, steps, timeout_s, tell)
                curve = curve.with_point(point)
                store.put_profile(curve)
                _log(store, point, last)
    except RequestError as error:
        sizes_done = ", ".join(str(point.np) for point in curve.points) or "no size"
        kept = f"measured with {sizes_done} workers" if curve.points else "nothing was measured"
        said = "" if isinstance(error, Superseded) and hold.told else str(error)
        told = hold.told if hold.kept or not said else ""
        raise type(error)(store.name, "; ".join(filter(None, (said, told, kept)))) from error
    except KeyboardInterrupt as end:
        kept = f"what was measured is kept (`edl profile {store.name} --show`)"
        if hold.told:
            end.add_note(f"{hold.told}; {kept if curve.points else 'nothing was measured'}")
        raise
    return curve


class _Hold:
    """The plan of the job: ours to change as long as it is one that we have written.

    Only one profile holds it, by ``profile/hold``. Who scales or migrates the job meanwhile says so
    there, and that stays. All other changes are of hosts and workers that come and leave: they
    keep theirs, and the rest of the job has the workers back that it had.

    Attributes:
        told: once it is given back: what then stands; empty while it is not.
        kept: somebody else has changed it.
    """

    def __init__(self, store: JobStore, wanted: Wanted, now: Snapshot) -> None:
        self.told = ""
        self.kept = False
        self._asked = False
        self._store = store
        self._wanted = wanted
        self._job = now.job
        by = f"process {os.getpid()} on {socket.gethostname()}"
        self._mine = Hold(uuid.uuid4().hex, by, {})
        self._set(now)

    def __enter__(self) -> Self:
        try:
            if not self._store.hold_profile(self._mine):
                raise UsageError(self._held())
            self._set(self._store.snapshot())  # nobody else profiles it now
            self._mine = replace(self._mine, before=self.before)
            self._store.hold_profile(self._mine)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()

    def _set(self, now: Snapshot) -> None:
        self._hosts: Sequence[Host] = self._wanted.hosts(now)
        self.before: Plan = dict(self._wanted.of(now))
        self._ours: list[Plan] = [self.before]
        self._given: list[Plan] = []
        self._last: Plan | None = self.before  # that stands; None: not known
        self._slots = {host.name: host.slots for host in self._hosts}

    def _held(self) -> str:
        other = self._store.profile_hold()
        by = "another process" if other is None else other.by
        return (
            f"job {self._job.name} is profiled by {by}; wait until that has ended (if it was "
            "killed, some seconds)"
        )

    def take(self, np: int) -> None:
        """Want ``np`` workers from now on."""

        def change(plan: dict[str, int]) -> dict[str, int]:
            self._check(plan)
            self._keep()
            self._ours.append(place(self._job.name, np, plan, self._hosts))
            return dict(self._ours[-1])  # noted before it is written: we may be interrupted

        try:
            self._last = self._wanted.change(change)
        except (CoordinationError, KeyboardInterrupt):
            self._last = None
            raise

    def check(self, now: Snapshot) -> None:
        """Raises Superseded when somebody else has changed the plan."""
        self._slots |= {host.name: host.slots for host in self._wanted.hosts(now)}
        self._check(self._wanted.of(now))

    def _check(self, plan: Plan) -> None:
        if plan not in self._ours:
            raise Superseded(self._job.name, "the plan was changed while it was profiled")
        self._last = plan

    def _keep(self) -> None:
        """Raises Superseded when the size is no longer ours to choose."""
        hold = self._store.profile_hold()
        if hold is None:  # gone with a lost session
            alone, asked = self._store.hold_profile(self._mine), False
        else:
            alone, asked = hold.token == self._mine.token, hold.asked
        if asked or not alone:
            raise Superseded(self._job.name, "somebody else says how many workers there shall be")

    def give_back(self) -> None:
        """Want the workers again that were wanted at first, if nobody has asked for others.

        Raises:
            RequestError: they are not; the message says how to, as does the note of a
                KeyboardInterrupt.
        """
        deadline = time.monotonic() + RESTORE_S
        lost = f"job {self._job.name} does not have its size back; {self._way_back()}"
        try:
            while not self._is_given_back(deadline, lost):
                time.sleep(POLL_S)
        except KeyboardInterrupt as end:
            end.add_note(lost)
            raise
        finally:
            self._release()

    def _is_given_back(self, deadline: float, lost: str) -> bool:
        try:
            stands = self._wanted.change(self._restored)
        except UnknownJob:  # it is gone, and its plan with it
            return True
        except CoordinationError as error:
            if time.monotonic() >= deadline:
                raise RequestError(self._job.name, f"{lost}: {error}") from error
            return False
        self.told = self._standing(stands)
        return True

    def _restored(self, plan: dict[str, int]) -> dict[str, int]:
        """The plan as it shall be from now on."""
        if plan in self._given:  # it was written, and the answer was lost
            return plan
        hold, ours = self._store.profile_hold(), plan in self._ours
        if hold is None:  # gone with a lost session, and what it said too
            self._asked = not ours
        else:
            self._asked = hold.asked or hold.token != self._mine.token
        self._asked |= not ours and self._last is None
        self.kept = self._asked or not ours
        if self._asked:
            return plan
        slots, last = {**self.before, **self._slots}, plan
        if not ours:
            assert self._last is not None
            now, last = self._store.snapshot(), dict(self._last)
            slots = {host.name: host.slots for host in self._wanted.hosts(now)}
        elif all(slots[host] >= count for host, count in self.before.items()):
            return dict(self.before)
        job = self._job
        self._given.append(given_back(plan, self.before, last, slots, job.min_np, job.max_np))
        return dict(self._given[-1])

    def _standing(self, stands: Plan) -> str:
        now, before, name = sum(stands.values()), sum(self.before.values()), self._job.name
        if self._asked:
            told = f"somebody has changed the plan of job {name} to {workers(now)} while it was"
            told += " profiled; that stays"
        elif not self.kept and now == before:
            return "the job has the size back that it had"
        else:
            told = f"hosts or workers came or left while job {name} was profiled: "
            told += f"{workers(now)} {verb(now)} wanted now"
        back = "" if now == before else f"; it had {before} before, {self._way_back()}"
        return told + back

    def _way_back(self) -> str:
        return f"`edl scale {self._job.name} --np {sum(self.before.values())}`"

    def _release(self) -> None:
        with suppress(CoordinationError, UnknownJob):  # then it goes with our session
            self._store.release_profile(self._mine.token)


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


def _log_start(store: JobStore, before: Plan, order: Sequence[int], now: Snapshot) -> None:
    """Say which size the job had, for the case that nobody can give it back."""
    had = sum(before.values())
    reason = f"{workers(had)} {verb(had)} wanted; profiled with {', '.join(map(str, order))}"
    number = now.generation.number if now.generation else 0
    step = int(now.status.get("step", 0))
    with suppress(CoordinationError):
        store.add_event(
            Event(time.time(), "profiling", number, step, reason, {"np": had, "plan": {**before}})
        )


def _log(store: JobStore, point: Point, last: Reading) -> None:
    reason = (
        f"{workers_train(point.np)} {point.throughput:.1f} {point.unit}/s, "
        f"{point.step_s:.3g} s a step over {point.steps} steps"
    )
    with suppress(CoordinationError):
        store.add_event(
            Event(time.time(), "profile", last.generation, last.step, reason, point.to_json())
        )
