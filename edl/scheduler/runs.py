"""Carry out what the plan of a cluster orders of the runs of its jobs.

A run is an ordinary edl job, whose nodes only its secret opens. So a session that writes runs
proves the secrets of jobs, one after another, and no node of the cluster may be created in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from edl.coordination.access import Access
from edl.coordination.cluster.job_reader import StoredJob
from edl.coordination.desired import place_run
from edl.coordination.job_store import JobStore
from edl.coordination.lifecycle import create_job, delete_ended, unlock
from edl.coordination.nodes import JobNodes
from edl.coordination.paths import JobPaths
from edl.coordination.reads import children
from edl.coordination.session import Session
from edl.core.cluster.orders import CreateRun, Order, PlaceRun, StopRun
from edl.core.cluster.run_records import RunRecords, resume_setting, status_period_s
from edl.core.records import NO_POLICY, Assigned, Job, JobState
from edl.errors import AccessDenied, NotRemovable, PartlyRemoved, UnknownJob, UsageError

logger = logging.getLogger(__name__)


class RunWriter:
    """The writer of the runs of a cluster's jobs, during one term of the leader."""

    def __init__(self, session_of: Callable[[str], Session]) -> None:
        # how many runs the cluster has; each new one writes its status the less often
        self.count = 0
        self._session_of = session_of

    def carry_out(
        self, order: Order, job: StoredJob, secret: str, last: RunRecords | None = None
    ) -> str:
        """Do what an order says (`orders`); return why it was refused, empty if it was not."""
        session = self._session_of(order.job)
        session.identify(Access(order.job, secret))
        try:
            if isinstance(order, CreateRun):
                return self._create(session, order, job, last)
            if isinstance(order, PlaceRun):
                return self._place(session, order)
            return self._stop(session, order)
        except (UsageError, PartlyRemoved, NotRemovable) as error:
            return str(error)

    def remove(self, job: str, secret: str) -> bool:
        """Remove the nodes of the last run of a job; return whether they are gone."""
        session, access, paths = self._session_of(job), Access(job, secret), JobPaths(job)
        session.identify(access)
        try:
            # The job's code may have written any addresses and nodes, which would hold up the
            # leader: no port is asked for a process, and of very many nodes a part is removed.
            delete_ended(session, paths, trusted=False)
        except (AccessDenied, NotRemovable) as error:
            if not unlock(session, [access]):
                return True  # a stranger has the name: no nodes of the run are left
            if isinstance(error, NotRemovable):
                raise
            why = "has an ACL by which the job's secret does not open it"
            raise NotRemovable(job, paths.root, why) from error
        except (UsageError, PartlyRemoved) as error:
            logger.info("%s", error)
            return False
        return True

    def _create(
        self, session: Session, order: CreateRun, job: StoredJob, last: RunRecords | None
    ) -> str:
        """Write the records of a new run of a job, which its agents then join; return ""."""
        hosts = {host: len(devices) for host, devices in order.devices.items()}
        spec = job.manifest.job_spec(resume_setting(job.manifest, job.order, last))
        settings = spec.settings
        period_s = status_period_s(settings.status_period_s, self.count)
        settings = replace(settings, status_period_s=period_s)
        spec = replace(spec, np=sum(hosts.values()), settings=settings)
        record = Job(name=order.job, spec=spec, created=time.time(), reserved=True)
        assigned, batch = Assigned(hosts, devices=order.devices), order.batch or 0
        paths = JobPaths(order.job)
        create_job(session, paths, record, assigned, NO_POLICY, order.run, batch, trusted=False)
        return ""

    @staticmethod
    def _place(session: Session, order: PlaceRun) -> str:
        """Write the devices and the global batch that a run is to use from now on."""
        nodes = JobNodes(session, order.job)
        nodes.belong_to(order.run)
        why = order.reason or "the cluster gives it other slots"
        if place_run(nodes, order.devices, order.version, why, order.batch or 0):
            return ""
        return f"the slots of job {order.job} were changed by others"

    def _stop(self, session: Session, order: StopRun) -> str:
        """Write into the record of a run that it is to stop, or that it has stopped; return ""."""
        store = JobStore(session, order.job)
        store.nodes.belong_to(order.run)
        try:
            if order.checkpoint and self._has_processes(store):
                store.set_job_state(JobState.STOPPING, order.reason)
            else:
                states = (JobState.RUNNING, JobState.STOPPING)
                store.set_job_state(JobState.STOPPED, order.reason, only_from=states)
        except UnknownJob as error:
            logger.info("%s", error)  # another run has its name, or none
        return ""

    @staticmethod
    def _has_processes(store: JobStore) -> bool:
        p = store.paths
        return any(store.nodes.read(children(p.hosts), children(p.members)))
