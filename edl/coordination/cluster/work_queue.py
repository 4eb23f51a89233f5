"""Note which of many jobs have changed since they were read, so that no others are read again.

A session keeps the answers to reads (:mod:`edl.coordination.watched_reads`), but looking up a dozen
answers for each of a thousand jobs takes 0.1 s of processor time, at each change of one job.

A change is noted before ``on_change`` is called, and a reader takes the names before it reads. So a
change during a read is in the queue for the next one, and its caller is told to read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from edl.coordination.reads import OnChange


class WorkQueue:
    """The names of the jobs of which a node has changed since it was read."""

    # Any thread may use it. `on_change` runs on kazoo's connection thread, so it must not block.

    def __init__(self, on_change: OnChange = None) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._wakes: dict[str, Callable[[], None]] = {}

    @property
    def has_names(self) -> bool:
        """Whether `take` would return a name now."""
        return bool(self._names)

    def wake(self, name: str) -> Callable[[], None]:
        """Return the `wake` of the reads of the job `name`: the same one each time."""
        with self._lock:
            found = self._wakes.get(name)
            if found is None:
                found = self._wakes[name] = partial(self._changed, name)
            return found

    def take(self) -> set[str]:
        """Return the names of the jobs that have changed since the last call."""
        with self._lock:
            found, self._names = self._names, set()
            return found

    def put_back(self, names: Iterable[str]) -> None:
        """Let the next `take` return `names`, too: they could not be read."""
        with self._lock:
            self._names.update(names)

    @contextmanager
    def put_back_on_error(self, names: Iterable[str]) -> Iterator[None]:
        """Run the block of a `with` statement; if it raises an error, put `names` back."""
        try:
            yield
        except BaseException:
            self.put_back(names)
            raise

    def keep_only(self, names: Container[str]) -> None:
        """Forget the jobs whose names are not in `names`."""
        with self._lock:
            self._names = {name for name in self._names if name in names}
            if any(name not in names for name in self._wakes):
                kept = {name: wake for name, wake in self._wakes.items() if name in names}
                self._wakes = kept

    def _changed(self, name: str) -> None:
        """Note that a node of `name` has changed; it runs on kazoo's connection thread."""
        with self._lock:
            self._names.add(name)
        if self._on_change is not None:
            self._on_change()
