"""Decide when repairs of a job's rings are in vain: :class:`RepairCount`.

A repair helps if a worker has died, for the next ring lacks that worker. If the same workers break
ring after ring at the same point of the training, a collective of the script fails in each of them,
or the network between two of the workers is cut.
"""

from __future__ import annotations

MOST_REPAIRS = 10  # in a row, of the same workers at the same point of the training
SCRIPT = "look for a collective of the script that fails in each ring, as in a reset callback"
NETWORK = "look for what keeps these workers from connecting to each other"


class RepairCount:
    """The repairs in a row that one worker has seen without a death and without progress."""

    def __init__(self, cut_limit_s: float) -> None:
        # So long rings that cannot be built are repaired, however often: a network may come back.
        self._cut_limit_s = cut_limit_s
        self._last: object = None
        self._count = 0
        self._since_s = 0.0  # when the first of these was

    def why_in_vain(
        self,
        workers: tuple[int, ...],
        progress: tuple[int, int, int],  # steps, exchanges and leaves
        is_built: bool,  # the ring that broke had been built
        why: str,
        now_s: float,
    ) -> str:
        """Count one more repair; return why the job is to end instead, or "" if it is to go on."""
        if (workers, progress) != self._last:
            self._last, self._count, self._since_s = (workers, progress), 0, now_s
        self._count += 1
        may_come_back = not is_built and now_s - self._since_s < self._cut_limit_s
        if self._count <= MOST_REPAIRS or may_come_back:
            return ""
        hint = SCRIPT if is_built else NETWORK
        return (
            f"the ring was repaired {self._count - 1} times after step {progress[0]} and broke "
            f"again each time, although no worker was lost: {why}; {hint}"
        )
