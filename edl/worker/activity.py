"""What the training thread is doing right now, seen from outside it, for `/health`.

Nothing is noted down while training goes well: who asks looks at the thread's stack. It waits
for the others when one of the functions below is on it; otherwise it is in user code, and the
innermost frame that belongs to neither edl nor a library says where.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import TypeVar

from edl import failpoints
from edl.core.job.stall import FOR_NUMBERS, FOR_RECORDS, IN_USER_CODE, Activity
from edl.ring.ring import Ring
from edl.worker.shared_state import SharedState

_acting = 0  # the thread that trains while the one that called Watch.start() waits for it

Function = TypeVar("Function", bound=Callable[..., object])

_WAITS: dict[CodeType, str] = {
    Ring.finish_record.__code__: FOR_RECORDS,
    Ring.barrier.__code__: "waiting for the others before a switch",
    Ring.build.__code__: "building a ring with the others",
    Ring.exchange.__code__: FOR_NUMBERS,
    Ring.broadcast.__code__: "exchanging the state with the others",
    SharedState.wait_for_generation.__code__: "waiting for the leader's next generation",
}

_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(__file__)),
    }
)

# What the user's code may be at for long, by the paths of the modules that do it.
_WORKS = {
    "torch/_dynamo/": "torch.compile",
    "torch/_inductor/": "torch.compile",
    "tensorflow/python/eager/polymorphic_function/tracing": "tracing a tf.function",
    "torch/utils/data/dataloader": "loading a batch",
    "edl/tensorflow/feed": "loading a batch",
    "keras/src/saving/": "saving a model",
    "torch/serialization": "saving or loading a file",
}
# Python that a framework has written, in files of its own.
_GENERATED = ("torchinductor_", "__autograph_generated_file")


def waits(what: str) -> Callable[[Function], Function]:
    """Declare that a thread in this function does ``what``: it waits for the other workers."""

    def register(function: Function) -> Function:
        _WAITS[function.__code__] = what
        return function

    return register


_unseen: list[Callable[[], str | None]] = []


def waits_unseen(look: Callable[[], str | None]) -> None:
    """Let ``look`` say what the training thread waits for where no stack of Python's shows it."""
    _unseen.append(look)


_works: list[Callable[[], str]] = []


def works_at(look: Callable[[], str]) -> None:
    """Let ``look`` say what the user's code is at that may take long; empty: nothing is known."""
    _works.append(look)


@contextlib.contextmanager
def training_here() -> Iterator[None]:
    """While this lasts, the calling thread trains: a framework called it from its own thread."""
    global _acting
    _acting = threading.get_ident()
    try:
        yield
    finally:
        _acting = 0


class Watch:
    """Looks at the thread that called :meth:`start`. Ask it from any thread."""

    def __init__(self) -> None:
        self._thread = 0
        self._passed = ("", 0.0)

    def start(self) -> None:
        self._thread = threading.get_ident()
        self._pass("start")
        failpoints.subscribe(self._pass)

    def stop(self) -> None:
        failpoints.unsubscribe(self._pass)

    def look(self) -> Activity:
        """What the thread does, where, and for how long it has passed no point."""
        point, at = self._passed
        frame = sys._current_frames().get(_acting or self._thread)
        where, doing = "", IN_USER_CODE
        work = next((said for look in _works if (said := look())), "")
        for each in _outwards(frame):
            if doing == IN_USER_CODE:
                doing = _WAITS.get(each.f_code, IN_USER_CODE)
            work = work or _work(each.f_code.co_filename)
            if not where and not _of_library(each.f_code.co_filename):
                where = f"{_short(each.f_code.co_filename)}:{each.f_lineno}"
        if doing == IN_USER_CODE:
            doing = next((seen for look in _unseen if (seen := look())), IN_USER_CODE)
        return Activity(doing, where, point, round(time.monotonic() - at, 3), work)

    def _pass(self, name: str) -> None:
        # The daemon's thread has points of its own.
        if threading.get_ident() == (_acting or self._thread):
            self._passed = (name, time.monotonic())


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _work(file: str) -> str:
    """What the function in ``file`` is part of, if that may take long."""
    return next((work for path, work in _WORKS.items() if path in file), "")


def _of_library(file: str) -> bool:
    generated = any(part in file for part in _GENERATED)
    return generated or file.startswith(("<", *_LIBRARIES))


def _short(file: str) -> str:
    """Relative to the working directory when it lies below, else the name alone."""
    inside = os.path.relpath(file)
    return os.path.basename(file) if inside.startswith("..") else inside
