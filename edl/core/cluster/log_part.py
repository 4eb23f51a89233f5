"""Define how `edl host` says which part of a log it has sent."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.record import Record

LOGS_PATH = "/logs"
PART_BYTES = 1 << 20  # of a log in one answer, at most


@dataclass(frozen=True)
class LogPart(Record):
    """The place in a log where the part that was sent ends, and the next part begins."""

    file: int  # the number (inode) of the file that the part is of
    next: int  # the offset in the file, in bytes, of the first byte after the part
    # whether what was asked for is gone, so that there is a gap before the part
    missed: bool = False
