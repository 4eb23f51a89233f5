"""What others say to an agent of idle slots: a file that they write, and SIGUSR1.

The file holds how many slots of this host are lent to the job, and perhaps the seconds in which
those have to be free that are lent no longer: "2", or "0 20". No file is 0. The signal takes back
all that are lent here.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from edl.coordination.job_store import JobStore
from edl.core.duration import seconds
from edl.core.excerpt import excerpt
from edl.core.host.process import Process
from edl.core.job.lending import NO_TERMS, Terms, lend, lent_after, reclaim, returned
from edl.core.job.placement import Placement
from edl.core.plural import counted
from edl.core.records import Asker, JobState, Snapshot
from edl.errors import UsageError
from edl.launch.signals import handled

LOOK_S = 0.5  # between two looks into the file


class LentSlots:
    """The slots of ``host`` that are lent to the job, as the file and the signal have them.

    Args:
        file: None: nobody writes one.
        within_s: to give slots back, where nobody says in how long.
        say: shows a sentence, the same one once.
    """

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
        """While entered, SIGUSR1 takes the slots back."""
        with handled([signal.SIGUSR1], self._on_signal):
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True

    def follow(self, snapshot: Snapshot) -> bool:
        """Do what was said since the last call; whether other workers are desired now."""
        if snapshot.job.state is not JobState.RUNNING:
            return False
        if self._signalled:
            changed = self._set(snapshot, 0, self._within_s, "SIGUSR1")
            self._signalled = False  # after that: ZooKeeper may have gone away
            return changed
        said = self._read()
        if said is None or said[0] == self._slots:
            return False
        changed = self._set(snapshot, *said, f"{self._file}")
        self._slots = said[0]
        return changed

    def settle(self, snapshot: Snapshot, living: Iterable[Process]) -> bool:
        """Write down what has been given back; whether anything has. ``living``: this host's."""
        members = {member.id for member in snapshot.members}
        hidden = sum(process.worker not in members for process in living)
        done = returned(snapshot, self._host, hidden)
        for one in done:
            self._store.settle(one)
        return bool(done)

    def _read(self) -> tuple[int, float] | None:
        """Slots and seconds in the file; None: there is nothing new to know."""
        now_s = time.monotonic()
        if self._file is None or now_s - self._looked_s < LOOK_S:
            return None
        self._looked_s = now_s
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return 0, self._within_s
        except (OSError, UnicodeDecodeError) as error:
            self._say(f"cannot read how many slots are lent, from {self._file}: {error}")
            return None
        words = text.split()
        if not words:  # whoever writes it is about to
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
        """Let so many slots of this host be lent to the job."""
        host = self._host

        def change(desired: Placement) -> Placement:
            lent = lent_after(snapshot.desired, desired, NO_TERMS).get(host, 0)
            if slots > lent:
                return lend(snapshot, slots - lent, host, desired)
            return reclaim(snapshot, lent - slots, host, desired) if slots < lent else desired

        more = slots > snapshot.desired.lent.get(host, 0)
        terms = Terms(lends=True) if more else Terms(within_s=within_s)
        try:
            return bool(
                self._store.desire(
                    change, Asker.PERSON, f"{why}: {counted(slots, 'slot')} of {host} lent", terms
                )
            )
        except UsageError as error:
            self._say(str(error))
            return False
