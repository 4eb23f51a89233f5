"""What a worker reports of a ring that broke: whether it counts, and what Horovod says, in short.

The error is the text of Horovod and Gloo, a line of C++ with the path of a source file in front.
It names the neighbour that it was about by its address only, so a rank can be told from it where
no other member of the ring has that address. It is a hint for people: who is dead is decided by
proof (:mod:`edl.core.job.liveness`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from edl.core.records import Generation, Member, RingMember

MAX_CHARS = 200
_SOURCE = re.compile(r"\[[^\]\s]*\.(?:cc|h):\d+\]\s*")
# What Horovod tells every worker of a ring that somebody has left, in 300 characters.
_SHUT_DOWN = "Horovod has been shut down. "
_ADDRESS = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+")


def short_error(text: str) -> str:
    """The first line of ``text`` without source files, at most ``MAX_CHARS`` long."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    line = "another worker has left it" if line.startswith(_SHUT_DOWN) else _SOURCE.sub("", line)
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def blamed_rank(text: str, members: Sequence[RingMember], own_rank: int) -> int | None:
    """The rank of the only other member with an address that ``text`` names; None: it is not clear.

    ``members``: of the ring that broke, in rank order.
    """
    named = set(_ADDRESS.findall(text))
    ranks = [rank for rank, s in enumerate(members) if rank != own_rank and s.address in named]
    return ranks[0] if len(ranks) == 1 else None


def broke(member: Member | None, current: Generation) -> bool:
    """Whether a member reports a broken ring and ``current`` was decided without that report."""
    if member is None or member.broken is None:
        return False
    if member.broken.generation >= current.number:
        return True
    return bool(current.previous) and 0 < member.generation <= member.broken.generation
