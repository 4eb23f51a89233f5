"""Interpret a worker's report of a broken ring: whether it counts, and what Horovod's error says.

:func:`broke` and :func:`is_broken` are for the leader; :func:`short_error` and :func:`blamed_rank`
are for messages.

The error is the text of Horovod and Gloo, a line of C++ with the path of a source file in front. It
names the failed neighbour by its address only, so the neighbour's rank can be told only if no other
member of the ring has that address. The rank is a hint for people: whether a worker is dead is
decided by proof (:mod:`edl.job.liveness`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edl.job.snapshot import Snapshot
from edl.records import Generation, Member, RingMember

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
    """Return the rank of the only other member whose address an error names; None: not one."""
    named = set(_ADDRESS.findall(text))
    ranks = [rank for rank, s in enumerate(members) if rank != own_rank and s.address in named]
    return ranks[0] if len(ranks) == 1 else None


def broke(member: Member | None, current: Generation) -> bool:
    """Return whether a worker reports a broken ring that no generation has repaired yet."""
    if member is None or member.broken is None:
        return False
    if member.broken.generation >= current.number:
        return True
    # A planned generation that was decided while the ring broke has not repaired it.
    return bool(current.previous) and 0 < member.generation <= member.broken.generation


def let_go(now: Snapshot) -> set[int]:
    """Return the ids of the newcomers that have left the ring as its other members have agreed."""
    current = now.generation
    broken = [m.broken for m in now.members if current and broke(m, current)]
    return {worker for report in broken if report is not None for worker in report.gone}


def is_broken(now: Snapshot) -> bool:
    """Return whether any member of the ring reports a failure that no generation has repaired."""
    current = now.generation
    # An evicted worker that was cut off may be back for a moment, with the report of an old ring.
    reported = {member.id: member for member in now.members if member.id not in now.evicted}
    return current is not None and any(broke(reported.get(m.id), current) for m in now.ring)
