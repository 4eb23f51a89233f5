"""Hold, in a :class:`Draft`, what one call of the plan of a cluster has decided so far."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from edl.core.cluster.devices import DeviceTable
from edl.core.cluster.job_life import JobLife, LifeEvent, LifeResult, LifeState
from edl.core.cluster.life_events import UNSAVED, RunHosts
from edl.core.cluster.orders import Order
from edl.core.cluster.times_ahead import allocation_by, life_by
from edl.core.cluster.view import ClusterView, JobView
from edl.core.duration import duration_in_words
from edl.core.plural import counted
from edl.core.records import JobState


@dataclass(frozen=True)
class JobChange:
    """A change of a job's state, for the log of events."""

    job: str  # the name of the job
    event: LifeEvent  # what happened to the job, so that its state changed
    before: LifeState
    after: LifeState
    reason: str  # why, in a sentence


class Draft:
    """The draft of a plan: the lives, devices and orders that are decided so far."""

    def __init__(self, cluster: ClusterView, now_s: float) -> None:
        self.cluster, self.now_s = cluster, now_s
        self.settings = cluster.settings
        # the devices of each host, and the job and run that has each
        self.table = DeviceTable(cluster.hosts, now_s)
        # those that have been without an offer for too long
        self.lost = frozenset(
            host.name for host in cluster.hosts if host.is_lost(now_s, self.settings.lost_after_s)
        )
        # the jobs by name, with the lives that they will have
        self.jobs: dict[str, JobView] = {job.name: job for job in cluster.jobs}
        for job in cluster.jobs:
            life = life_by(now_s, job.life, self.settings.limit_s)
            if life is not job.life:
                self.live_on(job, life)
        # the policy's decision that holds now
        self.allocation = allocation_by(now_s, cluster.allocation)
        # name of a job -> why it waits, as a sentence, where that is not the policy's reason
        self.waits: dict[str, str] = {}
        # the orders to runs (to begin, change their devices, stop), in the order of their making
        self.orders: list[Order] = []
        self.changes: list[JobChange] = []  # the changes of jobs' states, in their order
        # times at which the controller is to plan again even if nothing has changed, in seconds
        # since 1970
        self.times_s: list[float] = []

    def live_on(self, job: JobView, life: JobLife) -> None:
        """Replace the life of `job` in `jobs` by `life`, which has the same state."""
        self.jobs[job.name] = replace(job, life=life)

    def change(self, job: JobView, event: LifeEvent, life: JobLife) -> None:
        """Replace the life of `job` by `life`, and note the change of its state in `changes`."""
        change = JobChange(job.name, event, job.life.state, life.state, life.reason)
        self.changes.append(change)
        self.live_on(job, life)

    def stop(self, job: JobView, reason: str) -> None:
        """Begin to stop the run of `job`: give it the life after the event `STOP`."""
        if job.saves_nothing:
            trained = duration_in_words(max(0.0, self.now_s - job.life.since_s))
            steps = counted(job.measured.done_steps, "step")
            reason += f"{UNSAVED}, and loses {steps} ({trained} of training)"
        self.change(job, LifeEvent.STOP, job.life.after(LifeEvent.STOP, reason, self.now_s))

    def facts(self, job: JobView) -> RunHosts:
        """Return what hosts and agents say of the run of `job`: slots, lost hosts, processes."""
        slots, lost, lives = 0, [], False
        refusals: dict[str, str] = {}
        useless: dict[str, str] = {}
        run, usable = job.present_run, 0
        is_dead = run is not None and not run.agents
        for host, entry in self.table.of_job(job.name).items():
            if entry.run != job.life.run:
                continue
            if host in self.lost:
                lost.append(host)
            else:
                slots += 0 if entry.ends else len(entry.devices)
                view = self.cluster.host_named[host]
                lives = lives or not view.reports_end(job.name)
                is_dead = is_dead and view.reports_none(job.name)
                if not entry.ends and (why := view.refusal(job.name, entry.run)):
                    refusals[host] = why
                agent = run.agents.get(host) if run is not None else None
                if agent is not None and agent.is_useless(len(entry.devices)):
                    useless[host] = agent.why
                    usable -= len(entry.devices)
        if slots + usable < job.min_slots:  # else its ring begins on the other hosts
            refusals |= useless
        tried = bool(self.table.refuses(job.name, job.order))
        others = self._has_others(job, refusals)
        before = self._lost_before(job)
        lost_hosts = tuple(sorted(lost))
        return RunHosts(slots, lost_hosts, lives, is_dead, refusals, before, others, tried)

    def _lost_before(self, job: JobView) -> str:
        """Return which job of `after` will never finish, and why, as a sentence; else empty."""
        if job.manifest.after_failed != "end" or job.life.started_s:
            return ""
        for name in job.manifest.after:
            first = self.jobs.get(name)
            if first is not None and first.life.result in (LifeResult.FAILED, LifeResult.DELETED):
                why = f"job {name}, which was to finish first (after), {first.life.result.phrase}"
                return f"{why}: {first.life.reason}"
        return ""

    def _has_others(self, job: JobView, refusals: Collection[str]) -> bool:
        """Return whether a start of `job` has failed, and other hosts have room for it."""
        run = job.present_run
        failed = run is not None and run.state is JobState.FAILED
        if job.life.state is not LifeState.STARTING or not (failed or refusals):
            return False
        used = refusals or self.table.entries(job.name, job.life.run)
        used = {*used, *self.table.refuses(job.name, job.order)}
        room = sum(
            len(host.offer.numbers)
            for host in self.cluster.hosts
            if host.offer is not None
            and host.takes_slots
            and host.name not in used
            and not self.cluster.is_closed_to(host.name, job.name)
            and job.manifest.labels.items() <= host.offer.labels.items()
        )
        return room >= job.min_slots

    def target(self, job: JobView) -> Mapping[str, int]:
        """Return how many slots the policy gives `job` on each host; empty if it gives none."""
        return self.allocation.targets.get(job.name, {})

    def why(self, job: JobView) -> str:
        """Return the policy's reason for the slots of `job`; empty if it has given none."""
        return self.allocation.reasons.get(job.name, "")

    def is_late_to_stop(self, job: JobView) -> bool:
        """Return whether `job` has been stopping for `halt_timeout_s` (a setting) or longer."""
        late = self.now_s - job.life.since_s >= self.settings.halt_timeout_s
        return job.life.state is LifeState.HALTING and late
