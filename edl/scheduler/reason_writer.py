"""Write why each job of a cluster has its slots, or waits, into ZooKeeper, for people and programs.

:class:`ReasonWriter` does it, for the leader of the cluster. The sentences are in the cluster's
node ``reasons``, from which `edl list` and `edl show` read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edl.coordination.cluster.writer import ClusterWriter, byte_count, reasons_write
from edl.coordination.election import Write
from edl.core.cluster.job_life import JobLife, LifeState
from edl.core.cluster.records import JobReasons

EVERY_S = 1.0  # the shortest time between two writes
MOST_CHARACTERS = 300  # of a reason; they are cut shorter if the record would be too large
MOST_BYTES = 500_000  # of the record: ZooKeeper takes 1 MB


class ReasonWriter:
    """A writer of the leader's reasons for each job, during one term; call :meth:`tell`.

    It remembers what it has written last, so that equal reasons are not written again.

    Args:
        writer: writes the records of the cluster in this term.
    """

    def __init__(self, writer: ClusterWriter) -> None:
        self._writer = writer
        self._told: tuple[Mapping[str, str], Mapping[str, int]] | None = None
        self._at_s = 0.0

    def tell(
        self,
        reasons: Mapping[str, str],
        lives: Mapping[str, JobLife],
        now_s: float,
        surplus: Mapping[str, int] = MappingProxyType({}),
    ) -> float:
        """Write ``reasons`` if readers do not have them, but not within a second of the last write.

        Args:
            reasons: job -> why it has what it has, in a sentence; those of ended jobs are left out.
            lives: job -> its record.
            now_s: when the plan was made that they are from, in seconds since 1970.
            surplus: job -> how many of its slots are beyond the quota of its queue.

        Returns:
            In how many seconds to call this again; infinite if readers have these reasons.

        Raises:
            LeadershipLost: the term is over.
            CoordinationError: ZooKeeper is away.
        """
        living = {job: life for job, life in lives.items() if life.state is not LifeState.ENDED}
        cut = {job: why[:MOST_CHARACTERS] for job, why in reasons.items() if job in living}
        newest_s = max((life.since_s for life in living.values()), default=0.0)
        told = (cut, dict(surplus))
        if told == self._told and newest_s <= self._at_s:
            return float("inf")
        if 0.0 <= now_s - self._at_s < EVERY_S:
            return self._at_s + EVERY_S - now_s
        self._writer.commit([self._write(now_s, cut, surplus)])
        self._told, self._at_s = told, now_s
        return float("inf")

    def _write(self, now_s: float, reasons: Mapping[str, str], surplus: Mapping[str, int]) -> Write:
        """Return the write of ``reasons``, cut so short that ZooKeeper takes them."""
        characters = MOST_CHARACTERS
        while True:
            found = reasons_write(self._writer.paths, JobReasons(now_s, reasons, dict(surplus)))
            if byte_count([found]) <= MOST_BYTES or not characters:
                return found
            characters //= 2
            reasons = {job: why[:characters] for job, why in reasons.items()}
