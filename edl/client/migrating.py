"""Move workers of one host to another while the job trains: :func:`migrate`.

The request only writes other desired numbers of workers by host into the job's records, so the
migration goes on even if the process that requested it ends. While that process waits, it takes the
request back if the target host has lost its agent: workers that had not moved stay where they are.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from edl.client.waiting import USUAL, ClientLimits, Messages, OnMessage, looks, resizable
from edl.coordination.job_store import JobStore
from edl.core.events import Event
from edl.core.job import migration
from edl.core.job.migration import Migration, MigrationStatus, Move, standing
from edl.core.job.placement import Placement, move, return_absent, to_add
from edl.core.plural import workers
from edl.core.records import Generation, RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, HostLost, Superseded


def migrate(
    store: JobStore,
    source: str,
    target: str,
    np: int | None,
    timeout_s: float,
    on_message: OnMessage,
    limits: ClientLimits = USUAL,
) -> Migration:
    """Move workers to another host; return what the migration did when they have moved."""
    now = resizable(store, f"migrate workers of job {store.name}", limits)
    asked: Move | None = None
    try:
        changed = store.set_desired(
            partial(move, now, np, source, target),
            RequestedBy.PERSON,
            f"edl migrate from {source} to {target}",
        )
        after = changed.desired.hosts
        moved = changed.before.hosts[source] - after[source]
        asked = Move(
            store.name, source, target, moved, after, now.generation.number if now.generation else 0
        )
        on_message(f"moving {asked}")
        seen = _wait(store, asked, timeout_s, on_message, limits)
    except KeyboardInterrupt as end:
        unsure = f"the migration goes on, unless it had not begun: see `edl status {store.name}`"
        end.add_note(unsure if asked is None else _goes_on(asked))
        raise
    return _outcome(store, asked, seen, limits)


@dataclass
class _MigrationProgress:
    """The hosts and generations of a job that were seen while workers moved."""

    hosts: dict[str, str] = field(default_factory=dict)  # worker -> its host
    # the generations that were seen, by number
    generations: dict[int, Generation] = field(default_factory=dict)

    def look(self, now: Snapshot) -> None:
        """Add the generation and the workers' hosts in `now` to `generations` and `hosts`."""
        generation = now.generation
        if generation is not None:
            self.generations[generation.number] = generation
            members = (*generation.members, *generation.previous)
            self.hosts |= {f"w{ring_member.id}": ring_member.host for ring_member in members}
        self.hosts |= {member.name: member.host for member in now.members}


def _wait(
    store: JobStore, asked: Move, timeout_s: float, on_message: OnMessage, limits: ClientLimits
) -> _MigrationProgress:
    """Wait until the workers have moved; return the hosts and generations seen until then."""
    seen, given = _MigrationProgress(), list[Placement]()
    messages, seen_at = Messages(on_message), time.monotonic()
    for now in looks(store, timeout_s, f"moving {asked}", messages, _goes_on(asked), limits):
        desired, stands = now.desired.hosts, standing(asked, now)
        seen.look(now)
        if stands.done and not stands.changed and now.generation is not None:
            return seen
        if desired in given:  # it was taken back, and the answer was lost
            raise _lost(asked, now, desired, limits)
        if stands.changed:
            raise Superseded(asked.job, _superseded(asked, desired, stands))
        if any(host.name == asked.target for host in now.available):
            seen_at = time.monotonic()
        elif time.monotonic() - seen_at >= limits.agent_gone_s and _is_short(
            asked, desired, stands
        ):
            with suppress(CoordinationError):  # the next look tries again
                after = _take_back(store, asked, stands, given)
                raise _lost(asked, now, after, limits)
        messages(f"{stands.text}: {now.status.reason}".rstrip(": "))
    raise AssertionError("looks() ends with an error")


def _goes_on(asked: Move) -> str:
    back = f"edl migrate {asked.job} --from {asked.target} --to {asked.source} --np {asked.np}"
    return f"the migration goes on; `{back}` takes it back"


def _is_short(asked: Move, desired: Placement, stands: MigrationStatus) -> bool:
    return stands.arrived.get(asked.target, 0) < desired.get(asked.target, 0)


def _take_back(
    store: JobStore, asked: Move, stands: MigrationStatus, given: list[Placement]
) -> Placement:
    """Let the workers that have not moved stay; return the desired workers by host."""

    def change(desired: Placement) -> Placement:
        # before it is written: ZooKeeper's answer may be lost
        given.append(return_absent(desired, asked.target, stands.arrived))
        return given[-1]

    why = f"edl migrate: host {asked.target} is gone"
    return store.set_desired(change, RequestedBy.LAUNCHER, why).desired.hosts


def _lost(asked: Move, now: Snapshot, after: Placement, limits: ClientLimits) -> HostLost:
    """Return the error that the target host is gone, and how many workers stay."""
    stays = after.get(asked.source, 0) - asked.desired.get(asked.source, 0)
    again = to_add(asked.job, now.assigned.by_slot, asked.target)
    return HostLost(
        asked.job,
        f"nobody has offered host {asked.target} for {limits.agent_gone_s:g} s: {stays} of "
        f"{workers(asked.np)} of job {asked.job} stay on {asked.source}; {again}, then migrate "
        "again",
    )


def _superseded(asked: Move, desired: Placement, stands: MigrationStatus) -> str:
    """Return the error message that another request has changed the workers of the two hosts."""
    hosts = (asked.source, asked.target)
    then = ", ".join(f"{host}: {desired.get(host, 0)}" for host in hosts)
    return (
        f"other workers were asked for while {asked} were moving: {then} are wanted now; "
        f"{stands.there} of {asked.np} had moved"
    )


def _outcome(
    store: JobStore, asked: Move, seen: _MigrationProgress, limits: ClientLimits
) -> Migration:
    """Return what the migration did, and how long training stood still."""
    last = max(seen.generations)
    events: dict[int, Event] = {}
    deadline = time.monotonic() + (limits.log_s if last > asked.since else 0.0)
    while True:
        with suppress(CoordinationError):  # they have moved all the same
            events |= store.events.read_known(max(events, default=-1))
        log, generations = [events[n] for n in sorted(events)], seen.generations.values()
        done = migration.outcome(asked, log, seen.hosts, last, generations)
        if done.stall_s is not None or time.monotonic() >= deadline:
            return done
        time.sleep(limits.poll_s)
