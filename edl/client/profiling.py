"""Measure a running job's throughput with several numbers of workers (:func:`profile`).

Downwards, because a worker leaves within a step, but a new one has to start its process first.
Afterwards the job gets its number of workers back, unless another one was requested. Only kill -9
of this process, or a ZooKeeper that stays away, leaves the job at the number that is measured.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Self

from edl.client.waiting import USUAL, ClientLimits, Messages, OnMessage, poll_job, resizable
from edl.errors import CoordinationError, RequestError, Superseded, UnknownJob, UsageError
from edl.events import Event, ProfileDetails, ProfilingDetails
from edl.job.placement import Placement, place_workers
from edl.job.profile import (
    Curve,
    HoldState,
    Point,
    ProfileHold,
    ProfileView,
    in_order,
    measured_point,
)
from edl.job.snapshot import Snapshot
from edl.records import ProgressSample, RequestedBy
from edl.text import verb, workers, workers_train
from edl.zookeeper.store import JobStore

# ------------------------------------------------------------
# Hold the number of workers of a job while it is profiled, and restore it: `HeldSize`.


class HeldSize:
    """The desired number of workers of a job, held while one profile changes it."""

    # The node `profile/hold` keeps other profiles away. If a user scales or migrates the job
    # meanwhile, that is noted in the node and stays in force: nothing is restored. Hosts or workers
    # that join or leave keep their changes, and all other hosts get back what they had.

    def __init__(self, store: JobStore, now: Snapshot, limits: ClientLimits = USUAL) -> None:
        # a sentence about the number of workers after the profile; empty until it has been restored
        self.outcome = ""
        self._limits = limits
        self._fate = HoldState.OURS
        self._store = store
        self._job = now.job
        by = f"process {os.getpid()} on {socket.gethostname()}"
        self._mine = ProfileHold(uuid.uuid4().hex, by, {})
        self._set(now)

    def __enter__(self) -> Self:
        try:
            if not self._store.profile.hold(self._mine):
                other = self._store.profile.held()
                by = "another process" if other is None else other.by
                raise UsageError(
                    f"job {self._job.name} is profiled by {by}; wait until that has ended (if it "
                    "was killed, some seconds)"
                )
            self._set(self._store.snapshot())  # no other process profiles the job now
            self._mine = replace(self._mine, before=self.before)
            self._store.profile.hold(self._mine)
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()

    def _set(self, now: Snapshot) -> None:
        before: Placement = dict(now.desired.hosts)
        self._now = now
        self._slots = {**before, **_slots_of(now)}
        self._held = ProfileView(self._mine.token, before, ours=(before,), last=before)
        self._given: list[Placement] = []

    @property
    def before(self) -> Placement:
        """The desired workers by host, as they were when the block was entered."""
        return self._held.before

    @property
    def kept(self) -> bool:
        """Whether something else has changed the desired workers, whose change stays."""
        return self._fate is not HoldState.OURS

    # --- while it is held

    def take(self, np: int) -> None:
        def change(desired: Placement) -> Placement:
            self._check(desired)
            self._keep()
            by_slot = self._now.assigned.by_slot
            new = place_workers(self._job.name, np, desired, self._now.available, by_slot)
            # Noted before it is written: we may be interrupted.
            self._held = replace(self._held, ours=(*self._held.ours, new))
            return new

        try:
            stands = self._set_desired(change, f"edl profile measures {workers(np)}")
        except (CoordinationError, KeyboardInterrupt):
            self._held = replace(self._held, last=None)
            raise
        self._held = replace(self._held, last=stands)

    def check(self, now: Snapshot) -> None:
        self._slots |= _slots_of(now)
        self._check(now.desired.hosts)

    def _check(self, desired: Placement) -> None:
        if desired not in self._held.ours:
            raise Superseded(self._job.name, "other workers were asked for while it was profiled")
        self._held = replace(self._held, last=desired)

    def _keep(self) -> None:
        hold = self._store.profile.held()
        if hold is None:  # gone with a lost session
            overruled = not self._store.profile.hold(self._mine)
        else:
            overruled = self._held.overruled(hold)
        if overruled:
            raise Superseded(self._job.name, "somebody else says how many workers there shall be")

    def _set_desired(self, change: Callable[[Placement], Placement], why: str) -> Placement:
        return self._store.set_desired(change, RequestedBy.PROFILE, why).desired.hosts

    # --- and then

    def give_back(self) -> None:
        """Restore the desired workers from before, unless a user has asked for others."""
        deadline = time.monotonic() + self._limits.restore_s
        lost = f"job {self._job.name} does not have its size back; {self._way_back()}"
        try:
            while True:
                try:
                    stands = self._set_desired(self._restored, "edl profile gives the size back")
                    self.outcome = self._standing(stands)
                    return
                except UnknownJob:
                    return
                except CoordinationError as error:
                    if time.monotonic() >= deadline:
                        raise RequestError(self._job.name, f"{lost}: {error}") from error
                time.sleep(self._limits.poll_s)
        except KeyboardInterrupt as end:
            end.add_note(lost)
            raise
        finally:
            self._release()

    def _restored(self, desired: Placement) -> Placement:
        if desired in self._given:  # it was written, and the answer was lost
            return desired
        self._fate = self._held.fate_of(desired, self._store.profile.held())
        slots: Mapping[str, int] = self._slots
        # Hosts that joined or left keep their change.
        if self._fate is HoldState.MOVED:
            slots = _slots_of(self._store.snapshot())
        new = self._held.given_back(desired, self._fate, slots, self._job)
        if self._fate is not HoldState.ASKED:  # that may be asked for again
            self._given.append(new)
        return new

    def _standing(self, stands: Placement) -> str:
        now, before, name = sum(stands.values()), sum(self.before.values()), self._job.name
        if self._fate is HoldState.ASKED:
            text = (
                f"somebody has asked for {workers(now)} while job {name} was profiled; that stays"
            )
        elif self._fate is HoldState.OURS and now == before:
            return "the job has the size back that it had"
        else:
            text = f"hosts or workers came or left while job {name} was profiled: "
            text += f"{workers(now)} {verb(now)} wanted now"
        back = "" if now == before else f"; it had {before} before, {self._way_back()}"
        return text + back

    def _way_back(self) -> str:
        return f"`edl scale {self._job.name} --np {sum(self.before.values())}`"

    def _release(self) -> None:
        with suppress(CoordinationError, UnknownJob):  # then it goes with our session
            self._store.profile.release(self._mine.token)


def _slots_of(now: Snapshot) -> dict[str, int]:
    return {host.name: host.slots for host in now.available}


def profile(
    store: JobStore,
    sizes: Iterable[int],
    steps: int,
    timeout_s: float,
    on_message: OnMessage,
    limits: ClientLimits = USUAL,
) -> Curve:
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
            had = sum(hold.before.values())
            reason = (
                f"{workers(had)} {verb(had)} wanted; profiled with {', '.join(map(str, order))}"
            )
            number = now.generation.number if now.generation else 0
            details = ProfilingDetails(had, dict(hold.before))
            with suppress(CoordinationError):
                store.events.add(Event(time.time(), number, now.status.step, reason, details))
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
    messages = Messages(on_message)
    what = f"profiling job {store.name} with {workers(np)}"
    readings: list[ProgressSample] = []
    for now in poll_job(store, timeout_s, what, messages, limits=limits):
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
    raise AssertionError("poll_job() ends with an error")


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
