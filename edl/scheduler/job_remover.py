"""Remove the ended jobs of a cluster that are not kept, with the nodes of their last runs.

The code of a job may have written anything into the nodes of its run, so the removal of one may
fail, each time, or take many turns. The removal of others must not wait for that.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from edl.coordination.cluster.job_reader import StoredJob
from edl.errors import LeadershipLost, NotRemovable
from edl.scheduler.runs import RunWriter

logger = logging.getLogger(__name__)

REMOVALS_S = 1.0  # of one turn, to remove jobs: something else may be urgent meanwhile
REST_S = 60.0  # before edl tries again what ZooKeeper's administrator has to do


class JobRemover:
    """Removes ended jobs during one term of a cluster's leader, each turn for a limited time."""

    def __init__(
        self,
        runs: RunWriter,
        remove_record: Callable[[StoredJob], object],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._remove_record = remove_record
        self._say = say
        self._clock = clock
        self._failed_s: dict[str, float] = {}  # job -> when its run was not removed last
        self._stuck: dict[str, str] = {}  # job -> why an administrator has to remove its run

    def remove(
        self, jobs: Sequence[StoredJob], secrets: Mapping[str, str], unread: Collection[str]
    ) -> None:
        """Remove jobs, one after another, for `REMOVALS_S` (1 s); the next call goes on."""
        deadline_s = self._clock() + REMOVALS_S
        names = {job.name for job in jobs}
        self._failed_s = {name: at for name, at in self._failed_s.items() if name in names}
        self._stuck = {name: why for name, why in self._stuck.items() if name in names}
        for job in sorted(jobs, key=lambda one: self._failed_s.get(one.name, -math.inf)):
            if self._clock() >= deadline_s:
                return
            if job.name in unread or self._rests(job.name):
                continue
            secret = secrets.get(job.name)
            # without one it was never started
            if secret is None or self._removes_run(job.name, secret):
                self._remove_record(job)
            else:
                self._failed_s[job.name] = self._clock()

    def _rests(self, job: str) -> bool:
        return job in self._stuck and self._clock() - self._failed_s[job] < REST_S

    def _removes_run(self, job: str, secret: str) -> bool:
        """Remove the nodes of the last run of `job`; return whether they are gone."""
        try:
            removed = self._runs.remove(job, secret)
            self._stuck.pop(job, None)
            return removed
        except LeadershipLost:
            raise
        except NotRemovable as error:
            if self._stuck.get(job) != str(error):
                self._say(str(error))
            self._stuck[job] = str(error)
        except Exception:  # whatever the job's code has written
            logger.info("cannot remove the last run of job %s", job, exc_info=True)
        return False
