"""Keep account of which run has which devices of each host, while a plan is made.

A :class:`DeviceTable` begins with what the hosts' records ``assigned`` say, and
:meth:`DeviceTable.changed` has the records to write; nothing is written here. The rules:

1. **A device belongs to one run.** A process may live on a device only if the record of its host
   assigns the device to the process's run. It is written before the run may use the device.
2. **A device is free when there is proof.** A run that trains gives a device back when neither its
   own record ``assigned`` nor its agent's record has the device any more (:meth:`RunView.uses`). A
   run that has ended gives back all devices of a host when `edl host` reports, about a version of
   its assignment that tells it to end the run, that no process of it lives.
3. **Silence frees nothing.** Without a report or an agent's record everything stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from edl.core.cluster.records import HostAssignment, HostFailure, JobAssignment
from edl.core.cluster.times_ahead import assignment_by
from edl.core.cluster.view import HostView, RunView

FAILED_S = 300.0  # for so long a job that could not start on a host gets no slots there
FAILED_JOBS = 3  # so many different jobs that could not start take a host out


class DeviceTable:
    """The devices of all hosts, and the run that each belongs to."""

    def __init__(self, hosts: Sequence[HostView], now_s: float) -> None:
        self.hosts = {host.name: host for host in hosts}
        self.now_s = now_s
        records = {host.name: assignment_by(now_s, host.assigned) for host in hosts}
        self._jobs = {name: dict(record.jobs) for name, record in records.items()}
        self._silent_s = {name: record.silent_s for name, record in records.items()}
        self._paths = {host.name: host.assigned.paths for host in hosts}
        self._failures = {
            name: {k: v for k, v in one.failures.items() if now_s - v.at_s < FAILED_S}
            for name, one in records.items()
        }
        self._out = {
            name: one.out if len(self._blamed(name)) >= FAILED_JOBS else ""
            for name, one in records.items()
        }
        self._hosts_of: dict[str, set[str]] = {}
        for host, job, _ in self.all_entries():
            self._hosts_of.setdefault(job, set()).add(host)

    # --- what is so

    def of_job(self, job: str) -> dict[str, JobAssignment]:
        """Return the run and devices of `job` on each host, also those of its former runs."""
        return {host: self._jobs[host][job] for host in sorted(self._hosts_of.get(job, ()))}

    def entries(self, job: str, run: str) -> dict[str, JobAssignment]:
        """Return the devices of one run by host, without hosts where the run was told to end."""
        return {
            host: entry
            for host, entry in self.of_job(job).items()
            if entry.run == run and not entry.ends
        }

    def all_entries(self) -> Iterator[tuple[str, str, JobAssignment]]:
        """Yield (host, job, the job's devices there); the table may be changed meanwhile."""
        for host, jobs in self._jobs.items():
            for job, entry in list(jobs.items()):
                yield host, job, entry

    def blocked(self, job: str, run: str) -> set[str]:
        """Return the hosts on which another run of `job`, or one told to end, still has devices."""
        entries = self.of_job(job).items()
        return {host for host, entry in entries if entry.run != run or entry.ends}

    def free(self, host: str) -> list[int]:
        """Return the devices of `host` that belong to no run and may be given, ascending."""
        view = self.hosts.get(host)
        if view is None or view.offer is None or not view.takes_slots:
            return []
        taken = {device for entry in self._jobs[host].values() for device in entry.devices}
        return sorted(set(view.offer.numbers) - taken)

    def stuck(self, host: str, after_s: float) -> int:
        """Return how many devices of `host` should have been given back `after_s` seconds ago."""
        offer = self.hosts[host].offer
        late = [e for e in self._jobs[host].values() if self.now_s - e.changed_s >= after_s]
        devices = {
            one for entry in late for one in (entry.devices if entry.ends else entry.leaving)
        }
        return len(devices if offer is None else devices.intersection(offer.numbers))

    def capacity(self, host: str, after_s: float) -> int:
        """Return how many slots of `host` a policy can count on."""
        offer = self.hosts[host].offer
        if offer is not None:
            return max(0, len(offer.numbers) - self.stuck(host, after_s))
        kept = (entry for entry in self._jobs[host].values() if not entry.ends)
        return sum(len(entry.devices) - len(entry.leaving) for entry in kept)

    # --- what is changed

    def give(self, host: str, job: str, run: str, count: int) -> None:
        """Assign up to `count` free devices of `host` to a run, the lowest numbers first."""
        devices = self.free(host)[:count]
        if devices and host not in self.blocked(job, run):
            entry = self._jobs[host].get(job, JobAssignment(run))
            both = tuple(sorted((*entry.devices, *devices)))
            self._put(host, job, replace(entry, devices=both))

    def reclaim(self, host: str, job: str, count: int, run: RunView) -> None:
        """Keep `count` devices of a run on a host, and mark all others as to be given back."""
        entry = self._jobs[host][job]
        assigned, busy = run.devices.get(host, ()), run.busy(host)
        offer = self.hosts[host].offer
        offered = entry.devices if offer is None else offer.numbers

        def rank(device: int) -> tuple[bool, bool, bool, int]:
            # Kept first are those that were not marked, then those assigned, then busy ones.
            marked = device in entry.leaving
            return marked, device not in assigned, device not in busy, device

        kept = sorted(set(entry.devices).intersection(offered), key=rank)[:count]
        leaving = tuple(sorted(set(entry.devices).difference(kept)))
        if leaving != entry.leaving:
            self._put(host, job, replace(entry, leaving=leaving))

    def release(self, host: str, job: str, run: RunView) -> None:
        """Take from a run the marked devices that it no longer uses."""
        entry = self._jobs[host][job]
        gone = {device for device in entry.leaving if not run.uses(host, device)}
        if gone:
            devices = tuple(device for device in entry.devices if device not in gone)
            leaving = tuple(device for device in entry.leaving if device not in gone)
            if devices:
                self._put(host, job, replace(entry, devices=devices, leaving=leaving))
            else:
                self._remove(host, job)

    def end(self, host: str, job: str) -> None:
        """Mark the run of `job` as to be ended by `host`; do nothing if it was marked before."""
        entry = self._jobs[host][job]
        if not entry.ends:
            # The record is written with a check of its version, so this is the next one.
            ends = self.hosts[host].version + 1
            self._put(host, job, replace(entry, ends=ends, idle_s=0.0))

    def release_ended(self, host: str, job: str) -> None:
        """Take all devices on `host` from a run of `job` that was told to end there."""
        if self.hosts[host].reports_end(job):
            self._remove(host, job)

    def ask(self, host: str, paths: Sequence[str]) -> None:
        if not set(paths) <= set(self._paths[host]):
            self._paths[host] = tuple(paths)

    def refuses(self, job: str, order: int) -> dict[str, HostFailure]:
        """Return, by host, why the job of that submission could not start there."""
        found = {host: failures.get(job) for host, failures in self._failures.items() if failures}
        return {host: one for host, one in found.items() if one and one.order == order}

    def fail(self, host: str, job: str, order: int, reason: str, blamed: bool) -> None:
        """Note that a job could not start on a host; `blamed`: that is the host's fault."""
        if host in self._failures:
            blamed = blamed or any(name != job for name in self._blamed(host))
            self._failures[host][job] = HostFailure(order, reason, self.now_s, blamed)

    def forgive(self, job: str) -> None:
        """Let a job have slots again where it could not start."""
        for failures in self._failures.values():
            failures.pop(job, None)

    def take_out(self, host: str) -> None:
        """Give no job slots of a host on which too many could not start; else do nothing."""
        blamed = self._blamed(host)
        if len(blamed) >= FAILED_JOBS and not self._out[host]:
            newest = max(blamed.values(), key=lambda one: one.at_s)
            self._out[host] = f"jobs {', '.join(sorted(blamed))} could not start: {newest.reason}"

    def _blamed(self, host: str) -> dict[str, HostFailure]:
        return {job: one for job, one in self._failures[host].items() if one.blamed}

    def note_idle(self, host: str, job: str, is_idle: bool) -> float:
        """Note whether a run keeps idle devices on a host; return since when, or 0."""
        entry = self._jobs[host][job]
        if is_idle != bool(entry.idle_s):
            idle_s = self.now_s if is_idle else 0.0
            self._jobs[host][job] = replace(entry, idle_s=idle_s)
        return self._jobs[host][job].idle_s

    def changed(self) -> dict[str, HostAssignment]:
        """Return the records `assigned` to write, by host: those that differ from what was read."""
        found = {}
        for name, host in self.hosts.items():
            silent_s = 0.0
            if host.offer is None and host.version >= 0:
                silent_s = self._silent_s[name] or self.now_s
            new = HostAssignment(
                self._jobs[name], silent_s, self._paths[name], self._failures[name], self._out[name]
            )
            if new != host.assigned:
                found[name] = new
        return found

    def _put(self, host: str, job: str, entry: JobAssignment) -> None:
        self._jobs[host][job] = replace(entry, changed_s=self.now_s)
        self._hosts_of.setdefault(job, set()).add(host)

    def _remove(self, host: str, job: str) -> None:
        del self._jobs[host][job]
        self._hosts_of[job].remove(host)
