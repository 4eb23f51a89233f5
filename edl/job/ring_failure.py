"""Interpret how a ring broke, for messages, and decide when it is in vain to repair it again.

Horovod's error is a line of C++ that names the failed neighbour by its address only, so its rank is
a hint for people: whether a worker is dead is decided by proof (:mod:`edl.job.liveness`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edl.records import RingMember

MAX_CHARS = 200
_SOURCE = re.compile(r"\[[^\]\s]*\.(?:cc|h):\d+\]\s*")
# Horovod's error on each worker of a ring that another worker has left, in 300 characters.
_SHUT_DOWN = "Horovod has been shut down. "
_ADDRESS = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+")


def short_error(text: str) -> str:
    """Return the first line of an error, without the names of source files, cut to `MAX_CHARS`."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = "another worker has left it" if line.startswith(_SHUT_DOWN) else _SOURCE.sub("", line)
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def blamed_rank(text: str, members: Sequence[RingMember], own_rank: int) -> int | None:
    named = set(_ADDRESS.findall(text))
    ranks = [rank for rank, s in enumerate(members) if rank != own_rank and s.address in named]
    return ranks[0] if len(ranks) == 1 else None


# ------------------------------------------------------------
# A repair helps if a worker has died, for the next ring lacks that worker. If the same workers
# break ring after ring at the same point, a collective of the script fails in each of them, or the
# network between two of the workers is cut.


MAX_REPAIRS = 10  # in a row, of the same workers at the same point of the training


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
        reason: str,
        now_s: float,
    ) -> str:
        """Count one more repair; return why the job is to end instead, or "" if it is to go on."""
        if (workers, progress) != self._last:
            self._last, self._count, self._since_s = (workers, progress), 0, now_s
        self._count += 1
        may_come_back = not is_built and now_s - self._since_s < self._cut_limit_s
        if self._count <= MAX_REPAIRS or may_come_back:
            return ""
        hint = "look for what keeps these workers from connecting to each other"
        if is_built:
            hint = "look for a collective of the script that fails in each ring, "
            hint += "as in a reset callback"
        return (
            f"the ring was repaired {self._count - 1} times after step {progress[0]} and broke "
            f"again each time, although no worker was lost: {reason}; {hint}"
        )
