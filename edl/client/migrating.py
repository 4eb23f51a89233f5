"""Workers of one host move to another while the job trains: ask, wait, say what it was.

Whoever asks may go away: the plan is all that carries a migration. What the waiting adds is that
a target which has lost its agent is given up, and the plan as it was restored for those who had
not moved.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field

from edl.client.scaling import Wanted
from edl.client.waiting import POLL_S, Messages, OnMessage, looks, running
from edl.coordination.job_store import JobStore
from edl.core.events import Event, MigrateDetails
from edl.core.job import migration
from edl.core.job.migration import Migration, Move, Standing, standing
from edl.core.job.placement import Plan, give_back, keep_a_host, move
from edl.core.plural import workers
from edl.core.records import Generation, Snapshot
from edl.errors import CoordinationError, HostLost, Superseded

AGENT_GONE_S = 10.0  # after its session: for so long an agent may need to open another one
TOLD_S = 10.0  # for the switch to be in the event log: it is there after two steps


def migrate(
    store: JobStore, source: str, target: str, np: int | None, timeout_s: float, tell: OnMessage
) -> Migration:
    """Move ``np`` workers (None: all) of ``source`` to ``target``; returns when they have.

    Raises:
        UsageError: it cannot be; nothing was changed.
        HostLost: the target's agent is gone; who had not moved stays.
        Superseded: somebody has changed the plan of the two hosts.
        TimedOut: it goes on; so it does after a KeyboardInterrupt, whose note says so.
        JobEnded: the job ended before.
    """
    what = f"migrate workers of job {store.name}"
    now = running(store, what)
    wanted = Wanted(store, now.job, what)
    slots = {host.name: host.slots for host in wanted.hosts(now)}
    before: dict[str, int] = {}

    def change(plan: dict[str, int]) -> dict[str, int]:
        before.clear()
        before.update(plan)
        new = move(store.name, np, source, target, plan, slots.get(target), bool(now.job.driver))
        if now.job.driver:
            keep_a_host(store.name, now.plan, new)
        return new

    after = wanted.choose(change)
    moved = before[source] - after[source]
    asked = Move(
        store.name, source, target, moved, after, now.generation.number if now.generation else 0
    )
    tell(f"moving {asked}")
    _log(store, now, asked)
    try:
        seen = _wait(store, asked, wanted, timeout_s, tell)
    except KeyboardInterrupt as end:
        end.add_note(_goes_on(asked))
        raise
    return _outcome(store, asked, seen)


@dataclass
class _Seen:
    """What was seen of a job while workers moved."""

    hosts: dict[str, str] = field(default_factory=dict)  # worker -> its host
    generations: dict[int, Generation] = field(default_factory=dict)

    def look(self, now: Snapshot) -> None:
        generation = now.generation
        if generation is not None:
            self.generations[generation.number] = generation
            seats = (*generation.seats, *generation.previous)
            self.hosts |= {f"w{seat.id}": seat.host for seat in seats}
        self.hosts |= {member.name: member.host for member in now.members}


def _wait(store: JobStore, asked: Move, wanted: Wanted, timeout_s: float, tell: OnMessage) -> _Seen:
    """Wait until the workers have moved; what was seen until then."""
    seen, given = _Seen(), list[Plan]()
    messages, seen_at = Messages(tell), time.monotonic()
    for now in looks(store, timeout_s, f"moving {asked}", messages, _goes_on(asked)):
        plan = wanted.of(now)
        stands = standing(asked, now, plan)
        seen.look(now)
        if stands.done and not stands.changed and now.generation is not None:
            return seen
        if plan in given:  # it was taken back, and the answer was lost
            raise _lost(asked, wanted, plan)
        if stands.changed:
            raise Superseded(asked.job, _superseded(asked, plan, stands))
        if any(host.name == asked.target for host in wanted.hosts(now)):
            seen_at = time.monotonic()
        elif time.monotonic() - seen_at >= AGENT_GONE_S and _is_short(asked, plan, stands):
            with suppress(CoordinationError):  # the next look tries again
                raise _lost(asked, wanted, _take_back(asked, wanted, stands, given))
        messages(f"{stands.told}: {now.status.reason}".rstrip(": "))
    raise AssertionError("looks() ends with an error")


def _goes_on(asked: Move) -> str:
    back = f"edl migrate {asked.job} --from {asked.target} --to {asked.source} --np {asked.np}"
    return f"the migration goes on; `{back}` takes it back"


def _is_short(asked: Move, plan: Plan, stands: Standing) -> bool:
    return stands.arrived.get(asked.target, 0) < plan.get(asked.target, 0)


def _take_back(asked: Move, wanted: Wanted, stands: Standing, given: list[Plan]) -> Plan:
    """Who has not moved stays. ``given`` gets the plan, which may be written without an answer."""

    def change(plan: dict[str, int]) -> dict[str, int]:
        given.append(give_back(plan, asked.target, stands.arrived))
        return dict(given[-1])

    return wanted.change(change)


def _lost(asked: Move, wanted: Wanted, after: Plan) -> HostLost:
    stays = after.get(asked.source, 0) - asked.plan.get(asked.source, 0)
    gone, again = f"host {asked.target} has had no agent", "start one with `edl join"
    again = f"{again} --job {asked.job} --host {asked.target}`"
    if wanted.driver:
        gone, again = f"edl-discover has not offered host {asked.target}", "let it do so"
    return HostLost(
        asked.job,
        f"{gone} for {AGENT_GONE_S:g} s: {stays} of {workers(asked.np)} of job {asked.job} stay "
        f"on {asked.source}; {again}, then migrate again",
    )


def _superseded(asked: Move, plan: Plan, stands: Standing) -> str:
    hosts = (asked.source, asked.target)
    then = ", ".join(f"{host}: {plan.get(host, 0)}" for host in hosts)
    return (
        f"the plan was changed while {asked} were moving: {then} are wanted now; "
        f"{stands.there} of {asked.np} had moved"
    )


def _log(store: JobStore, now: Snapshot, asked: Move) -> None:
    told = MigrateDetails(asked.source, asked.target, asked.np)
    reason = f"{workers(asked.np)} shall move from {asked.source} to {asked.target}"
    with suppress(CoordinationError):  # the migration has begun all the same
        store.events.add(Event(time.time(), asked.since, now.status.step, reason, told))


def _outcome(store: JobStore, asked: Move, seen: _Seen) -> Migration:
    """Wait until the last switch is in the event log, at most ``TOLD_S``."""
    last = max(seen.generations)
    events: dict[int, Event] = {}
    deadline = time.monotonic() + (TOLD_S if last > asked.since else 0.0)
    while True:
        with suppress(CoordinationError):  # they have moved all the same
            events |= store.events.read(max(events, default=-1))
        log, generations = [events[n] for n in sorted(events)], seen.generations.values()
        done = migration.outcome(asked, log, seen.hosts, last, generations)
        if done.stall_s is not None or time.monotonic() >= deadline:
            return done
        time.sleep(POLL_S)
