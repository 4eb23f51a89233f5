"""Let a job borrow idle slots of a host, as requested by a file and by SIGRTMIN.

The program that owns the slots writes the file. It has the number of slots of this host that the
job borrows, and optionally the time in seconds in which slots that are given back must be free:
"2", or "0 20". A missing file means 0. SIGRTMIN takes back all borrowed slots of this host.

The agent has one :class:`BorrowedSlots`, enters :meth:`BorrowedSlots.signals` while it runs, and
calls :meth:`BorrowedSlots.follow` and :meth:`BorrowedSlots.record_returned` in each turn.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from edl.coordination.job_store import JobStore
from edl.core.duration import seconds
from edl.core.excerpt import excerpt
from edl.core.host.supervision import SupervisorState
from edl.core.job.borrowing import (
    NO_LEASE_TERMS,
    LeaseTerms,
    borrow,
    borrowed_after,
    reclaim,
    returned,
)
from edl.core.job.placement import Placement
from edl.core.plural import counted
from edl.core.records import JobState, RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import UsageError
from edl.launch.signals import handled

LOOK_S = 0.5  # between two looks into the file


class BorrowedSlots:
    """The part of an agent that lets its job borrow slots of `host`, as a file and SIGRTMIN say."""

    def __init__(
        self,
        store: JobStore,
        host: str,
        file: Path | None,
        within_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._host = host
        self._file = file
        self._within_s = within_s
        self._say = say
        self._slots: int | None = None  # as the file had it when it was last followed
        self._looked_s = 0.0
        self._signalled = False

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Return a context manager; while it is entered, SIGRTMIN takes back all borrowed slots."""
        with handled([signal.SIGRTMIN], self._on_signal):
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def follow(self, snapshot: Snapshot) -> bool:
        """Borrow or give back slots as the file or SIGRTMIN has requested since the last call."""
        if snapshot.job.state is not JobState.RUNNING:
            return False
        # SIGRTMIN comes first, then a changed number in the file; another time limit changes
        # nothing.
        if self._signalled:
            changed = self._set(snapshot, 0, self._within_s, "SIGRTMIN")
            self._signalled = False  # after that: ZooKeeper may have gone away
            return changed
        said = self._read()
        if said is None or said[0] == self._slots:
            return False
        changed = self._set(snapshot, *said, f"{self._file}")
        self._slots = said[0]
        return changed

    def record_returned(self, snapshot: Snapshot, own: SupervisorState) -> bool:
        """Record each request to give back slots of this host that is now fulfilled."""
        members = {member.id for member in snapshot.members}
        # A process that is not registered still occupies its slot.
        hidden = sum(process.worker not in members for process in own.living)
        done = returned(snapshot, own.reclaims_s, self._host, hidden)
        for one in done:
            self._store.record_returned(one, own.reclaims_s.get(one, 0.0))
        return bool(done)

    def _read(self) -> tuple[int, float] | None:
        """Return what the file wants, borrowed slots and seconds to give others back, or None."""
        now_s = time.monotonic()
        if self._file is None or now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return 0, self._within_s
        except (OSError, UnicodeDecodeError) as error:
            self._say(f"cannot read how many slots are borrowed, from {self._file}: {error}")
            return None
        words = text.split()
        if not words:  # it is being written
            return None
        slots = int(words[0]) if words[0].isdecimal() else None
        within_s = seconds(words[1]) if len(words) > 1 else self._within_s
        if slots is None or not within_s or len(words) > 2:
            self._say(
                f"{self._file} says {excerpt(text.strip())!r}, which is not understood; write a "
                "number of slots, and after it, if you like, the seconds to give others back"
            )
            return None
        return slots, within_s

    def _set(self, snapshot: Snapshot, slots: int, within_s: float, why: str) -> bool:
        """Write into the job's records that the job borrows `slots` slots of this host."""
        host = self._host

        def change(desired: Placement) -> Placement:
            borrowed = borrowed_after(snapshot.desired, desired, NO_LEASE_TERMS).get(host, 0)
            if slots > borrowed:
                return borrow(snapshot, slots - borrowed, host, desired)
            return (
                reclaim(snapshot, borrowed - slots, host, desired) if slots < borrowed else desired
            )

        more = slots > snapshot.desired.borrowed.get(host, 0)
        terms = LeaseTerms(borrows=True) if more else LeaseTerms(within_s=within_s)
        try:
            return bool(
                self._store.set_desired(
                    change,
                    RequestedBy.PERSON,
                    f"{why}: {counted(slots, 'slot')} of {host} borrowed",
                    terms,
                )
            )
        except UsageError as error:
            self._say(str(error))
            return False
