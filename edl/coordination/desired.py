"""How what is desired of a job is written: a change, all that belongs to it, and its event."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kazoo.client import TransactionRequest

from edl.coordination.lifecycle import unknown_job
from edl.coordination.paths import JobPaths
from edl.coordination.reads import get
from edl.coordination.session import Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.job import desired
from edl.core.job.desired import Change
from edl.core.job.placement import Placement
from edl.core.records import Asker, Assigned, Desired, Job
from edl.errors import CoordinationError

ATTEMPTS = 20  # each is lost only to another writer

Values = Mapping[str, Any]


@dataclass(frozen=True)
class DesiredNodes:
    """``desired`` and what is written with it, of one job."""

    session: Session
    paths: JobPaths

    def change(self, change: Callable[[dict[str, int]], Placement], by: Asker, why: str) -> Change:
        """See :meth:`JobStore.desire`."""

        def made(found: Mapping[str, Values]) -> tuple[Change, dict[str, Values]]:
            done = self._changed(found, change, by, why)
            new = _written(self.paths, done)
            hold = found.get(self.paths.profile_hold)
            if hold and by is Asker.PERSON:
                new[self.paths.profile_hold] = {**hold, "asked": True}
            return done, new

        return self._write((self.paths.profile_hold,), made)

    def discover(
        self, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
    ) -> Desired:
        """See :meth:`JobStore.discover`."""
        p = self.paths

        def made(found: Mapping[str, Values]) -> tuple[Change, dict[str, Values]]:
            done = self._changed(found, lambda now: now or first, Asker.LAUNCHER, "the job starts")
            new = {**_written(p, done), p.discovered: dict(slots)}
            if done:
                job = Job.from_json(found[p.job])
                sizes = replace(job.sizes, min_np=min_np, max_np=max_np or job.sizes.max_np)
                new[p.job] = replace(job, spec=replace(job.spec, sizes=sizes)).to_json()
            return done, new

        return self._write((p.job, p.discovered), made).desired

    def _changed(
        self,
        found: Mapping[str, Values],
        change: Callable[[dict[str, int]], Placement],
        by: Asker,
        why: str,
    ) -> Change:
        before = Desired.from_json(found[self.paths.desired])
        assigned = Assigned.from_json(found[self.paths.assigned])
        hosts = change(dict(before.hosts))
        return desired.desire(before, assigned, hosts, by, why, time.time())

    def _write(
        self,
        others: Sequence[str],
        made: Callable[[Mapping[str, Values]], tuple[Change, dict[str, Values]]],
    ) -> Change:
        """Read the nodes, and write those that ``made`` has changed, unless somebody else has."""
        p = self.paths
        nodes = (p.desired, p.assigned, p.generation, p.status, *others)
        for _ in range(ATTEMPTS):
            answers = self.session.read_all(f"read job {p.name}", [get(path) for path in nodes])
            there = {path: one for path, one in zip(nodes, answers, strict=True) if one is not None}
            if p.desired not in there:
                raise unknown_job(self.session, p)
            found = {path: decode(path, data) for path, (data, _) in there.items()}
            change, new = made(found)
            writes = [
                (path, encode(values), there[path][1].version)
                for path, values in new.items()
                if values != found[path]
            ]
            if not writes:
                return change
            if change:
                at = found[p.generation].get("number", 0), found[p.status].get("step", 0)
                event = Event(time.time(), *at, str(change), change.details)
                writes.append((f"{p.events}/e-", encode(event.to_json()), None))
            try:
                self.session.transact(f"write {p.desired}", partial(_build, writes=writes))
            except Refused:
                continue
            return change
        raise CoordinationError(f"{p.desired} was changed by others {ATTEMPTS} times; try again")


def _written(paths: JobPaths, change: Change) -> dict[str, Values]:
    """What a change writes."""
    assigned = change.assigned
    follows = {} if assigned is None else {paths.assigned: assigned.to_json()}
    return {paths.desired: change.desired.to_json(), **follows} if change else {}


def _build(
    transaction: TransactionRequest, writes: Sequence[tuple[str, bytes, int | None]]
) -> None:
    for path, data, version in writes:
        if version is None:
            transaction.create(path, data, sequence=True)
        else:
            transaction.set_data(path, data, version)
