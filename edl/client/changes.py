"""Change a running job: its size and places, hosts, policy, borrowed slots, its end.

Each function writes what is asked for into the job's records, and waits for it if it is asked to.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from symtable import symtable
from typing import SupportsIndex

from edl.client.waiting import (
    USUAL,
    ClientLimits,
    Messages,
    OnMessage,
    ignore,
    poll_job,
    resizable,
    running,
)
from edl.errors import CoordinationError, HostLost, RequestError, Superseded, TimedOut, UsageError
from edl.events import CheckpointDetails, Event
from edl.host.job_end import stopped_outcome
from edl.host.supervision import SupervisorLimits
from edl.job import borrowing, placement
from edl.job.borrowing import ReclaimTerms
from edl.job.placement import (
    NO_DEVICES,
    DeviceSets,
    Migration,
    MigrationStatus,
    Move,
    Placement,
    is_placed,
    migration_status,
    move,
    place_workers,
    placed_exactly,
    return_absent,
    to_add,
    whole,
    without_host,
    workers_of_ring,
)
from edl.job.run import HALTED_EXIT, why_tight
from edl.job.snapshot import Snapshot
from edl.policy.file import CustomRule, PolicyFile, check_change, check_sizes, parse_policy
from edl.policy.goodput import Goodput
from edl.policy.hill_climbing import HillClimbing, SizeComparison
from edl.policy.scaling_profile import ScalingProfile
from edl.records import Generation, Job, JobPolicy, JobState, Request, RequestedBy, RequestKind
from edl.spec import Sizes
from edl.text import by_host, counted, span, workers
from edl.zookeeper.paths import check_name
from edl.zookeeper.store import JobStore, conclude

# ------------------------------------------------------------
# Request another number of workers for a running job (`resize`), or other places.
#
# `place` requests places. Both wait for the workers if they are asked to.


@dataclass(frozen=True)
class Resize:
    """The result of a request for another number of workers.

    Attributes:
        job: the name of the job.
        before: the number of desired workers by host before the request.
        after: the number of desired workers by host after the request.
    """

    job: str
    before: Placement
    after: Placement

    def __str__(self) -> str:
        where = by_host(self.after)
        old, new = sum(self.before.values()), sum(self.after.values())
        return f"job {self.job}: {old} -> {workers(new)} ({where})"


def resize(
    store: JobStore,
    size: Callable[[int], int],
    timeout_s: float | None = None,
    limits: ClientLimits = USUAL,
) -> Resize:
    now = resizable(store, f"scale job {store.name}", limits)

    def change(desired: Placement) -> Placement:
        np = size(sum(desired.values()))
        now.job.sizes.check_scale(store.name, np)
        return place_workers(store.name, np, desired, now.available, now.assigned.by_slot)

    done = _write(store, change, "edl scale")
    if timeout_s is not None:
        wait_for_size(store, sum(done.after.values()), timeout_s, limits=limits)
    return done


def whole_placement(hosts: Mapping[str, SupportsIndex]) -> Placement:
    if not isinstance(hosts, Mapping):
        raise UsageError(
            f"the hosts are {hosts!r}; give the workers to place on each host, for example: "
            '{"a": 2}'
        )
    return {check_name("host", host): whole(np, least=0) for host, np in hosts.items()}


def place(
    store: JobStore,
    hosts: Placement,
    devices: DeviceSets = NO_DEVICES,
    timeout_s: float | None = None,
    limits: ClientLimits = USUAL,
) -> Resize:
    now = running(store, f"place workers of job {store.name}", limits)
    if now.assigned.by_slot:
        raise UsageError(
            f"cannot place workers of job {store.name}: it was started by horovodrun, which places "
            f"its workers itself; use `edl scale {store.name}` or `edl migrate`"
        )

    def change(desired: Placement) -> Placement:
        return placed_exactly(now, hosts, devices, desired)

    done = _write(store, change, "placed by a program", devices)
    if timeout_s is None:
        return done
    messages = Messages()
    for seen in poll_job(store, timeout_s, f"placing job {store.name}", messages, limits=limits):
        if is_placed(seen, done.after):
            return done
        here = by_host(workers_of_ring(seen)) or "no worker trains"
        messages(f"workers by host: {here}; {seen.status.reason}")
    raise AssertionError("poll_job() ends with an error")


def _write(
    store: JobStore,
    change: Callable[[Placement], Placement],
    why: str,
    devices: DeviceSets = NO_DEVICES,
) -> Resize:
    read = False
    unsure = f"it may have been written or not, see `edl status {store.name}` before you repeat it"

    def noted(desired: Placement) -> Placement:
        nonlocal read
        read = True
        return change(desired)

    try:
        changed = store.set_desired(noted, RequestedBy.PERSON, why, devices=devices)
    except CoordinationError as error:
        raise CoordinationError(f"{error}; {unsure}" if read else str(error)) from error
    return Resize(store.name, changed.before.hosts, changed.desired.hosts)


def wait_for_size(
    store: JobStore,
    np: int,
    timeout_s: float,
    on_message: OnMessage = ignore,
    limits: ClientLimits = USUAL,
) -> Snapshot:
    """Wait until `np` workers have entered one ring; return the job's records as they are then."""
    messages = Messages(on_message)
    what = f"scaling job {store.name} to {np}"
    for now in poll_job(store, timeout_s, what, messages, limits=limits):
        number = now.generation.number if now.generation else 0
        ring = now.generation.worker_ids if now.generation else ()
        if len(ring) == np and {m.id for m in now.members if m.generation >= number} >= {*ring}:
            return now
        messages(f"{len(ring)} of {np} workers train: {now.status.reason}")
    raise AssertionError("poll_job() ends with an error")


# ------------------------------------------------------------
# Let one worker (`drain_worker`) or one host (`drain_host`) leave a running job.


def drain_worker(
    store: JobStore, worker: int, timeout_s: float, limits: ClientLimits = USUAL
) -> str:
    running(store, f"drain w{worker} of job {store.name}", limits)
    try:
        number = store.requests.add(Request(RequestKind.DRAIN, worker))
    except CoordinationError as error:
        unsure = f"w{worker} may be asked to leave or not, see `edl status {store.name}`"
        raise CoordinationError(f"{error}; {unsure}") from error
    try:
        request = _answer(store, number, worker, timeout_s, limits)
    except TimedOut as late:
        after_all, state = _cancel(store, number, worker)
        if after_all is None:
            raise TimedOut(store.name, f"{late}; {state}") from None
        request = after_all
    except BaseException as end:
        end.add_note(_cancel(store, number, worker)[1])
        raise
    if not request.accepted:
        raise UsageError(request.outcome)
    return request.outcome


def _answer(
    store: JobStore, number: int, worker: int, timeout_s: float, limits: ClientLimits
) -> Request:
    messages = Messages()
    messages(f"no leader of job {store.name} has answered")
    for _ in poll_job(store, timeout_s, f"draining w{worker}", messages, limits=limits):
        with suppress(CoordinationError):  # the next look asks again
            request = store.requests.get(number)
            if request.done:
                return request
    raise AssertionError("poll_job() ends with an error")


def _cancel(store: JobStore, number: int, worker: int) -> tuple[Request | None, str]:
    """Take a request back; return it if it is answered already, and a sentence for the user."""
    see = f"see `edl status {store.name}`"
    try:
        request = store.requests.cancel(number)
    except CoordinationError:
        return None, f"the request cannot be taken back now, and w{worker} may still leave ({see})"
    return request, request.outcome if request else f"the request is taken back ({see})"


def drain_host(store: JobStore, name: str, timeout_s: float, limits: ClientLimits = USUAL) -> str:
    what = f"drain host {name} of job {store.name}"
    now = running(store, what, limits)
    if now.assigned.by_slot:
        raise UsageError(
            f"cannot drain host {name}: job {store.name} was started by horovodrun, which places "
            "its workers; take the host out of what its host discovery script prints"
        )
    if name not in (known := {host.name for host in now.hosts} | {*now.desired.hosts}):
        hosts = ", ".join(sorted(known))
        raise UsageError(f"host {name} is not in job {store.name}; its hosts are {hosts}")
    late = f"it was asked to, and may still do that (see `edl status {store.name}`)"
    for now in poll_job(store, timeout_s, f"draining host {name}", Messages(), late, limits):
        agent = next((host for host in now.hosts if host.name == name), None)
        if not now.job.state.over and now.desired.hosts.get(name):
            without_host(now, name, now.desired.hosts)  # or says why it cannot leave
        if agent is not None and agent.slots and not agent.leaving:
            with suppress(CoordinationError):  # the next look asks again
                store.hosts.ask_to_leave(name)
        elif agent is None and now.desired.hosts.get(name):  # no agent: this process does it
            with suppress(CoordinationError):
                change = partial(without_host, now, name)
                store.set_desired(change, RequestedBy.LAUNCHER, f"edl drain: {name} leaves")
        elif agent is None and not any(member.host == name for member in now.members):
            break
    return f"host {name} has left job {store.name}"


# ------------------------------------------------------------
# Move workers of one host to another while the job trains: `migrate`.
#
# The request only writes other desired numbers of workers by host into the job's records, so the
# migration goes on even if the process that requested it ends. While that process waits, it takes
# the request back if the target host has lost its agent: workers that had not moved stay where they
# are.


def migrate(
    store: JobStore,
    source: str,
    target: str,
    np: int | None,
    timeout_s: float,
    on_message: OnMessage,
    limits: ClientLimits = USUAL,
) -> Migration:
    now = resizable(store, f"migrate workers of job {store.name}", limits)
    asked: Move | None = None
    hosts: dict[str, str] = {}  # worker -> its host, of all workers that are seen
    generations: dict[int, Generation] = {}
    given: list[Placement] = []  # what was written when the migration was taken back
    messages = Messages(on_message)
    try:
        changed = store.set_desired(
            partial(move, now, np, source, target),
            RequestedBy.PERSON,
            f"edl migrate from {source} to {target}",
        )
        after = changed.desired.hosts
        since = now.generation.number if now.generation else 0
        moved = changed.before.hosts[source] - after[source]
        asked = Move(store.name, source, target, moved, after, since)
        on_message(f"moving {asked}")
        offered_at = time.monotonic()
        for now in poll_job(store, timeout_s, f"moving {asked}", messages, _goes_on(asked), limits):
            desired, stands = now.desired.hosts, migration_status(asked, now)
            if now.generation is not None:
                generations[now.generation.number] = now.generation
                members = (*now.generation.members, *now.generation.previous)
                hosts |= {f"w{ring_member.id}": ring_member.host for ring_member in members}
            hosts |= {member.name: member.host for member in now.members}
            if stands.done and not stands.changed and now.generation is not None:
                break
            if desired in given:  # it was taken back, and the answer was lost
                raise _lost(asked, now, desired, limits)
            if stands.changed:
                then = ", ".join(f"{host}: {desired.get(host, 0)}" for host in (source, target))
                raise Superseded(
                    store.name,
                    f"other workers were asked for while {asked} were moving: {then} are wanted "
                    f"now; {stands.there} of {asked.np} had moved",
                )
            is_short = stands.arrived.get(target, 0) < desired.get(target, 0)
            if any(host.name == target for host in now.available):
                offered_at = time.monotonic()
            elif is_short and time.monotonic() - offered_at >= limits.agent_gone_s:
                with suppress(CoordinationError):  # the next look tries again
                    after = _take_back(store, asked, stands, given)
                    raise _lost(asked, now, after, limits)
            messages(f"{stands.text}: {now.status.reason}".rstrip(": "))
    except KeyboardInterrupt as end:
        unsure = f"the migration goes on, unless it had not begun: see `edl status {store.name}`"
        end.add_note(unsure if asked is None else _goes_on(asked))
        raise
    # They have moved; the event log says how long training stood still, some steps later.
    last, events = max(generations), dict[int, Event]()
    deadline = time.monotonic() + (limits.log_s if last > asked.since else 0.0)
    while True:
        with suppress(CoordinationError):  # they have moved all the same
            events |= store.events.read_known(max(events, default=-1))
        log = [events[number] for number in sorted(events)]
        done = placement.migration_outcome(asked, log, hosts, last, generations.values())
        if done.stall_s is not None or time.monotonic() >= deadline:
            return done
        time.sleep(limits.poll_s)


def _goes_on(asked: Move) -> str:
    back = f"edl migrate {asked.job} --from {asked.target} --to {asked.source} --np {asked.np}"
    return f"the migration goes on; `{back}` takes it back"


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
    stays = after.get(asked.source, 0) - asked.desired.get(asked.source, 0)
    again = to_add(asked.job, now.assigned.by_slot, asked.target)
    return HostLost(
        asked.job,
        f"nobody has offered host {asked.target} for {limits.agent_gone_s:g} s: {stays} of "
        f"{workers(asked.np)} of job {asked.job} stay on {asked.source}; {again}, then migrate "
        "again",
    )


# ------------------------------------------------------------
# End a running job: after a step (`stop`), or saved within a bound (`preempt`).
#
# Both write the request into the job's record, and wait until its processes have ended.

LIMITS = SupervisorLimits()
PREEMPT_WITHIN_S = 30.0
NEWEST_EVENTS = 200  # among which the last save is looked for


def stop(store: JobStore, timeout_s: float | None = None, limits: ClientLimits = USUAL) -> str:
    ask_s = LIMITS.stop_s if timeout_s is None else timeout_s
    _request(store, ask_s, "edl stop", limits=limits)
    return _sentence(_wait_for_end(store, timeout_s, limits))


def preempt(
    store: JobStore,
    within_s: float,
    timeout_s: float | None = None,
    on_message: OnMessage = ignore,
) -> str:
    if not within_s > 0:
        raise UsageError(f"a job cannot save within {within_s:g} s; give it more")
    if store.snapshot().job.state is not JobState.STOPPING:  # else it is about to end
        if running(store, f"preempt job {store.name}").job.saved_step < 0:
            raise UsageError(
                f"job {store.name} has no checkpoint, so all that it has trained would be lost: "
                "let its script call edl.checkpoint(directory), or end it by `edl stop`"
            )
        newest = (one.details for one in store.events.newest(NEWEST_EVENTS, None))
        saves = [one for one in newest if isinstance(one, CheckpointDetails)]
        if saves and (why := why_tight(within_s, saves[-1].capture_s + saves[-1].write_s)):
            on_message(why)  # by the last save the bound is probably too short
        _request(store, within_s, f"edl preempt --within {within_s:g}s", end_within_s=within_s)
    limit_s = within_s + LIMITS.stop_s if timeout_s is None else timeout_s
    ended = _wait_for_end(store, limit_s)
    if ended.state is not JobState.STOPPED or ended.exit_code != HALTED_EXIT:
        raise RequestError(ended.name, _sentence(ended))
    return _sentence(ended)


def _sentence(ended: Job) -> str:
    return f"job {ended.name} {ended.state.phrase}: {ended.reason}"


def _request(
    store: JobStore,
    timeout_s: float,
    reason: str,
    end_within_s: float = 0.0,
    limits: ClientLimits = USUAL,
) -> None:
    """Write into the job's record that the job is to stop; try again while ZooKeeper is away."""
    # `end_within_s` 0: it is only stopped, not preempted.
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            store.set_job_state(JobState.STOPPING, reason, end_within_s=end_within_s)
        except CoordinationError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(limits.poll_s)
        else:
            return


def _wait_for_end(store: JobStore, timeout_s: float | None, limits: ClientLimits = USUAL) -> Job:
    messages, what = Messages(), f"stopping job {store.name}"
    job = next(poll_job(store, LIMITS.stop_s, what, messages, limits=limits)).job
    limit_s = LIMITS.stop_s + LIMITS.stop_limit_s(job) if timeout_s is None else timeout_s
    # When it has no processes, nobody else writes that it has stopped.
    alone_since: float | None = None
    for snapshot in poll_job(store, limit_s, what, messages, "it goes on ending", limits):
        record, now = snapshot.job, time.monotonic()
        if record.state.over:
            return record
        there = [host.name for host in snapshot.hosts] + [m.name for m in snapshot.members]
        there += [f"the edl-worker of slot {s.host}:{s.slot}" for s in snapshot.slots]
        messages(f"still there: {', '.join(there) or 'nobody'}")
        if there:
            alone_since = None
        elif alone_since is None:
            alone_since = now
        elif now - alone_since >= limits.settle_s:
            reason = f"{record.reason}; none of its processes is alive"
            with suppress(CoordinationError):  # the next look tries again
                conclude(store, stopped_outcome(snapshot, reason), snapshot)
    raise AssertionError("poll_job() ends with an error")


@dataclass(frozen=True)
class Explanation:
    """The policy of a job, with the measurements that it decides from; `explain` returns it."""

    policy: JobPolicy
    # the number of workers in the newest generation; 0: there is none yet, or the job has ended
    np: int
    learned: ScalingProfile  # what was measured of the job, such as its throughput at each size
    # for a hill-climbing rule, whether the larger number of workers is worth its cost, for each
    # pair of measured sizes; empty for other rules
    verdicts: tuple[SizeComparison, ...]
    says: str  # the leader's last word
    # for the rule `goodput`, the goodput (throughput times statistical efficiency) that its model
    # expects at each number of workers, in samples/s; empty for other rules
    modelled: Mapping[int, float] = field(default_factory=dict)


def set_policy(store: JobStore, text: str, source: str) -> JobPolicy:
    now = running(store, f"give job {store.name} a policy")
    new = checked_policy(text, source, now.job.sizes, now.job.spec.command, Path(now.job.spec.cwd))
    given = parse_policy(text, source)

    def changed(before: JobPolicy) -> JobPolicy:
        written = PolicyFile("")  # as one whose text cannot be parsed counts
        with suppress(UsageError):
            written = parse_policy(before.text, before.source)
        check_change(written, given, source)
        return new

    return store.policy.change(changed, f"edl policy set: {source}")


def switch_off(store: JobStore) -> JobPolicy:
    running(store, f"switch off the policy of job {store.name}")

    def off(policy: JobPolicy) -> JobPolicy:
        _check_any(store, policy)
        if policy.off:
            raise UsageError(f"the policy of job {store.name} is off already: {policy.off}")
        return replace(policy, off="edl policy off")

    return store.policy.change(off, "edl policy off")


def resume(store: JobStore) -> JobPolicy:
    running(store, f"resume the policy of job {store.name}")

    def on(policy: JobPolicy) -> JobPolicy:
        _check_any(store, policy)
        if policy.is_on and not store.policy.learned().held_s(policy):
            raise UsageError(f"the policy of job {store.name} is on, and nobody holds it")
        return replace(policy, off="", held_until_s=0.0)

    return store.policy.change(on, "edl policy resume")


def explain(store: JobStore) -> Explanation:
    now, learned = store.snapshot(), store.policy.learned()
    _check_any(store, now.policy)
    np = len(now.generation.members) if now.generation is not None else 0
    rule = parse_policy(now.policy.text, now.policy.source).size
    slots = sum(host.slots for host in now.available)
    left, filled = now.status.left, [host.slots for host in now.available]
    last = np or learned.np
    observation = learned.observation(last, now.job.sizes, slots, False, left, (), filled)
    verdicts = tuple(rule.table(observation)) if isinstance(rule, HillClimbing) else ()
    modelled = rule.table(observation) if isinstance(rule, Goodput) else {}
    return Explanation(now.policy, np, learned, verdicts, now.status.policy, modelled)


def checked_policy(
    text: str, source: str, sizes: Sizes, command: Sequence[str], cwd: Path
) -> JobPolicy:
    policy = parse_policy(text, source)
    check_sizes(policy, sizes, source)
    if isinstance(policy.size, CustomRule):
        scripts = [(cwd / word).parent for word in command if word.endswith(".py")][:1]
        _find(policy.size, [*scripts, cwd], source)
    return JobPolicy(text, source, policy.hold_s)


def _find(rule: CustomRule, directories: Sequence[Path], source: str) -> None:
    paths: Sequence[str] | None = [*map(str, directories), *sys.path]
    spec = None
    for number, _ in enumerate(rule.module.split("."), 1):
        name = ".".join(rule.module.split(".")[:number])
        spec = PathFinder.find_spec(name, paths)
        if spec is None:
            where = ", ".join(map(str, dict.fromkeys(directories)))
            raise UsageError(
                f"{source}: there is no module {name} for the rule {rule}, in {where} or among the "
                "installed ones"
            )
        paths = spec.submodule_search_locations
    if spec is None or not (spec.origin or "").endswith(".py"):
        return
    try:
        names = symtable(Path(spec.origin or "").read_text(), spec.origin or "", "exec")
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(f"{source}: cannot read the rule {rule}: {error}") from None
    known = (one for one in names.get_symbols() if one.is_assigned() or one.is_imported())
    if rule.function not in {one.get_name() for one in known}:
        raise UsageError(f"{source}: {spec.origin} has no function {rule.function}")


def stands(policy: JobPolicy, held_s: float = 0.0) -> str:
    if not policy.text:
        return "no policy"
    if policy.off:
        return f"off: {policy.off}"
    return f"on, held by a person for {span(held_s)} more" if held_s > 0 else "on"


def _check_any(store: JobStore, policy: JobPolicy) -> None:
    if not policy.text:
        raise UsageError(
            f"job {store.name} has no policy; give it one with `edl policy {store.name} set FILE`"
        )


# ------------------------------------------------------------
# Let a job use slots that nobody else needs for now (`borrow`), or take them back.
#
# `reclaim` takes them back.

GRACE_S = 10.0  # after the deadline, for what was done to be read


@dataclass(frozen=True)
class Reclaimed:
    """The slots that a job has given back after a request of `edl reclaim`.

    Attributes:
        job: the name of the job.
        hosts: the number of workers that left for the request, by host; more than the slots that
            were asked for if the job's sizes allow no number in between.
        after_s: the time from the request until the caller saw the slots free, in seconds.
        np: the number of workers that is desired since the request, on all hosts.
    """

    job: str
    hosts: Mapping[str, int]
    after_s: float
    np: int

    def __str__(self) -> str:
        return (
            f"job {self.job} has given back {counted(sum(self.hosts.values()), 'slot')} "
            f"({by_host(self.hosts)}) in {self.after_s:.1f} s and goes on with {workers(self.np)}"
        )


def borrow(store: JobStore, slots: int, host: str | None, limits: ClientLimits = USUAL) -> Resize:
    now = resizable(store, f"borrow slots for job {store.name}", limits)
    choice, terms = partial(borrowing.borrow, now, slots, host), ReclaimTerms(borrows=True)
    changed = store.set_desired(choice, RequestedBy.PERSON, "edl borrow", terms)
    return Resize(store.name, changed.before.hosts, changed.desired.hosts)


def reclaim(
    store: JobStore,
    slots: int | None,
    host: str | None,
    deadline_s: float,
    on_message: OnMessage,
    limits: ClientLimits = USUAL,
) -> Reclaimed:
    if not deadline_s > 0:
        raise UsageError(f"the deadline is {deadline_s:g} s; give more than 0")
    now = resizable(store, f"take slots back from job {store.name}", limits)
    began_s = time.monotonic()
    changed = store.set_desired(
        partial(borrowing.reclaim, now, slots, host),
        RequestedBy.PERSON,
        f"edl reclaim within {deadline_s:g} s",
        ReclaimTerms(within_s=deadline_s),
    )
    before, after = changed.before.hosts, changed.desired.hosts
    asked = [one for one in changed.desired.reclaims if one not in changed.before.reclaims]
    goes_on = f"it goes on (see `edl status {store.name}`)"
    what = f"taking {counted(sum(one.slots for one in asked), 'slot')} back"
    on_message(f"{what}: {by_host({one.host: one.slots for one in asked})}")
    messages, limit_s = Messages(on_message), deadline_s + GRACE_S
    try:
        for seen in poll_job(store, limit_s, what, messages, goes_on, limits):
            if any(seen.desired.hosts.get(one.host, 0) > after.get(one.host, 0) for one in asked):
                raise Superseded(store.name, f"{what} was cancelled: other workers were asked for")
            if not {*asked} & {*seen.desired.reclaims}:
                after_s = time.monotonic() - began_s
                hosts = {h: before[h] - after.get(h, 0) for h in sorted(before)}
                gone = {host: n for host, n in hosts.items() if n > 0}
                return Reclaimed(store.name, gone, after_s, sum(after.values()))
            messages(f"{what}: {seen.status.reason}")
    except KeyboardInterrupt as end:
        end.add_note(goes_on)
        raise
    raise AssertionError("poll_job() ends with an error")
