"""Decide which hosts a cluster borrows from an engine, and which it gives back.

:func:`decide_leases` is a pure function of the records, the engine's last answer and the time. The
leader writes the table that it returns, and only then asks the engine. Its rules:

1. **Written ahead.** A lease is in the table before the engine is asked for it. What the engine
   does not know of is asked for again, under the same name, by whoever leads then. What the table
   does not know of is given back after ``stray_s`` seconds.
2. **Silence decides nothing.** While the engine does not answer, the table stays as it is: no slot
   becomes free, no host is asked for or given back. If it does not tell the state of one lease,
   that lease stays as it is: it has neither ended nor begun, and nobody is asked in its place.
3. **The engine's word ends a loan, the host's word frees its slots.** Jobs get no more slots of a
   host whose lease has ended or waits again, even if its `edl host` lives on. What is assigned
   there stays assigned until a host of that name reports that nothing lives
   (:mod:`edl.cluster.view`), under whichever lease.
4. **Idle hosts only.** A host is given back when no job has had slots there for ``idle_s`` seconds,
   and the jobs need fewer hosts than there are. No job is moved for that. A host that takes no
   slots of jobs, because it is drained or its edl writes records of another format, is given back
   as soon as no job has slots there, and another one is asked for in its place.
5. **A failure rests.** After a lease that came to nothing the next one waits 10, 20, 40 ... and at
   most 300 s. So the engine is not asked again and again if it lends a drained machine each time.
   Leases that were asked for together, or before the failure was known, fail once only. After the
   rest one lease is asked for, and no further one before its host has come.
6. **What hosts lack is remembered.** If a host of the engine lacks a file that a job needs, none is
   asked for on behalf of such jobs for an hour, so that hosts do not come and go in vain
   (:mod:`edl.cluster.view`).
7. **Of use.** The engine is told which machines not to lend: those that take no slots, and those on
   which an `edl host` of an ended lease lives. It would lend the first free one again and again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from edl.cluster.candidates import obstacle
from edl.cluster.lifecycle import LifeState
from edl.cluster.queues import QuotaRequest, quota_limits
from edl.cluster.records import (
    FORMAT,
    HostLease,
    HostOffer,
    LeaseLimits,
    LeaseRecord,
    LeaseState,
    LeaseTable,
    tenant_of,
)
from edl.cluster.view import ClusterView, HostView, JobView, leases_by, missing_paths
from edl.errors import some
from edl.text import counted, verb

# ------------------------------------------------------------
# Decide how many hosts the jobs of a cluster need from an engine that lends them.
#
# `wanted_hosts` is a pure function of the jobs, the hosts and the limits.


_Labels = frozenset[tuple[str, str]]


def wanted_hosts(
    cluster: ClusterView, limits: LeaseLimits, missing: AbstractSet[str] = frozenset()
) -> tuple[int, str]:
    slots = limits.shape.slots
    hosts = [
        host
        for host in cluster.hosts
        if host.offer is not None and host.takes_slots and not host.offer.lease
    ]
    own = _slots_without(hosts, (), limits)
    jobs = [
        job
        for job in cluster.jobs
        if missing.isdisjoint(job.manifest.required_paths) and _counts(job, cluster, limits, own)
    ]
    others = {job.name for job in cluster.jobs if job.wants_slots} - {job.name for job in jobs}
    wanted: Counter[_Labels] = Counter()
    asking = _requests(jobs, others, cluster)
    for job, count in asking:
        wanted[frozenset(job.manifest.labels.items())] += count
    needed = math.ceil(_lacking(wanted, _slots_without(hosts, others, limits)) / slots)
    why = "no job needs one"
    if asking:
        names, total = some([job.name for job, _ in asking]), wanted.total()
        why = f"{names} {verb(len(asking), 'asks', 'ask')} for {counted(total, 'slot')}"
    return min(limits.max_hosts, max(limits.min_hosts, needed)), why


def _requests(
    jobs: Sequence[JobView], others: Collection[str], cluster: ClusterView
) -> list[tuple[JobView, int]]:
    left = {name: one.most for name, one in cluster.queues.items() if one.most is not None}
    held: Counter[str] = Counter()
    for host in cluster.hosts:
        for name, entry in host.assigned.jobs.items():
            held[name] += len(entry.devices)
            if name in others and (queue := cluster.by_name[name].manifest.queue) in left:
                left[queue] -= len(entry.devices)
    holding = [cluster.by_name[name] for name in others if held[name]]
    limits = _rigid_limits([*jobs, *holding], held, cluster)
    found = []
    for job in jobs:
        queue, count = job.manifest.queue, job.manifest.requested_np
        if job.manifest.preemptible is False:
            count = limits.get(job.name, 0)
        if count > left.get(queue, count):
            count = job.manifest.allowed_sizes.below(max(0, left[queue])) or 0
        if queue in left:
            left[queue] -= count
        if count:
            found.append((job, count))
    return found


def _rigid_limits(
    jobs: Sequence[JobView], held: Mapping[str, int], cluster: ClusterView
) -> dict[str, int]:
    """Return how many slots each job with `preemptible: false` may have, by job name."""
    queues: dict[str, list[QuotaRequest]] = {}
    rigid = [job for job in jobs if job.manifest.preemptible is False]
    for job in sorted(rigid, key=lambda job: (-job.wanted.priority, job.order)):
        size, least = held.get(job.name, 0), job.min_slots
        # one that has slots does not grow
        most = max(size, least) if size else max(job.manifest.requested_np, least)
        one = QuotaRequest(job.name, size, least, most, job.manifest.allowed_sizes)
        queues.setdefault(job.manifest.queue, []).append(one)
    found: dict[str, int] = {}
    for name, requests in queues.items():
        quota = cluster.queues[name].quota if name in cluster.queues else 0
        if not cluster.queues:
            quota = sum(one.most for one in requests)
        found |= quota_limits(name, requests, quota)[0]
    return found


def _slots_without(
    hosts: Sequence[HostView], others: Collection[str], limits: LeaseLimits
) -> Counter[_Labels]:
    found: Counter[_Labels] = Counter()
    for host in hosts:
        if host.offer is not None:
            entries = host.assigned.jobs.items()
            held = sum(len(entry.devices) for name, entry in entries if name in others)
            # no job that counts asks for other labels
            labels = frozenset(host.offer.labels.items() & limits.shape.labels.items())
            found[labels] += max(0, len(host.offer.numbers) - held)
    return found


def _lacking(wanted: Mapping[_Labels, int], free: Mapping[_Labels, int]) -> int:
    # Sets of labels that overlap without inclusion may make the result larger than it must be.
    left, lacking = dict(free), 0
    for labels in sorted(wanted, key=_order, reverse=True):
        count = wanted[labels]
        for offered in sorted(left, key=_order):
            if labels <= offered:
                used = min(count, left[offered])
                left[offered] -= used
                count -= used
        lacking += count
    return lacking


def _order(labels: _Labels) -> tuple[int, list[tuple[str, str]]]:
    # the same in each process
    return len(labels), sorted(labels)


def _counts(
    job: JobView, cluster: ClusterView, limits: LeaseLimits, free: Mapping[_Labels, int]
) -> bool:
    labels = job.manifest.labels.items()
    if not job.wants_slots or not labels <= limits.shape.labels.items():
        return False
    if tenant_of(job.name, cluster.tenants):
        return False  # lent hosts run without --user
    room = sum(count for offered, count in free.items() if labels <= offered)
    if job.min_slots > room + limits.max_hosts * limits.shape.slots:
        return False
    if cluster.lacking_on_borrowed(job):
        return False  # another host of the same fleet would lack its files, too
    if job.life.state is not LifeState.QUEUED:
        return True
    return obstacle(job, cluster, math.inf) is None  # a rest until its next try is no obstacle


PREFIX = "l"  # of the name of a lease, before its number
FIRST_REST_S, MAX_REST_S = 10.0, 300.0
SOON_S = 60.0  # a host that ends so soon after it came, and was not told to, has failed, too


@dataclass(frozen=True)
class ReleaseHost:
    lease: str  # the name of the lease
    within_s: float  # for its `edl host` to leave; 0: the engine ends the lease now


@dataclass(frozen=True)
class LeaseDecision:
    table: LeaseTable
    ask: tuple[str, ...] = ()  # the names of leases to ask for, in this order, or to tell anew
    avoid: tuple[str, ...] = ()  # the machines that the engine is to lend for none of them, sorted
    give_back: tuple[ReleaseHost, ...] = ()
    news: tuple[tuple[str, str], ...] = ()  # sentences for the event log, each with its host or ""


def decide_leases(
    table: LeaseTable,
    answer: Mapping[str, HostLease] | None,
    cluster: ClusterView,
    limits: LeaseLimits,
    now_s: float,
) -> LeaseDecision:
    if answer is None:
        return LeaseDecision(table)
    table = leases_by(now_s, table, MAX_REST_S)
    builder = _LeaseBuilder(table, answer, cluster, limits, now_s)
    for name, record in table.leases.items():
        builder.advance(name, record)
    builder.return_strays()
    builder.return_useless()
    builder.missing = missing_paths(table.missing, cluster, now_s)
    for path in sorted(builder.missing.keys() - table.missing.keys()):
        host = builder.missing[path].host
        what = f"asks for no host on behalf of jobs that need {path} for an hour"
        builder.note(what, f"{host} lacks it", host)
    needed, why = wanted_hosts(cluster, limits, builder.missing.keys())
    builder.ask_for(needed, why)
    builder.return_surplus(needed)
    return builder.decision(needed)


@dataclass(frozen=True)
class LastOffer:
    offer: HostOffer
    silent_s: float = 0.0  # since when the host offers nothing, since 1970; 0: it does


def own_offers(
    cluster: ClusterView, before: Mapping[str, LastOffer], now_s: float
) -> dict[str, LastOffer]:
    found = {}
    for host in cluster.hosts:
        known = before.get(host.name)
        if host.offer is not None and not host.offer.lease:
            found[host.name] = LastOffer(host.offer)
        elif host.offer is None and known is not None:
            silent_s = known.silent_s or now_s
            if now_s - silent_s < cluster.settings.lost_after_s:
                found[host.name] = replace(known, silent_s=silent_s)
    return found


def with_offers(cluster: ClusterView, offers: Mapping[str, LastOffer]) -> ClusterView:
    # For `decide_leases` alone, so that a host that is silent for a moment is not replaced.
    hosts = (
        replace(host, offer=offers[host.name].offer)
        if host.offer is None and host.name in offers
        else host
        for host in cluster.hosts
    )
    return replace(cluster, hosts=tuple(hosts))


def with_leases(cluster: ClusterView, table: LeaseTable) -> ClusterView:
    def marked(host: HostView) -> HostView:
        name = host.offer.lease if host.offer is not None else ""
        if not name:
            return host
        record = table.leases.get(name)
        lease_holds = record is not None and record.lease_holds and record.host in ("", host.name)
        return replace(host, lease_holds=lease_holds)

    hosts = tuple(marked(host) for host in cluster.hosts)
    missing = {p: f"{one.host}, which {table.engine} lent," for p, one in table.missing.items()}
    return replace(cluster, hosts=hosts, more_hosts=lease_summary(table), missing_paths=missing)


def lease_summary(table: LeaseTable) -> str:
    """Return how many hosts the engine lends and is asked for, as a sentence without a period."""
    states = Counter(str(one.state) for one in table.leases.values() if not one.is_over)
    running, asked = states[LeaseState.RUNNING], states[LeaseState.ASKED]
    parts = [f"{table.engine} lends {counted(running, 'host')}"]
    if asked:
        waits = {one.why for one in table.leases.values() if one.state is LeaseState.ASKED}
        why = ", ".join(sorted(filter(None, waits)))
        parts.append(f"is asked for {asked} more{f' ({why})' if why else ''}")
    clause = " and ".join(parts)
    return f"{clause}; {table.why}" if table.why else clause


def _hosts_of(cluster: ClusterView, answer: Mapping[str, HostLease]) -> dict[str, HostView]:
    found: dict[str, HostView] = {}
    for host in cluster.hosts:
        name = host.offer.lease if host.offer is not None else ""
        if name and (name not in found or (name in answer and answer[name].host == host.name)):
            found[name] = host
    return found


def _number(lease: str) -> int:
    return int(lease.removeprefix(PREFIX))


def _leaves(host: HostView | None, otherwise: bool) -> bool:
    """Return whether `host` says that it leaves; `otherwise` if it is not there."""
    return otherwise if host is None or host.offer is None else host.offer.leaves


class _LeaseBuilder:
    def __init__(
        self,
        table: LeaseTable,
        answer: Mapping[str, HostLease],
        cluster: ClusterView,
        limits: LeaseLimits,
        now_s: float,
    ) -> None:
        self._table = table
        self._answer = answer
        self._limits = limits
        self._now_s = now_s
        self._hosts = _hosts_of(cluster, answer)
        self._cluster = cluster
        useless = {host.name for host in cluster.hosts if self._useless(host)}
        occupied = {one.host for one in table.leases.values() if one.is_over and one.host}
        self._avoid = tuple(sorted(useless | occupied))
        self._leases: dict[str, LeaseRecord] = {}
        self._strays: dict[str, float] = {}
        self._last = table.last
        self._failures = table.failures
        self._failed_to = table.failed_to
        self._not_before_s = table.not_before_s
        self._why = table.why
        self.missing = table.missing
        self._ask: list[str] = []
        self._back: list[ReleaseHost] = []
        self._news: list[tuple[str, str]] = []

    # --- what has become of the leases

    def advance(self, name: str, record: LeaseRecord) -> None:
        lease, host = self._answer.get(name), self._hosts.get(name)
        started = record.offered_s or record.silent_s or host
        if lease is None and not (started or record.back_s):
            self._leases[name] = record
            self._ask.append(name)  # written, and perhaps never asked for
        elif lease is not None and lease.state is LeaseState.UNKNOWN:
            self._hold(name, record, lease, host)
        elif lease is not None and lease.state is LeaseState.HELD:
            # The engine will not start it by itself.
            if not record.back_s:
                self._fail(name, lease.why, record.host)
            back_s = record.back_s or self._now_s
            self._leave(name, replace(record, why=lease.why, back_s=back_s), host)
        elif lease is None or lease.state is LeaseState.ENDED:
            self._end(name, record, host, lease.why if lease is not None else "")
        else:
            if lease.state is LeaseState.ASKED and lease.avoid not in (None, self._avoid):
                self._ask.append(name)
            self._go_on(name, self._heard(record, lease, host), host)

    def _heard(self, record: LeaseRecord, lease: HostLease, host: HostView | None) -> LeaseRecord:
        now_s = self._now_s
        running = lease.state is LeaseState.RUNNING
        name = lease.host or (host.name if host is not None else record.host)
        known = self._cluster.host_named.get(name)
        idle = known is None or not known.assigned.jobs
        if running and host is not None and not (record.offered_s or self._useless(host)):
            self._failures = 0
        return replace(
            record,
            state=lease.state,
            host=name,
            why=lease.why,
            silent_s=(record.silent_s or now_s) if running and host is None else 0.0,
            offered_s=record.offered_s or (now_s if running and host is not None else 0.0),
            idle_s=(record.idle_s or now_s) if idle else 0.0,
            leaves=running and _leaves(host, record.leaves),
        )

    def _hold(
        self, name: str, record: LeaseRecord, lease: HostLease, host: HostView | None
    ) -> None:
        """Keep a lease in the state of its record, because the engine does not tell another one."""
        if lease.why and lease.why != record.why:
            self.note(f"{name} stays as it was", lease.why, record.host)
        heard = self._heard(record, replace(lease, state=record.state), host)
        # That its host is silent is not held against it.
        kept = replace(heard, silent_s=record.silent_s if host is None else 0.0)
        if kept.back_s:
            self._leave(name, kept, host)
        else:
            self._leases[name] = kept

    def _go_on(self, name: str, record: LeaseRecord, host: HostView | None) -> None:
        late_s = self._now_s - record.silent_s - self._limits.start_s
        if record.is_over:  # another one has its place, and the engine has begun it again
            self._leave(name, replace(record, back_s=record.back_s or self._now_s), host)
        elif record.back_s:
            self._leave(name, record, host)
        elif record.silent_s and late_s >= 0:
            why = f"its host has offered nothing for {self._limits.start_s:g} s"
            self._fail(name, why, record.host)
            self._leave(name, replace(record, back_s=self._now_s), host)
        else:
            self._leases[name] = record

    def _end(self, name: str, record: LeaseRecord, host: HostView | None, reason: str) -> None:
        """Forget a lease that has ended; not while its host still offers slots under its name."""
        if host is not None:
            if not record.is_over:
                self.note(f"{name} has ended, but edl host lives on", reason, host.name)
            self._leases[name] = replace(record, is_over=True, state=LeaseState.ENDED, why=reason)
            return
        asked = record.back_s or record.leaves  # of the host to leave
        if not asked and (not record.offered_s or self._now_s - record.offered_s < SOON_S):
            self._fail(name, reason or "the engine does not say why", record.host)
        elif record.back_s:
            self.note(f"{name} has been given back", "", record.host)
        elif not record.is_over:
            self.note(f"{name} has ended", reason, record.host)

    def return_strays(self) -> None:
        for name, lease in sorted(self._answer.items()):
            if name not in self._table.leases and lease.state is not LeaseState.ENDED:
                since_s = self._table.strays.get(name, self._now_s)
                self._strays[name] = since_s
                if self._now_s - since_s >= self._limits.stray_s:
                    self._leave(name, None, self._hosts.get(name), since_s + self._limits.stray_s)

    # --- what is asked for and given back

    def ask_for(self, needed: int, reason: str) -> None:
        """Ask for as many further hosts as are needed, unless the last ones came to nothing."""
        alive = sum(
            one.lease_holds or (one.state is LeaseState.ASKED and not (one.back_s or one.is_over))
            for one in self._leases.values()
            if not self._why_useless(one)
        )
        if alive >= needed or self._now_s < self._not_before_s:
            return
        # One at a time after a failure, so that a broken partition is not asked for many.
        if self._failures and any(
            one.lease_holds and not one.offered_s and _number(name) > self._failed_to
            for name, one in self._leases.items()
        ):
            return
        room = self._limits.max_hosts - sum(not one.is_over for one in self._leases.values())
        count = min(room, 1 if self._failures else needed - alive)
        if count < 1:
            return
        for _ in range(count):
            self._last += 1
            name = f"{PREFIX}{self._last}"
            self._leases[name] = LeaseRecord(
                self._limits.shape.slots, self._now_s, idle_s=self._now_s
            )
            self._ask.append(name)
        slots = counted(self._limits.shape.slots, "slot")
        self._news.append((f"asks for {counted(count, 'host')} with {slots} each: {reason}", ""))

    def return_surplus(self, needed: int) -> None:
        """Give back what is idle and not needed: what waits in a queue first, then the longest."""
        going = {
            name: one
            for name, one in self._leases.items()
            if not (one.back_s or self._why_useless(one))
        }
        surplus = sum(not one.is_over for one in going.values()) - needed
        order = sorted(going, key=lambda name: (going[name].offered_s > 0, going[name].idle_s))
        for name in order:
            record = going[name]
            idle_s = self._now_s - record.idle_s
            if surplus <= 0:
                return
            if record.is_over or not record.idle_s or idle_s < self._limits.idle_s:
                continue
            surplus -= 1
            self.note(f"{name} is given back", f"idle for {idle_s:.0f} s", record.host)
            self._leave(name, replace(record, back_s=self._now_s), self._hosts.get(name))

    def return_useless(self) -> None:
        for name, record in list(self._leases.items()):
            why = self._why_useless(record)
            if record.back_s or record.is_over or not record.idle_s or not why:
                continue
            former = self._table.leases.get(name)
            # It was so when it came: the engine would lend it again and again.
            if former is None or not former.offered_s:
                self._fail(name, why, record.host)
            else:
                self.note(f"{name} is given back", why, record.host)
            self._leave(name, replace(record, back_s=self._now_s), self._hosts.get(name))

    def _why_useless(self, record: LeaseRecord) -> str:
        """Return why the host of a lease that runs takes no slots of jobs; empty if it may."""
        host = self._cluster.host_named.get(record.host)
        runs = record.state is LeaseState.RUNNING
        return self._useless(host) if runs and host is not None else ""

    def _useless(self, host: HostView) -> str:
        """Return why `host` takes no slots of jobs, for as long as its lease; empty if it may."""
        offer, settings = host.offer, self._cluster.settings
        if host.drained:
            return f"{host.name} is drained"
        if offer is None or offer.format == FORMAT:
            return ""
        right = f"edl {settings.version}" if settings.version else "the version of the cluster"
        return (
            f"edl {offer.version} on {host.name} writes records of format {offer.format}, and the "
            f"cluster has format {FORMAT}; install {right} there"
        )

    def _leave(
        self, name: str, record: LeaseRecord | None, host: HostView | None, since_s: float = 0.0
    ) -> None:
        """Order that a lease is given back: its host is told once, and ended after some time."""
        if record is not None:
            self._leases[name] = record
            since_s = record.back_s
        if host is None or self._now_s - since_s >= self._limits.leave_s:
            self._back.append(ReleaseHost(name, 0.0))
        elif host.offer is not None and not host.offer.leaves:
            self._back.append(ReleaseHost(name, self._limits.leave_s))

    # --- the result

    def decision(self, needed: int) -> LeaseDecision:
        table = replace(
            self._table,
            last=self._last,
            leases=self._leases,
            strays=self._strays,
            failures=self._failures,
            failed_to=self._failed_to,
            not_before_s=self._not_before_s,
            why=self._why if self._failures else "",
            wanted=needed,
            missing=self.missing,
        )
        return LeaseDecision(
            table, tuple(self._ask), self._avoid, tuple(self._back), tuple(self._news)
        )

    def _fail(self, name: str, reason: str, host: str) -> None:
        if not self._failures or _number(name) > self._failed_to:
            self._failures += 1
            self._failed_to = self._last
        rest_s = min(MAX_REST_S, FIRST_REST_S * 2.0 ** min(self._failures - 1, 10))
        self._not_before_s = self._now_s + rest_s
        self._why = f"{name} came to nothing: {reason}"
        self._news.append((f"{self._why}; the next one waits {rest_s:g} s", host))

    def note(self, what: str, reason: str, host: str) -> None:
        self._news.append((f"{what}: {reason}" if reason else what, host))


# ------------------------------------------------------------
# Decide how a cluster goes on when its controller borrows hosts from another engine than before.
#
# Only a controller of the former engine can ask that engine to take its hosts back. So while the
# records have leases of it, the present engine is asked for nothing, and the records stay as they
# are: the hosts keep their jobs, and a controller of the former engine goes on with them.


def table_for(engine: str, table: LeaseTable, forget: str = "") -> LeaseTable:
    if table.engine == engine or (_lease_count(table) and table.engine != forget):
        return table
    return replace(LeaseTable(engine), last=table.last)  # no number is used twice


def without_asking(engine: str, table: LeaseTable) -> LeaseTable:
    former = table.engine
    why = (
        f"{engine} is asked for no host while {former} has {counted(_lease_count(table), 'lease')} "
        f"of this cluster, which only a controller with --fleet {former} gives back: start it in "
        f"place of this one, with --max-hosts 0, and drain those hosts; if {former} is gone for "
        f"good, start one with --fleet {engine} --forget-fleet {former}"
    )
    # The former engine is asked again without a rest.
    return replace(table, why=why, failures=0, not_before_s=0.0)


def _lease_count(table: LeaseTable) -> int:
    return sum(not one.is_over for one in table.leases.values()) + len(table.strays)
