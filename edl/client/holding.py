"""The size of a job, held while it is profiled: changed again and again, and then given back."""

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
from edl.core.job.placement import Placement, place
from edl.core.job.profile_hold import Fate, Held, ProfileHold
from edl.core.plural import verb, workers
from edl.core.records import RequestedBy, Snapshot
from edl.errors import CoordinationError, RequestError, Superseded, UnknownJob, UsageError


class HeldSize:
    """What is desired of the job: ours to change as long as we have asked for it.

    Only one profile holds it, by ``profile/hold``. Who scales or migrates the job meanwhile says so
    there, and that stays. All other changes are of hosts and workers that come and leave: they
    keep theirs, and the rest of the job has the workers back that it had.

    Attributes:
        outcome: once it is given back: what then stands; empty while it is not.
        kept: somebody else has changed it.
    """

    def __init__(self, store: JobStore, now: Snapshot, limits: ClientLimits = USUAL) -> None:
        self.outcome = ""
        self._limits = limits
        self._fate = Fate.OURS
        self._store = store
        self._job = now.job
        by = f"process {os.getpid()} on {socket.gethostname()}"
        self._mine = ProfileHold(uuid.uuid4().hex, by, {})
        self._set(now)

    def __enter__(self) -> Self:
        try:
            if not self._store.profile.hold(self._mine):
                raise UsageError(self._taken())
            self._set(self._store.snapshot())  # nobody else profiles it now
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
        self._held = Held(self._mine.token, before, ours=(before,), last=before)
        self._given: list[Placement] = []

    @property
    def before(self) -> Placement:
        """As it was at first."""
        return self._held.before

    @property
    def kept(self) -> bool:
        return self._fate is not Fate.OURS

    def _taken(self) -> str:
        other = self._store.profile.held()
        by = "another process" if other is None else other.by
        return (
            f"job {self._job.name} is profiled by {by}; wait until that has ended (if it was "
            "killed, some seconds)"
        )

    # --- while it is held

    def take(self, np: int) -> None:
        """Want ``np`` workers from now on.

        Raises:
            Superseded: somebody else has asked for another size, or a host or worker has.
        """

        def change(desired: Placement) -> Placement:
            self._check(desired)
            self._keep()
            by_slot = self._now.assigned.by_slot
            new = place(self._job.name, np, desired, self._now.available, by_slot)
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
        """Raises Superseded when somebody else has changed what is desired."""
        self._slots |= _slots_of(now)
        self._check(now.desired.hosts)

    def _check(self, desired: Placement) -> None:
        if desired not in self._held.ours:
            raise Superseded(self._job.name, "other workers were asked for while it was profiled")
        self._held = replace(self._held, last=desired)

    def _keep(self) -> None:
        """Raises Superseded when the size is no longer ours to choose."""
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
        """Want the workers again that were wanted at first, if nobody has asked for others.

        Raises:
            RequestError: they are not; the message says how to, as does the note of a
                KeyboardInterrupt.
        """
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
        """What shall be desired from now on."""
        if desired in self._given:  # it was written, and the answer was lost
            return desired
        self._fate = self._held.fate_of(desired, self._store.profile.held())
        slots: Mapping[str, int] = self._slots
        if self._fate is Fate.MOVED:
            slots = _slots_of(self._store.snapshot())
        new = self._held.given_back(desired, self._fate, slots, self._job)
        if self._fate is not Fate.ASKED:  # that may be asked for again
            self._given.append(new)
        return new

    def _standing(self, stands: Placement) -> str:
        now, before, name = sum(stands.values()), sum(self.before.values()), self._job.name
        if self._fate is Fate.ASKED:
            text = (
                f"somebody has asked for {workers(now)} while job {name} was profiled; that stays"
            )
        elif self._fate is Fate.OURS and now == before:
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
