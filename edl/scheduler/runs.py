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
    """The writer of the runs of a cluster's jobs, during one term of the leader.

    Args:
        session_of: Returns the session in which a job is written, by its name. All its transactions
            are fenced by the term (:class:`edl.coordination.fenced_session.FencedSession`).

    Attributes:
        count: How many runs the cluster has; each new one writes its status the less often.
    """

    def __init__(self, session_of: Callable[[str], Session]) -> None:
        self.count = 0
        self._session_of = session_of

    def carry_out(
        self, order: Order, job: StoredJob, secret: str, last: RunRecords | None = None
    ) -> str:
        """Do what an order says, as :mod:`edl.core.cluster.orders` defines it.

        Args:
            order: What to do.
            job: The job, as the cluster has it.
            secret: The secret of the job's runs.
            last: The records of the run that the job's node has now; None: it has none.

        Returns:
            Why the order was refused; empty if it was carried out. Nothing was written then, except
            that of the last run a part may have been removed, if it has very many nodes.

        Raises:
            LeadershipLost: the term is over; nothing was written.
            CoordinationError: ZooKeeper is away; it may have been carried out or not.
        """
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
        """Remove the nodes of the last run of a job; return whether they are gone.

        They stay if the run is not over, or if processes of it have not left. No port is asked for
        a process, and of very many nodes a part is removed, and the next call goes on: the job's
        code may have written any addresses and nodes, which would hold up the leader. If the name
        is a stranger's, whose root node the secret does not open, no nodes of the run are left.

        Raises:
            NotRemovable: only ZooKeeper's administrator can remove a node that the job's code has
                made; the same call again does not help.
            LeadershipLost: the term is over.
            CoordinationError: ZooKeeper is away.
        """
        session, access, paths = self._session_of(job), Access(job, secret), JobPaths(job)
        session.identify(access)
        try:
            delete_ended(session, paths, trusted=False)
        except (AccessDenied, NotRemovable) as error:
            if not unlock(session, [access]):
                return True
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
        """Write the records of a new run of a job, which its agents then join; return "".

        Args:
            session: the session of the job.
            order: the token of the run, its devices by host and its global batch.
            job: the job as the cluster has it, with its manifest.
            last: the records of the run that the job's node has now; the new run may continue from
                its checkpoint. None: there is none.
        """
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
        """Write the devices and the global batch that a run is to use from now on.

        Args:
            session: the session of the job.
            order: the run, its new devices by host, and the version of the record that they
                replace.

        Returns:
            Why the order was refused, with nothing written: others have changed the record
            meanwhile. "" if it was written.
        """
        nodes = JobNodes(session, order.job)
        nodes.belong_to(order.run)
        why = order.reason or "the cluster gives it other slots"
        if place_run(nodes, order.devices, order.version, why, order.batch or 0):
            return ""
        return f"the slots of job {order.job} were changed by others"

    def _stop(self, session: Session, order: StopRun) -> str:
        """Write into the record of a run that it is to stop, or that it has stopped; return "".

        The run becomes STOPPING, to save a checkpoint, if the order says so and an agent or worker
        of it is registered; else it becomes STOPPED at once. If the job's node has another run or
        none, nothing is written.
        """
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
        """Return whether an agent or a worker of the job is registered in ZooKeeper.

        Workers can save a last checkpoint when the job is told to stop, and agents can end it.
        """
        p = store.paths
        return any(store.nodes.read(children(p.hosts), children(p.members)))
