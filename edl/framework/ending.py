"""End a worker's process soon after its script; tell the launcher which stage the end has reached.

``edl.init()`` calls :func:`arm` and :meth:`Closing.start` for this. The exit code is kept in this
module (:func:`fails`, :func:`_see_exits`). The end of a process has three stages:

1. The script goes on: in its threads that are not daemons, in exit handlers that it has registered
   with :mod:`atexit` since it imported edl, and in child processes that Python waits for.
2. The exit handlers run that libraries (comet_ml, mlflow, wandb) registered before edl was
   imported. The launcher is told that the script has ended, and with which exit code. It allows
   these handlers ``exit_timeout_s`` seconds, a setting of the job, and then kills the process.
3. The interpreter ends. With PyTorch or TensorFlow loaded, that takes a second of computing, all of
   it to free memory that the operating system takes back anyway. It may also hang, in a library's
   threads or destructors. So edl keeps the garbage collector from looking at the objects that exist
   then, and tells the launcher that this stage has begun: the launcher ends a process that does not
   end by itself within 2 s (``exit_s`` of :class:`edl.core.host.supervision.SupervisorLimits`).
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import logging
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from edl.core.host.process import ENDED, EXITING, STOPPED
from edl.errors import (
    AGAIN_EXIT,
    REFUSED_EXIT,
    EdlError,
    JobError,
    NewcomerDiffers,
    UsageError,
)

BREAK_S = 2.0  # for the others to close the ring, too
CLOSE_S = 10.0  # for ring and coordination to be left, besides a checkpoint that is being written

_BY_SIGNAL = "_edl_by_signal"  # an attribute of a SystemExit that a handler of a signal has raised

logger = logging.getLogger(__name__)

_plain_exit = sys.exit
_code = 0
_by_signal = False
_armed = False
_closing = False
_stopped = False
_is_late = False  # _code was set when Python had its exit code already
_first: list[Callable[[], None]] = []  # what the exit handler calls before it closes the worker


def arm() -> None:
    """Declare that this process has a launcher, which is to be told how the process ends."""
    global _armed
    _armed = True


def fails(code: int = 1) -> None:
    """Record that an exception ends the script; the process itself is not ended by this call."""
    global _code
    _code = code


def fails_late(code: int = 1) -> None:
    """Let this process end with an exit code, by default 1, though its script has ended with 0."""
    global _is_late
    if _code == 0:  # else Python ends with that
        fails(code)
        _is_late = True


def has_begun() -> bool:
    """Return whether edl's exit handler (`atexit`) has begun to run, so this process is ending."""
    return _closing


def call_first(function: Callable[[], None]) -> None:
    """Let edl's exit handler call `function` before it closes the worker, the newest first."""
    # An exit handler of its own would run earlier, where a SIGTERM still ends it, with a traceback.
    _first.append(function)


def ends_well() -> bool:
    """Return whether, as far as is known, the script has ended by itself with exit code 0."""
    shown = getattr(sys, "last_value", None) if not hasattr(sys, "ps1") else None
    # A signal asks this worker to end, and not the whole job.
    return _code == 0 and not _by_signal and not isinstance(shown, Exception)


def _in_signal_handler(frame: FrameType | None) -> bool:
    """Return whether `frame` or a caller of it is one of a function that is set for a signal."""
    codes = _signal_handlers()
    while frame is not None:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _signal_handlers() -> set[object]:
    """Return the code objects of the Python functions that are set for signals."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions: list[Any] = [getattr(each, "__func__", each) for each in handlers]
    return {each.__code__ for each in functions if hasattr(each, "__code__")}


def _comes_from_signal(error: SystemExit) -> bool:
    """Return whether `error`, with which Python ends, was raised inside a signal handler."""
    if error.__dict__.get(_BY_SIGNAL):
        return True
    codes, trace = _signal_handlers(), error.__traceback__
    if trace is not None:
        return any(frame.f_code in codes for frame, _ in traceback.walk_tb(trace))
    # Before 3.12 Python has not attached the traceback yet if no `except`, `finally` or `with` has
    # seen the error. No frame runs any more: one of a handler is there because a traceback has it.
    return any(type(one) is FrameType and one.f_code in codes for one in gc.get_objects())


def _status(code: object) -> int:
    """Return the exit code that Python gives to a process that ends by a SystemExit."""
    if code is None:
        return 0
    return code & 0xFF if isinstance(code, int) else 1


def leave(status: Any = None, /) -> NoReturn:
    """Raise SystemExit, as Python's `sys.exit` does, in whose place this function is."""
    # It is a function of the module so that `edl.run` can send a function that uses it.
    try:
        _plain_exit(status)
    except SystemExit as error:
        if _in_signal_handler(sys._getframe()):
            error.__dict__[_BY_SIGNAL] = True
        raise


def _see_exits() -> None:
    """Record from now on the exit code of a SystemExit that ends this process, and its cause."""
    # Python has dropped the exception when exit handlers run, and calls no hook for it. All that it
    # does is to read the attribute `code`, while no frame of Python runs any more: hence a property
    # in its place. (A subclass in the place of the name SystemExit would not do: `except` would not
    # catch what C code raises, and `threading` reports each class but SystemExit itself.) The class
    # is written in C and refuses attributes, so its dictionary is taken from the garbage collector,
    # and Python is told to forget what it has looked up. Tried with Python 3.11, 3.12 and 3.13.
    attributes = gc.get_referents(vars(SystemExit))[0]
    member, own_frame = attributes["code"], sys._getframe

    def read(error: SystemExit) -> object:
        code: object = member.__get__(error)
        if own_frame().f_back is None:
            _note_exit(error, code)
        return code

    attributes["code"] = property(read, member.__set__, member.__delete__, member.__doc__)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    # Before 3.12 a SystemExit of C code that no Python code has caught is not seen. `sys.exit`
    # raises such a one; the script may have imported that name before edl.
    sys.exit = leave
    script = vars(sys.modules["__main__"])
    script.update({name: leave for name, value in script.items() if value is _plain_exit})


def _note_exit(error: SystemExit, code: object) -> None:
    """Record with which exit code `error` ends this process, and whether a signal was the cause."""
    global _code, _by_signal
    if threading.current_thread() is threading.main_thread():
        _code = _status(code)
        _by_signal = _code == 0 and _comes_from_signal(error)


def say_ended(word: str = ENDED) -> None:
    """Tell the launcher which stage the end of this process has reached, by its name."""
    _flush_files()
    shown = STOPPED[word] if _stopped else word
    Path(f"/proc/self/task/{os.getpid()}/comm").write_text(f"{shown}:{_code}")


def say_refused() -> None:
    """Tell the launcher that the job has refused this worker; call `fails` before."""
    if _armed:  # called before the other workers can see that this process is gone
        say_ended(EXITING)


class Closing:
    """A guard for the end of a worker's process: it calls `close`, and limits its time."""

    def __init__(
        self,
        close: Callable[[], None],  # leaves the ring, and ends the session with ZooKeeper
        unblock: Callable[[], None],  # breaks the ring, so `close` does not wait in it
        settle_s: Callable[[], float],  # by which `close` may take longer, for a checkpoint
        script_ended: Callable[[], None] = lambda: None,  # of one that ended with success
        stopped: Callable[[], bool] = lambda: False,  # whether the job was told to end
    ) -> None:
        self._close, self._unblock, self._settle_s = close, unblock, settle_s
        self._script_ended = script_ended
        self._stopped = stopped
        self._begun, self._done = threading.Event(), threading.Event()
        self._trains_in: tuple[int, threading.Thread] | None = None

    def start(self) -> None:
        """Register exit handlers that call `script_ended` and `close` when Python ends."""
        self._trains_in = os.getpid(), threading.current_thread()
        # Now: at the end of a process no thread can be started.
        threading.Thread(target=self._watch, name="edl-ending", daemon=True).start()
        atexit.register(self._run)
        # Not atexit: Horovod has registered its shutdown there, after us. And here Python still
        # works fully: `script_ended` may wait for other workers and start threads.
        getattr(threading, "_register_atexit", atexit.register)(self._end)

    def _end(self) -> None:
        assert self._trains_in is not None
        pid, thread = self._trains_in
        trains = thread is not threading.main_thread() and thread.is_alive()
        if pid != os.getpid() or trains or not ends_well():  # a fork ends here, too
            return
        try:
            self._script_ended()
        except SystemExit as error:
            logger.debug("the script has ended, and the worker leaves: %s", error)
        except EdlError as error:
            print(f"edl: {error}", file=sys.stderr, flush=True)
            if isinstance(error, NewcomerDiffers):
                fails(error.exit_code)
                say_refused()
            # Of the others the launcher knows from the job's record, or they concern nobody else.
            elif not (_armed and isinstance(error, JobError | UsageError)):
                fails_late()
        except Exception:
            logger.exception("the end of this script has failed")
            fails_late()

    def _run(self) -> None:
        global _closing, _stopped
        _closing, _stopped = True, self._stopped()
        for function in reversed(_first):
            function()
        self._begun.set()
        self._close()
        self._done.set()

    def _watch(self) -> None:
        self._begun.wait()
        if not self._done.wait(BREAK_S):
            self._unblock()
        if not self._done.wait(CLOSE_S + self._settle_s()):
            say_ended()


class _AfterHandlers:
    """An object whose `__del__` the interpreter runs right after the last exit handler."""

    def __del__(self) -> None:
        if _armed:
            say_ended()
        if _is_late or _code in (REFUSED_EXIT, AGAIN_EXIT):  # Python may have its exit code already
            _flush_files()
            os._exit(_code)


def _last() -> None:
    """Tell the launcher that the script has ended, and speed up the interpreter's own end."""
    if not (_armed or _is_late):
        return
    if _armed and not _waits_for_processes():  # else it is told after the last exit handler
        say_ended(EXITING)
    # Python's end begins with a few attributes of sys, this one among them: only its prompt has it.
    sys.ps2 = _AfterHandlers()
    if _is_late:  # it flushes what it finds among all objects
        return
    # The collections at the end find nothing to free now. What is left is freed module by module.
    gc.freeze()


def _waits_for_processes() -> bool:
    library = sys.modules.get("multiprocessing")
    return library is not None and any(not one.daemon for one in library.active_children())


def _flush_files() -> None:
    """Flush the regular files that the script left open for writing."""
    # Python does so when it frees a file, but one in a reference cycle may never be freed.
    for one in gc.get_objects():
        if not issubclass(type(one), io.IOBase):  # isinstance() would wake up lazy modules
            continue
        try:
            if not one.closed and one.writable() and stat.S_ISREG(os.fstat(one.fileno()).st_mode):
                one.flush()
        except (OSError, ValueError):
            continue  # it is no file of the system, or cannot be written any more


_see_exits()
atexit.register(_last)  # it runs after edl's other handlers, and before earlier ones
