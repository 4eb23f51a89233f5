"""The plan of a job, held while it is profiled: changed again and again, and then given back."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from edl.client.scaling import Wanted
from edl.client.waiting import POLL_S
from edl.coordination.job_store import JobStore
from edl.core.job.placement import Plan, place
from edl.core.job.plan_hold import Fate, Held, PlanHold
from edl.core.plural import verb, workers
from edl.core.records import Host, Snapshot
from edl.errors import CoordinationError, RequestError, Superseded, UnknownJob, UsageError

RESTORE_S = 30.0  # for ZooKeeper to take the old size again


class HeldPlan:
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
        self._fate = Fate.OURS
        self._store = store
        self._wanted = wanted
        self._job = now.job
        by = f"process {os.getpid()} on {socket.gethostname()}"
        self._mine = PlanHold(uuid.uuid4().hex, by, {})
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.give_back()

    def _set(self, now: Snapshot) -> None:
        before: Plan = dict(self._wanted.of(now))
        self._hosts: Sequence[Host] = self._wanted.hosts(now)
        self._slots = {**before, **_slots_of(self._hosts)}
        self._held = Held(self._mine.token, before, ours=(before,), last=before)
        self._given: list[Plan] = []

    @property
    def before(self) -> Plan:
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
            Superseded: somebody else has changed the plan, or asked for another size.
        """

        def change(plan: dict[str, int]) -> dict[str, int]:
            self._check(plan)
            self._keep()
            new = place(self._job.name, np, plan, self._hosts)
            # Noted before it is written: we may be interrupted.
            self._held = replace(self._held, ours=(*self._held.ours, dict(new)))
            return new

        try:
            stands = self._wanted.change(change)
        except (CoordinationError, KeyboardInterrupt):
            self._held = replace(self._held, last=None)
            raise
        self._held = replace(self._held, last=stands)

    def check(self, now: Snapshot) -> None:
        """Raises Superseded when somebody else has changed the plan."""
        self._slots |= _slots_of(self._wanted.hosts(now))
        self._check(self._wanted.of(now))

    def _check(self, plan: Plan) -> None:
        if plan not in self._held.ours:
            raise Superseded(self._job.name, "the plan was changed while it was profiled")
        self._held = replace(self._held, last=plan)

    def _keep(self) -> None:
        """Raises Superseded when the size is no longer ours to choose."""
        hold = self._store.profile.held()
        if hold is None:  # gone with a lost session
            overruled = not self._store.profile.hold(self._mine)
        else:
            overruled = self._held.overruled(hold)
        if overruled:
            raise Superseded(self._job.name, "somebody else says how many workers there shall be")

    # --- and then

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
        self._fate = self._held.fate_of(plan, self._store.profile.held())
        slots: Mapping[str, int] = self._slots
        if self._fate is Fate.MOVED:
            slots = _slots_of(self._wanted.hosts(self._store.snapshot()))
        new = dict(self._held.given_back(plan, self._fate, slots, self._job))
        if self._fate is not Fate.ASKED:  # that may be asked for again
            self._given.append(dict(new))
        return new

    def _standing(self, stands: Plan) -> str:
        now, before, name = sum(stands.values()), sum(self.before.values()), self._job.name
        if self._fate is Fate.ASKED:
            told = f"somebody has changed the plan of job {name} to {workers(now)} while it was"
            told += " profiled; that stays"
        elif self._fate is Fate.OURS and now == before:
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
            self._store.profile.release(self._mine.token)


def _slots_of(hosts: Sequence[Host]) -> dict[str, int]:
    return {host.name: host.slots for host in hosts}
