"""Workers of one host move to another while the job trains: ask, wait, say what it was.

Whoever asks may go away: the plan is all that carries a migration. What the waiting adds is that
a target which has lost its agent is given up, and the plan as it was restored for those who had
not moved.
"""

from __future__ import annotations

import time

from edl.client.scaling import Plan, Wanted
from edl.client.waiting import POLL_S, Story, Tell, looks, running
from edl.coordination.store import JobStore
from edl.core import migration
from edl.core.facts import Event, Snapshot
from edl.core.migration import Migration, Move, Standing, standing
from edl.core.placement import give_back, keep_a_host, move, workers
from edl.errors import HostLost, Superseded

AGENT_GONE_S = 10.0  # after its session: for so long an agent may need to open another one
TOLD_S = 10.0  # for the switch to be in the event log: it is there after two steps


def migrate(
    store: JobStore, source: str, target: str, np: int | None, timeout_s: float, tell: Tell
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

    after = wanted.change(change)
    moved = before[source] - after[source]
    asked = Move(
        store.name, source, target, moved, after, now.generation.number if now.generation else 0
    )
    tell(f"moving {asked}")
    _log(store, now, asked)
    try:
        hosts = _wait(store, asked, wanted, timeout_s, tell)
    except KeyboardInterrupt as end:
        end.add_note(_goes_on(asked))
        raise
    return _outcome(store, asked, hosts)


def _wait(
    store: JobStore, asked: Move, wanted: Wanted, timeout_s: float, tell: Tell
) -> tuple[dict[str, str], int]:
    """Wait until the workers have moved; the host of each worker seen, and the generation."""
    hosts: dict[str, str] = {}
    story, seen_at = Story(tell), time.monotonic()
    for now in looks(store, timeout_s, f"moving {asked}", story, _goes_on(asked)):
        plan = wanted.of(now)
        stands = standing(asked, now, plan)
        generation = now.generation
        seats = (*generation.seats, *generation.previous) if generation else ()
        hosts |= {f"w{seat.id}": seat.host for seat in seats}
        hosts |= {member.name: member.host for member in now.members}
        if stands.done and not stands.changed and generation is not None:
            return hosts, generation.number
        if stands.changed:
            raise Superseded(asked.job, _superseded(asked, plan, stands))
        if any(host.name == asked.target for host in wanted.hosts(now)):
            seen_at = time.monotonic()
        elif time.monotonic() - seen_at >= AGENT_GONE_S and _is_short(asked, plan, stands):
            _take_back(asked, wanted, stands)
        story(f"{stands.told}: {now.status.get('reason', '')}".rstrip(": "))
    raise AssertionError("looks() ends with an error")


def _goes_on(asked: Move) -> str:
    back = f"edl migrate {asked.job} --from {asked.target} --to {asked.source} --np {asked.np}"
    return f"the migration goes on; `{back}` takes it back"


def _is_short(asked: Move, plan: Plan, stands: Standing) -> bool:
    return stands.arrived.get(asked.target, 0) < plan.get(asked.target, 0)


def _take_back(asked: Move, wanted: Wanted, stands: Standing) -> None:
    after = wanted.change(lambda plan: give_back(plan, asked.target, stands.arrived))
    stays = after.get(asked.source, 0) - asked.plan.get(asked.source, 0)
    gone, again = f"host {asked.target} has had no agent", "start one with `edl join"
    again = f"{again} --job {asked.job} --host {asked.target}`"
    if wanted.driver:
        gone, again = f"edl-discover has not offered host {asked.target}", "let it do so"
    raise HostLost(
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
    step = int(now.status.get("step", 0))
    told = {"from": asked.source, "to": asked.target, "np": asked.np}
    reason = f"{workers(asked.np)} shall move from {asked.source} to {asked.target}"
    store.add_event(Event(time.time(), "migrate", asked.since, step, reason, told))


def _outcome(store: JobStore, asked: Move, seen: tuple[dict[str, str], int]) -> Migration:
    """Wait until the last switch is in the event log, at most ``TOLD_S``."""
    hosts, last = seen
    events = dict(store.events())
    deadline = time.monotonic() + (TOLD_S if last > asked.since else 0.0)
    while True:
        done = migration.outcome(asked, [events[n] for n in sorted(events)], hosts, last)
        if done.stall_s is not None or time.monotonic() >= deadline:
            return done
        time.sleep(POLL_S)
        events |= store.events(max(events, default=-1))
