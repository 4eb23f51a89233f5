"""Write why each job of a cluster has its slots, or waits, into ZooKeeper, for people and programs.

:class:`ReasonWriter` does it, for the leader of the cluster. The sentences are in the cluster's
node ``reasons``, from which `edl list` and `edl show` read them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edl.cluster.lifecycle import JobLifecycle, LifeState
from edl.cluster.records import JobReasons
from edl.cluster.writer import ClusterWriter, byte_count, reasons_write
from edl.zookeeper.election import Write

EVERY_S = 1.0  # the shortest time between two writes
MAX_CHARACTERS = 300  # of a reason; they are cut shorter if the record would be too large
MAX_BYTES = 500_000  # of the record: ZooKeeper takes 1 MB


def cut_reasons(reasons: Mapping[str, str], characters: int = MAX_CHARACTERS) -> Mapping[str, str]:
    """Return the beginning of each of `reasons`, by job, with at most so many `characters`."""
    return {job: why[:characters] for job, why in reasons.items()}


def fitting_write(write: Callable[[Mapping[str, str]], Write], reasons: Mapping[str, str]) -> Write:
    """Return the write of a record with `reasons`, cut so short that ZooKeeper takes them."""
    characters = MAX_CHARACTERS
    while True:
        found = write(cut_reasons(reasons, characters))
        if byte_count([found]) <= MAX_BYTES or not characters:
            return found
        characters //= 2


class ReasonWriter:
    """A writer of the leader's reasons for each job, during one term; call `tell`."""

    def __init__(self, writer: ClusterWriter) -> None:
        self._writer = writer
        self._told: tuple[Mapping[str, str], Mapping[str, int]] | None = None
        self._at_s = 0.0

    def tell(
        self,
        reasons: Mapping[str, str],
        lives: Mapping[str, JobLifecycle],
        now_s: float,
        surplus: Mapping[str, int] = MappingProxyType({}),
    ) -> float:
        """Write `reasons` unless readers have them; return after how many seconds to call again."""
        living = {job: life for job, life in lives.items() if life.state is not LifeState.ENDED}
        cut = cut_reasons({job: why for job, why in reasons.items() if job in living})
        newest_s = max((life.since_s for life in living.values()), default=0.0)
        told = (cut, dict(surplus))
        if told == self._told and newest_s <= self._at_s:
            return float("inf")
        if 0.0 <= now_s - self._at_s < EVERY_S:
            return self._at_s + EVERY_S - now_s
        paths = self._writer.paths

        def write(fitting: Mapping[str, str]) -> Write:
            return reasons_write(paths, JobReasons(now_s, fitting, dict(surplus)))

        self._writer.commit([fitting_write(write, cut)])
        self._told, self._at_s = told, now_s
        return float("inf")
