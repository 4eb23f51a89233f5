"""The end of a worker's process: when its script has ended, the process is gone soon after.

What the script still does counts as the script: its threads that are no daemons, what it has
registered with :mod:`atexit` since it imported edl, processes that Python waits for. What comes
then is the interpreter's own end. With PyTorch or TensorFlow in it that takes a second of
computing, all of it to free memory that the operating system takes back anyway; and it may hang, in
a library's threads or destructors. So it is made short, and the launcher is told that it has begun:
it ends the process when that does not end itself (:data:`edl.core.host.process.EXIT_S`).
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from edl.core.host.process import ENDED

BREAK_S = 2.0  # for the others to close the ring, too
CLOSE_S = 10.0  # for ring and coordination to be left, besides a checkpoint that is being written

_code = 0
_armed = False


def arm() -> None:
    """This process is a worker, and has a launcher."""
    global _armed
    _armed = True


def fails() -> None:
    """An exception ends the script."""
    global _code
    _code = 1


def say_ended() -> None:
    """Tell the launcher that the script has ended: it finds this as the process's name.

    That needs no connection and no file, and is true of no other process: not of a wrapper around
    this one, which may have more to do.
    """
    _flush_files()
    Path(f"/proc/self/task/{os.getpid()}/comm").write_text(f"{ENDED}:{_code}")


class Closing:
    """Runs ``close`` at the end of the process, and ``unblock`` when that takes long.

    ``settle_s``: for a checkpoint that is being written, which ``close`` waits for. No thread may
    be started at the end of a process, so the one that watches is started with it.
    """

    def __init__(
        self, close: Callable[[], None], unblock: Callable[[], None], settle_s: Callable[[], float]
    ) -> None:
        self._close, self._unblock, self._settle_s = close, unblock, settle_s
        self._begun, self._done = threading.Event(), threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="edl-ending", daemon=True).start()
        atexit.register(self._run)

    def _run(self) -> None:
        self._begun.set()
        self._close()
        self._done.set()

    def _watch(self) -> None:
        self._begun.wait()
        if not self._done.wait(BREAK_S):
            self._unblock()
        if not self._done.wait(CLOSE_S + self._settle_s()):
            say_ended()


def _last() -> None:
    """Registered first, so that it comes last."""
    if not _armed or _waits_for_processes():
        return
    say_ended()
    # The collections at the end find nothing to free now. What is left is freed module by module.
    gc.freeze()


def _waits_for_processes() -> bool:
    """Whether the end of :mod:`multiprocessing`, which may come later, waits for some."""
    library = sys.modules.get("multiprocessing")
    return library is not None and any(not one.daemon for one in library.active_children())


def _flush_files() -> None:
    """Write what the script has not, into files that it left open.

    Python would when it frees them; but not those that a collection would have found.
    """
    for one in gc.get_objects():
        if not issubclass(type(one), io.IOBase):  # isinstance() would wake up lazy modules
            continue
        try:
            if not one.closed and one.writable() and stat.S_ISREG(os.fstat(one.fileno()).st_mode):
                one.flush()
        except (OSError, ValueError):
            continue  # it is no file of the system, or cannot be written any more


atexit.register(_last)
