"""Describe one full disk by all that could not be written to it: checkpoints and logs.

Each try to write a checkpoint, and each worker whose log cannot be written, logs an event of its
own. :class:`FullDisk` brings those of one disk together, so that the page tells of it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from edl.core.dashboard.tense import tenses
from edl.core.plural import counted, verb
from edl.core.record import Record

CANNOT = tenses("cannot", "could not")
FULL = "No space left on device"  # as the system says it, in reasons of events
MOST_NAMES = 4  # workers, hosts or directories that are named one by one


def is_full(reason: str) -> bool:
    """Return whether the `reason` of an event says that a disk is full."""
    return FULL in reason


def folder_of(reason: str) -> str:
    """Return the directory of the path at the end of a `reason`; empty: it has no path."""
    return reason.partition(FULL)[2].strip(": ").rpartition("/")[0]


@dataclass(frozen=True)
class FullDisk(Record):
    """A disk without space, with what could not be written to it."""

    disk: str  # where it is mounted, or a directory on it
    hosts: tuple[str, ...] = ()  # the hosts that could not write to it, as far as they are known
    folders: tuple[str, ...] = ()  # the directories that they could not write to
    logs: tuple[str, ...] = ()  # the workers whose logs could not be written
    checkpoints: int = 0  # the number of checkpoints that could not be written
    first_step: int = -1
    last_step: int = -1
    # the step of the newest checkpoint that was written before; -1: not known
    newest_step: int = -1
    resumed: tuple[str, ...] = ()  # the workers that write their logs again
    lost_bytes: int = 0  # the bytes of output that are missing in their logs
    saved_step: int = -1  # the step of the next checkpoint that was written; -1: none was

    def seen(self, host: str, folder: str) -> Self:
        """Return the record with one more host and directory; empty ones are left out."""
        return replace(
            self, hosts=_with(self.hosts, host), folders=_with(self.folders, folder), saved_step=-1
        )

    def with_log(self, worker: str) -> Self:
        """Return the record with a worker whose log could not be written."""
        return replace(self, logs=_with(self.logs, worker))

    def with_checkpoint(self, step: int, saved: Sequence[int]) -> Self:
        """Return the record with one more checkpoint that was not written."""
        first = step if self.first_step < 0 else self.first_step
        newest = max(saved, default=-1)
        return replace(
            self,
            checkpoints=self.checkpoints + 1,
            first_step=first,
            last_step=step,
            newest_step=newest,
        )

    def with_resumed(self, worker: str, lost_bytes: int) -> Self:
        """Return the record with a worker that writes its log again, without `lost_bytes`."""
        resumed = _with(self.resumed, worker)
        return replace(self, resumed=resumed, lost_bytes=self.lost_bytes + lost_bytes)

    @property
    def what(self) -> str:
        """The clause that says which disk is full, and what was not written."""
        missing = []
        if self.checkpoints == 1:
            missing.append(f"the checkpoint of step {self.first_step:,} was not written")
        elif self.checkpoints:
            missing.append(
                f"{self.checkpoints} checkpoints were not written, from step "
                f"{self.first_step:,} to step {self.last_step:,}"
            )
        if self.logs:
            what = verb(len(self.logs), "its log", "their logs")
            missing.append(f"{listed(self.logs)} {CANNOT} write {what}")
        hosts = f" of {verb(len(self.hosts), 'host', 'hosts')} {listed(self.hosts)}"
        of_hosts = hosts if self.hosts else ""
        full = f"{tenses('is', 'was')} full"
        return f"the disk at {self.disk}{of_hosts} {full}: {'; '.join(missing)}"

    @property
    def why(self) -> str:
        """The sentences that quote the system's error and say what edl does not know."""
        writes = f" when edl {tenses('writes', 'wrote')} to {listed(self.folders)}"
        return (
            f"The system {tenses('says', 'said')} `{FULL}`{writes if self.folders else ''}. What "
            f"{tenses('has', 'had')} filled the disk, edl does not know. Training "
            f"{tenses('goes', 'went')} on without what could not be written."
        )

    @property
    def advice(self) -> str:
        """The sentences that say where to free space, and what then goes on by itself."""
        on = f" on {verb(len(self.hosts), 'host', 'hosts')} {listed(self.hosts)}"
        then = []
        if self.checkpoints:
            back = (
                f"the job goes back to step {self.newest_step:,} if all workers are lost"
                if self.newest_step >= 0
                else "only those from before can be resumed from"
            )
            then.append(f"edl tries the next checkpoint by itself; until one is written, {back}.")
        if self.logs:
            then.append("Logs go on by themselves; what was printed meanwhile is lost.")
        return (
            f"Free space there{on if self.hosts else ''}: `df -h {self.disk}` shows the disk, "
            f"`du -xh --max-depth=2 {self.disk}` what fills it. {' '.join(then)}"
        )

    @property
    def followed(self) -> tuple[str, ...]:
        """The sentences that say which writes have succeeded since; empty if none has."""
        found = []
        if self.saved_step >= 0:
            found.append(f"The checkpoint of step {self.saved_step:,} was written.")
        if self.resumed:
            wrote = f"wrote {verb(len(self.resumed), 'its log', 'their logs')} again"
            lost = counted(self.lost_bytes, "byte", groups=True)
            were = verb(self.lost_bytes, "was", "were")
            found.append(f"{listed(self.resumed)} {wrote}; {lost} of output {were} lost.")
        return tuple(found)


def listed(names: Sequence[str]) -> str:
    """Return `names` as a list in words, of which at most four are named."""
    shown = list(names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        shown.append(f"{len(names) - MOST_NAMES} more")
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if not name or name in names else tuple(sorted((*names, name)))
