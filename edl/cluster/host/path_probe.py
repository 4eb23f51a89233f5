"""Look whether files are there, without waiting for a file system that does not answer.

A file server that is away makes a look last for ever. So each path is looked up in a thread of its
own, and one whose look does not end counts as unknown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from pathlib import Path

WAIT_S = 0.3


class PathProbe:
    """Answers whether paths are there; a path has at most one thread at a time."""

    def __init__(self, exists: Callable[[str], bool] = lambda path: exists_here(path)) -> None:
        self._exists = exists
        self._looks: dict[str, Future[bool]] = {}

    def answers(self, paths: Iterable[str], wait_s: float = WAIT_S) -> dict[str, bool]:
        """Return whether each of `paths` is there; one of which that is not known is left out."""
        looks = {path: self._looks.get(path) or self._look(path) for path in paths}
        wait(looks.values(), wait_s)
        # One that ended is looked up anew the next time.
        every = {**self._looks, **looks}
        self._looks = {path: look for path, look in every.items() if not look.done()}
        return {path: look.result() for path, look in looks.items() if path not in self._looks}

    def _look(self, path: str) -> Future[bool]:
        look: Future[bool] = Future()

        def work() -> None:
            look.set_result(self._exists(path))

        # Not of a pool, whose threads Python waits for at its end.
        threading.Thread(target=work, name="edl-paths", daemon=True).start()
        return look


def exists_here(path: str) -> bool:
    """Return whether `path` is there; one that ends with a slash must be a directory."""
    try:
        found = Path(path)
        return found.is_dir() if path.endswith("/") else found.exists()
    except OSError:
        return False
