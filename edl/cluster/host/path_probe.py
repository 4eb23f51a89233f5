"""Look whether files are there, without waiting for a file system that does not answer.

A file server that is away makes a look last for ever. So paths are looked up in threads, and a path
whose look does not end counts as unknown. One that is slow makes many paths wait for their looks:
further threads begin, and a path keeps its last answer as long as looks go on.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

AGAIN_S = 5.0  # after which a path is looked up again
HANGS_S = 1.0  # a path that waits longer for its look has another thread started
MAX_THREADS = 16
FORGOTTEN_S = 60.0  # of a path that nobody asks for
WAIT_S = 0.3  # for paths that are asked for the first time


@dataclass
class _Path:
    """A path that is asked for."""

    is_there: bool | None = None  # whether it was there at the last look; None: it is not known
    looked_s: float = 0.0  # when the last look ended, by the monotonic clock
    due_s: float = 0.0  # when the present look was asked for; 0: there is none
    begun_s: float = 0.0  # when a thread began it; 0: it waits for one
    asked_s: float = 0.0  # when somebody last asked for the path


@dataclass
class _Threads:
    """The threads that look."""

    count: int = 0  # how many live
    moved_s: float = 0.0  # when one of them last began or ended a look


class PathProbe:
    """Answers whether paths are there, from looks of the last seconds."""

    def __init__(self, exists: Callable[[str], bool] = lambda path: exists_here(path)) -> None:
        # called, in any thread, when an answer is new or has changed
        self.on_answer: Callable[[], None] = lambda: None
        self._exists = exists
        self._changed = threading.Condition()
        self._paths: dict[str, _Path] = {}
        self._due: deque[str] = deque()
        self._threads = _Threads()

    def answers(self, paths: Iterable[str], wait_s: float = WAIT_S) -> dict[str, bool]:
        """Return whether each of `paths` is there; one of which that is not known is left out."""
        wanted = list(paths)
        now_s = time.monotonic()
        with self._changed:
            new = [path for path in wanted if path not in self._paths]
            for path in wanted:
                self._probe_again(path, now_s)
            self._forget_others(now_s)
            self._start_thread(now_s)
            if new:
                self._changed.wait_for(lambda: all(map(self._is_known, new)), wait_s)
            found = {path: self._paths[path].is_there for path in wanted}
        return {path: there for path, there in found.items() if there is not None}

    def _is_known(self, path: str) -> bool:
        return self._paths[path].is_there is not None

    def _probe_again(self, path: str, now_s: float) -> None:
        """Let `path` be looked up, if that was long ago; forget its answer if a look hangs."""
        one = self._paths.setdefault(path, _Path())
        one.asked_s = now_s
        since_s = one.begun_s or max(one.due_s, self._threads.moved_s)
        if not one.due_s and (one.is_there is None or now_s - one.looked_s >= AGAIN_S):
            one.due_s = now_s
            self._due.append(path)
        elif one.due_s and now_s - since_s >= AGAIN_S:
            one.is_there = None

    def _forget_others(self, now_s: float) -> None:
        for path, one in list(self._paths.items()):
            if now_s - one.asked_s > FORGOTTEN_S and not one.due_s:
                del self._paths[path]

    def _start_thread(self, now_s: float) -> None:
        """Start one more thread that looks paths up, if paths wait and too few threads get on."""
        threads = self._threads
        if not self._due or threads.count >= MAX_THREADS:
            return
        waited_s = now_s - min(threads.moved_s, self._paths[self._due[0]].due_s)
        if not threads.count or waited_s >= HANGS_S:
            thread = threading.Thread(target=self._work, name="edl-paths", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()  # it waits for the lock that is held here
                threads.count += 1
                threads.moved_s = now_s

    def _work(self) -> None:
        news = False
        while True:
            with self._changed:
                self._threads.moved_s = time.monotonic()
                if not self._due:
                    self._threads.count -= 1
                    break
                path = self._due.popleft()
                self._paths[path].begun_s = self._threads.moved_s
            is_there = self._exists(path)
            with self._changed:
                one = self._paths[path]
                news |= one.is_there is not is_there
                one.is_there, one.looked_s = is_there, time.monotonic()
                one.due_s = one.begun_s = 0.0
                self._changed.notify_all()
        if news:
            self.on_answer()


def exists_here(path: str) -> bool:
    """Return whether `path` is there; one that ends with a slash must be a directory."""
    try:
        found = Path(path)
        return found.is_dir() if path.endswith("/") else found.exists()
    except OSError:
        return False
