"""Hold the number of workers of a job while it is profiled, and restore it: :class:`HeldSize`."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Self

from edl.client.waiting import USUAL, ClientLimits
from edl.coordination.job_store import JobStore
from edl.core.job.placement import Placement, place_workers
from edl.core.job.profile_hold import HoldState, ProfileHold, ProfileView
from edl.core.plural import verb, workers
from edl.core.records import RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, RequestError, Superseded, UnknownJob, UsageError


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
                raise UsageError(self._taken())
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
        """Remember the desired workers in `now`, the job's records, to restore them later."""
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

    def _taken(self) -> str:
        """Return the error message for a job whose size another profile holds."""
        other = self._store.profile.held()
        by = "another process" if other is None else other.by
        return (
            f"job {self._job.name} is profiled by {by}; wait until that has ended (if it was "
            "killed, some seconds)"
        )

    # --- while it is held

    def take(self, np: int) -> None:
        """Make `np` the desired number of workers of the job; return when that is written."""

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
        """Raise an error if another request has changed the desired workers."""
        self._slots |= _slots_of(now)
        self._check(now.desired.hosts)

    def _check(self, desired: Placement) -> None:
        """Raise Superseded unless this profile has written the desired workers `desired`."""
        if desired not in self._held.ours:
            raise Superseded(self._job.name, "other workers were asked for while it was profiled")
        self._held = replace(self._held, last=desired)

    def _keep(self) -> None:
        """Check that this profile still holds the job's number of workers."""
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
            while not self._is_given_back(deadline, lost):
                time.sleep(self._limits.poll_s)
        except KeyboardInterrupt as end:
            end.add_note(lost)
            raise
        finally:
            self._release()

    def _is_given_back(self, deadline: float, lost: str) -> bool:
        """Try once to restore the desired workers; return whether nothing is left to restore."""
        try:
            stands = self._set_desired(self._restored, "edl profile gives the size back")
        except UnknownJob:
            return True
        except CoordinationError as error:
            if time.monotonic() >= deadline:
                raise RequestError(self._job.name, f"{lost}: {error}") from error
            return False
        self.outcome = self._standing(stands)
        return True

    def _restored(self, desired: Placement) -> Placement:
        """Return the desired workers by host that restore the size of the job."""
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
        """Return a sentence for the user about the number of workers after the profile."""
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
