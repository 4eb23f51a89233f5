"""Tell what the training thread of a worker is doing right now, for the worker's `/health` page.

The thread that asks reads the Python stack of the training thread, which itself only records the
last failpoint that it has passed. It waits for other workers if its stack has a function that
:data:`_WAITS` lists or :func:`waits` marks. Otherwise it is in user code, and the innermost frame
that belongs to neither edl nor a library says where.
"""

from __future__ import annotations

import contextlib
import operator
import os
import sys
import sysconfig
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TypeVar

from edl import failpoints
from edl.job.stall import FOR_NUMBERS, FOR_RECORDS, IN_USER_CODE, RETURNED, SAVING, Activity
from edl.ring.ring import Ring
from edl.worker.shared_state import SharedState

_acting = 0  # id of the thread that trains for the one that called ThreadWatch.start(); 0: that one
Function = TypeVar("Function", bound=Callable[..., object])

_WAITS: dict[CodeType, str] = {
    Ring.finish_record.__code__: FOR_RECORDS,
    Ring.barrier.__code__: "waiting for the others before a switch",
    Ring.build.__code__: "building a ring with the others",
    Ring.exchange.__code__: FOR_NUMBERS,
    Ring.exchange_rows.__code__: FOR_NUMBERS,
    Ring.broadcast.__code__: "exchanging the state with the others",
    SharedState.wait_for_generation.__code__: "waiting for the leader's next generation",
}

_ENDS: dict[CodeType, str] = {}

_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(__file__)),
    }
)

# The work in user code that may take long, by a part of the path of the module that does it.
_WORKS = {
    "torch/_dynamo/": "torch.compile",
    "torch/_inductor/": "torch.compile",
    "tensorflow/python/eager/polymorphic_function/tracing": "tracing a tf.function",
    "torch/utils/data/dataloader": "loading a batch",
    "edl/tensorflow/feed": "loading a batch",
    "keras/src/saving/": "saving a model",
    "torch/serialization": "saving or loading a file",
}
IMPORTING = "importing modules"
# Parts of the paths of Python files that a framework has generated.
_GENERATED = ("torchinductor_", "__autograph_generated_file")


def waits(what: str) -> Callable[[Function], Function]:
    """Return a decorator that registers what a thread inside the decorated function waits for."""

    def register(function: Function) -> Function:
        _WAITS[function.__code__] = what
        return function

    return register


def ends(function: Function) -> Function:
    """Register `function` as the wait of a worker that has returned from training."""
    _ENDS[function.__code__] = RETURNED
    return function


# As inside a TensorFlow graph. The thread that asks calls them, not the training thread.
_unseen: list[Callable[[], str | None]] = []


def waits_unseen(look: Callable[[], str | None]) -> None:
    """Register one more function that says what the training thread waits for outside Python."""
    _unseen.append(look)


# "" if no such activity is going on; called by the thread that asks.
_works: list[Callable[[], str]] = []


def works_at(look: Callable[[], str]) -> None:
    """Register one more function that names a long activity in the user's code."""
    _works.append(look)


@contextlib.contextmanager
def training_here() -> Iterator[None]:
    """Treat the calling thread as the training thread in the `with` block."""
    global _acting
    # Of a framework that calls edl from a thread of its own, one at a time.
    _acting = threading.get_ident()
    try:
        yield
    finally:
        _acting = 0


def call_site() -> tuple[str, str, int]:
    """Return the function of edl that the script called, its line, and a digest of all lines."""
    call, where, lines = "", "", []
    in_edl = True
    for frame in _outwards(sys._getframe(1)):
        in_edl &= frame.f_globals.get("__name__", "").startswith("edl.")
        call = frame.f_code.co_name if in_edl else call
        if not (in_edl or _of_library(frame.f_code.co_filename)):
            where = where or f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
            # without the folders, which differ between hosts
            lines.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}")
    return call, where, zlib.crc32(" ".join(lines).encode()) + 1


class ThreadWatch:
    """An observer of this worker's training thread: the thread that has called `start`."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._thread = 0
        self._began = ("start", 0.0)

    def start(self) -> None:
        """Begin to observe the calling thread."""
        self._thread, self._began = threading.get_ident(), ("start", time.monotonic())

    def look(self) -> Activity:
        """Return what the training thread does, and in which line of the user's code."""
        thread = _acting or self._thread
        passed = (self._began, *map(failpoints.last, {self._thread, thread}))
        point, at = max(passed, key=operator.itemgetter(1))
        frame = sys._current_frames().get(thread)
        where, doing = "", IN_USER_CODE
        work = next((said for look in _works if (said := look())), "")
        for each in _outwards(frame):
            if doing == IN_USER_CODE:
                doing = _WAITS.get(each.f_code, IN_USER_CODE)
            elif doing != SAVING:  # an end says more than what is waited for inside of it
                doing = _ENDS.get(each.f_code, doing)
            work = work or _work(each.f_code.co_filename)
            if not where and each.f_code.co_filename.startswith("<frozen importlib"):
                work = IMPORTING  # and not what the imported library is known for
            if not where and not _of_library(each.f_code.co_filename):
                where = f"{_short(each.f_code.co_filename)}:{each.f_lineno}"
        if doing == IN_USER_CODE:
            doing = next((seen for look in _unseen if (seen := look())), IN_USER_CODE)
        since_s = round(time.monotonic() - at, 3)
        return Activity(doing, where, point, since_s, work, self._ring.records)


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _work(file: str) -> str:
    return next((work for path, work in _WORKS.items() if path in file), "")


def _of_library(file: str) -> bool:
    generated = any(part in file for part in _GENERATED)
    return generated or file.startswith(("<", *_LIBRARIES))


def _short(file: str) -> str:
    """Return the path `file` relative to the working directory, or its base name."""
    try:
        inside = os.path.relpath(file)
    except FileNotFoundError:  # the working directory was removed
        inside = ".."
    return os.path.basename(file) if inside.startswith("..") else inside
