"""Hold this process's only worker, and define the API functions that need no framework.

:func:`start` makes the worker, for ``edl.init()``; :func:`current_worker` returns it. ``edl.torch``
and ``edl.tensorflow`` offer the functions from :func:`shutdown` to :func:`on_resize`, some of them
with what the framework adds.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import hashlib
import importlib
import io
import json
import logging
import multiprocessing
import os
import re
import signal
import site
import socket
import stat
import sys
import sysconfig
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import edl
from edl import __version__, config
from edl.binding.replica import FrameworkReplica, add_tracked
from edl.checkpoint.location import location
from edl.data.stream import refuse_in_stream
from edl.errors import (
    AGAIN_EXIT,
    REFUSED_EXIT,
    EdlError,
    JobError,
    NewcomerDiffers,
    UsageError,
)
from edl.events import CheckpointDetails, Event
from edl.host.process import ENDED, EXITING, STOPPED, STOPPED_EXIT
from edl.job.daemon import Daemon, offer_stacks
from edl.job.pending_writes import OwnLog
from edl.ring.gloo import Binding, gloo_ring
from edl.ring.ring import ADASUM, CollectiveFailed
from edl.step.record import SWITCH, TimedSpan, checkpoint_spans, switch_spans
from edl.worker.coordinator import JobOfOne
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Send spans of switches and checkpoints to OpenTelemetry, if the environment asks for traces.
#
# `trace_worker` begins it. Nothing of OpenTelemetry is imported unless a variable of its own
# (`OTEL_TRACES_EXPORTER`, `OTEL_EXPORTER_OTLP_ENDPOINT`) says where spans go. The spans of all
# workers in one switch are in one trace, whose id follows from the run of the job and the
# generation. Spans never disturb the training: what cannot be sent is left out, with one warning in
# the log.


_GROUP = "opentelemetry_traces_exporter"  # of entry points: that of OpenTelemetry's exporters


def trace_worker(worker: Worker, job: str | None, run: str) -> None:
    """Send a span of each switch of `worker`, and of each checkpoint that it writes."""
    if not (exporters := config.trace_exporters()):
        return
    try:  # now, and not in the first switch, in which all would wait for it
        importlib.import_module("opentelemetry.sdk.trace.export")
        kinds = [_exporter(names) for names in exporters]
    except ImportError as error:
        logger.warning("no spans are sent to OpenTelemetry: %s", error)
        return
    tracing = Tracing(worker, job or "", run, kinds)
    worker.on_resize(lambda _old, _new: tracing.switched())
    worker.on_event(tracing.logged)


class Tracing:
    """The spans of one worker, for its training thread and that of a checkpoint."""

    def __init__(
        self, worker: Worker, job: str, run: str, exporters: Sequence[Callable[[], Any]]
    ) -> None:
        self._worker, self._exporters = worker, exporters
        self._run = run
        self._attributes = {"edl.job": job, "edl.run": run}
        self._lock = threading.Lock()
        self._tracer: Any = None
        self._has_failed = False

    def switched(self) -> None:
        """Send the spans of the switch or repair that this worker has just completed."""
        worker = self._worker
        numbers = {"edl.generation": worker.generation, "edl.world_size": worker.size}
        key = f"{self._run}/{worker.generation}"
        self._send(switch_spans(worker.switch_times, time.time()), numbers, key)

    def logged(self, event: Event) -> None:
        """Send the spans of a checkpoint that this worker has written; ignore other events."""
        details = event.details
        if isinstance(details, CheckpointDetails):
            spans = checkpoint_spans(details.capture_s, details.write_s, event.time)
            facts = {"edl.checkpoint.path": details.path, "edl.checkpoint.bytes": details.bytes}
            self._send(spans, {"edl.generation": event.generation, **facts}, "")

    def _send(self, spans: Iterable[TimedSpan], facts: dict[str, Any], trace: str) -> None:
        """Send spans with attributes; those of the same `trace` (not empty) are in one trace."""
        common = {**self._attributes, "edl.worker": f"w{self._worker.id}", **facts}
        common["edl.step"] = self._worker.step
        with self._lock:
            if self._has_failed:
                return
            try:
                self._tracer = self._tracer or self._new_tracer()
                self._put(spans, common, trace)
            except Exception:  # of whatever exporter a user has installed
                self._has_failed = True
                logger.exception("no more spans are sent to OpenTelemetry")

    def _new_tracer(self) -> Any:
        """Return a tracer: that of the script's own provider, or else one for the environment."""
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = trace.get_tracer_provider()
        if not isinstance(provider, TracerProvider):
            provider = TracerProvider()  # at the end of the process it sends what is left
            for exporter in self._exporters:
                provider.add_span_processor(BatchSpanProcessor(exporter()))
        return provider.get_tracer("edl", __version__)

    def _put(self, spans: Iterable[TimedSpan], attributes: dict[str, Any], trace_key: str) -> None:
        from opentelemetry import trace

        contexts = {"": _parent_of(trace_key)}
        for one in spans:
            span = self._tracer.start_span(
                one.name,
                context=contexts[one.parent],
                start_time=one.start_ns,
                attributes=attributes if not one.parent else None,
            )
            span.end(one.end_ns)
            contexts[one.name] = trace.set_span_in_context(span)


def _parent_of(key: str) -> Any:
    """Return the context of the trace that all workers derive from `key`; empty: a new trace."""
    from opentelemetry import trace
    from opentelemetry.context import Context

    if not key:
        return Context()
    digest = hashlib.sha256(f"{SWITCH}/{key}".encode()).digest()
    context = trace.SpanContext(
        trace_id=int.from_bytes(digest[:16]),
        span_id=int.from_bytes(digest[16:24]),
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())


def _exporter(names: tuple[str, ...]) -> Any:
    """Return the class of the first of the exporters `names` that a package has registered."""
    for name in names:
        for found in entry_points(group=_GROUP, name=name):
            return found.load()
    raise ImportError(
        f"the exporter {' or '.join(names)} is not installed; install opentelemetry-exporter-otlp, "
        "or set OTEL_TRACES_EXPORTER=none"
    )


# ------------------------------------------------------------
# End a worker's process soon after its script; tell the launcher which stage the end has reached.
#
# `edl.init()` calls `arm` and `start` for this. The exit code is kept in this module (`fails`,
# `_see_exits`). The end of a process has three stages:
#
# 1. The script goes on: in its threads that are not daemons, in exit handlers that it has
#    registered with `atexit` since it imported edl, and in child processes that Python waits for.
# 2. The exit handlers run that libraries (comet_ml, mlflow, wandb) registered before edl was
#    imported. The launcher is told that the script has ended, and with which exit code. It allows
#    these handlers `exit_timeout_s` seconds, a setting of the job, and then kills the process.
# 3. The interpreter ends. With PyTorch or TensorFlow loaded, that takes a second of computing, all
#    of it to free memory that the operating system takes back anyway. It may also hang, in a
#    library's threads or destructors. So edl keeps the garbage collector from looking at the
#    objects that exist then, and tells the launcher that this stage has begun: the launcher ends a
#    process that does not end by itself within 2 s (`exit_s` of `SupervisorLimits`).


BREAK_S = 2.0  # for the others to close the ring, too
CLOSE_S = 10.0  # for ring and coordination to be left, besides a checkpoint that is being written
_BY_SIGNAL = "_edl_by_signal"  # an attribute of a SystemExit that a handler of a signal has raised
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


# ------------------------------------------------------------
# Tell the launcher through two files that a worker has trained its first step (`tell`).
#
# 1. A file with the monotonic time, in seconds, says that the worker has trained a step. The
#    launcher limits the number of starts that end without such a file, or soon after that time. It
#    is written at once, even while ZooKeeper cannot be reached: a worker may be killed right after
#    its first step.
# 2. A JSON file lists the modules that the worker has imported. The next workers of the job are
#    forked from a process that has imported the same modules (`template`). The list is not written
#    before the first step, because PyTorch imports 800 more modules when the first optimizer is
#    made.


def tell(trained_file: str, imports_file: str) -> None:
    """Tell the launcher that this worker has trained a step, and which modules it has imported."""
    try:
        if trained_file:
            Path(trained_file).write_text(f"{time.monotonic():.3f}")
        if imports_file and not Path(imports_file).exists():
            write_imports(Path(imports_file), config.environment_at_start(), config.environment())
    except OSError as error:  # a full disk
        logger.warning("the next workers of this job start more slowly: %s", error)


def write_imports(path: Path, started_with: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Write the names of the imported modules to a file, completely or not at all."""
    # Libraries read variables, which a script has set, when they are imported. So the process that
    # imports them for the next workers must set them, too. None: removed.
    names = sorted(started_with.keys() | now.keys())
    changed = {name: now.get(name) for name in names if started_with.get(name) != now.get(name)}
    installed, own = divided(sys.modules)
    text = json.dumps({"modules": installed, "own": own, "environment": changed})
    partial = path.with_name(f"{path.name}.{os.getpid()}")  # other workers write theirs
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def divided(modules: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Divide the imported modules into installed ones and the script's own, in import order."""
    roots = tuple(f"{root}{os.sep}" for root in _roots())
    installed: list[str] = []
    own: dict[str, str] = {}
    for name, module in list(modules.items()):
        values = getattr(module, "__dict__", {})  # no attribute of a lazy module is asked for
        spec = values.get("__spec__")
        origin = getattr(spec, "origin", None)
        if getattr(spec, "name", None) != name or name in ("__main__", "__mp_main__"):
            continue  # a second name of a module, or the script
        if isinstance(origin, str) and origin not in ("built-in", "frozen"):
            path = os.path.abspath(origin)
            if path.startswith(roots):
                installed.append(name)
            else:
                own[name] = path  # apart: it may have changed when the next worker starts
    return installed, own


def _roots() -> set[str]:
    """Return the absolute paths of the folders of Python, of installed packages, and of edl."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = {sysconfig.get_path(kind) for kind in kinds}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    return {os.path.abspath(root) for root in roots} | {str(Path(edl.__file__).parent)}


# ------------------------------------------------------------
# Let the forks of a worker (data loader processes, pools) close its sockets and end by SIGTERM.
#
# A fork has copies of the worker's connections, and of the port that the worker listens on. While
# the fork lives, other workers cannot see that the worker is gone: no connection closes, and the
# port does not refuse. The fork also has the worker's handler for SIGTERM, which asks the worker to
# leave the job. With this handler SIGTERM would not end the fork, and `multiprocessing.Pool`, which
# ends its processes by this signal, would wait for them for ever. `free_all_forks` does all of it.


# What asks a worker to leave; Slurm's --signal, submitit and Lightning send SIGUSR1 or SIGUSR2.
NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_held = threading.local()  # the signal masks from before the forks that this thread is making


def free_all_forks() -> None:
    """Make every future fork of this process close its internet sockets, and let SIGTERM end it."""
    end_forks_by_sigterm()
    _free_from_the_network()


@functools.cache
def end_forks_by_sigterm() -> None:
    """Let SIGTERM end every future fork of this process, even right after the fork was made."""
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_let_sigterm_end)


@functools.cache
def _free_from_the_network() -> None:
    os.register_at_fork(after_in_child=let_go_of_the_network)


@contextmanager
def holding_sigterm() -> Iterator[None]:
    """Block SIGTERM in this thread, and in forks that it makes, during the `with` block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    _held.__dict__.setdefault("masks", []).append(before)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.masks.pop())


def _let_sigterm_end() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in NOTICES[1:]:  # else a notice to all processes of a host would kill this one
        if is_ours(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    _release()


def is_ours(handler: object) -> bool:
    """Return whether a handler of a signal is one that lets this worker leave."""
    return getattr(handler, "__module__", "") == "edl.binding.process"


def let_go_of_the_network() -> None:
    """Replace every internet socket of this process, a fork, by the null device `/dev/null`."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _is_internet(descriptor):
                # Not closed: who still knows the number might close a file that is opened later.
                os.dup2(null, descriptor, inheritable=False)
        except OSError:
            continue  # the descriptor of the listing itself
    os.close(null)


def _is_internet(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        return duplicate.family in (socket.AF_INET, socket.AF_INET6)


# ------------------------------------------------------------
# Make the C library keep the memory that a step frees, so that the next step uses it again.
#
# A step allocates gradients and frees them, the same sizes each time. The C library (glibc) gives
# large blocks back when they are freed, and the kernel has to fill the next step's pages with
# zeros. That is 6 % of the step of an MLP with 19 MB of gradients, and a quarter with 200 MB
# (docs/benchmarks.md, "A step").


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3), malloc.h
# The user's own settings of what glibc gives back.
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
KEPT_BLOCK = 256 << 20  # bytes: larger blocks are given back as soon as they are freed
KEPT_AT_THE_END = 512 << 20  # bytes: free memory at the end of the heap beyond it is given back


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Make the C library keep freed blocks of up to 256 MiB for later allocations."""
    if any(name in environment for name in _OWN) or (
        "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # the C library is not glibc
        return False
    # The first setting ends that glibc itself moves both thresholds.
    done = (mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK), mallopt(_M_TRIM_THRESHOLD, KEPT_AT_THE_END))
    return all(done)


# ------------------------------------------------------------
# Recognise, by its message, an error by which Horovod refuses a collective in an intact ring.
#
# Horovod raises the same exception as for a broken ring, but a repair of the ring would only lead
# to the same refusal. The messages are those of Horovod's controller.cc and common.h, and of NCCL.


_REFUSAL = re.compile(
    r"Mismatched |with the same name as another|is not supported|tried to |No \w+ operation enabled"
)

_NO_ADASUM = "No Adasum operation enabled"
_NCCL = re.compile(r"ncclCommInitRank failed: invalid (usage|argument)")


def refusal(message: str, hint: str) -> UsageError | None:
    """Return the error for a call that Horovod refuses in any ring; None: build the ring anew."""
    if _NO_ADASUM in message:
        return UsageError(f"op=Adasum is not there: {ADASUM}")
    # A worker with a trained state goes on: without the newcomer the ring can be built.
    if _NCCL.search(message) is not None and not has_trained():
        return UsageError(
            f"{message}. NCCL refuses two workers on one GPU, for example: call "
            "torch.cuda.set_device(edl.local_rank()) after edl.init(), and start the job with "
            "--slots = the number of GPUs of the host. NCCL_DEBUG=WARN shows NCCL's reason"
        )
    if _REFUSAL.search(message) is not None:
        return UsageError(f"{message} (every worker must {hint})")
    return None


def classify_error(message: str) -> CollectiveFailed | UsageError:
    """Return the error to raise for a collective that has failed; mostly the ring has broken."""
    return refusal(message, "build the same model") or CollectiveFailed(message)


# ------------------------------------------------------------
# Raise an error of edl again that a framework has replaced by one of its own: `unhiding`.


_hidden: EdlError | None = None


def hide(error: EdlError) -> None:
    """Remember `error`, the last of all threads, which a framework may replace by its own."""
    global _hidden
    _hidden = error


@contextmanager
def unhiding() -> Iterator[None]:
    """Raise the error that `hide` has remembered, in place of a framework's error for it."""
    try:
        yield
    except Exception as error:
        if (hidden := hidden_in(error)) is None:
            raise
        raise hidden from error


def hidden_in(error: BaseException) -> EdlError | None:
    """Return the error of edl that a framework has replaced by `error`; None if it has not."""
    stands = _hidden is not None and not isinstance(error, EdlError) and str(_hidden) in str(error)
    return _hidden if stands else None


# ------------------------------------------------------------
# Let SIGTERM, SIGUSR1 and SIGUSR2 make a worker leave its job: `leave_on_notices`.


Handler = Callable[[int, FrameType | None], object]
_own: dict[signal.Signals, Handler | None] = {}  # the script's


def leave_on_notices(worker: Worker) -> None:
    """Let `worker` leave at these signals, and call the script's own handler of SIGTERM then."""
    end_forks_by_sigterm()
    if threading.current_thread() is not threading.main_thread():  # Python allows it there only
        return
    for number in NOTICES:
        before = signal.getsignal(number)
        if not is_ours(before):
            if number is not signal.SIGTERM and _is_handled(number):
                continue  # the script uses it for something else
            _own[number] = before if callable(before) else None  # perhaps set since the last call
        signal.signal(number, _handler(worker, _own[number]))


def _handler(worker: Worker, own: Handler | None) -> Handler:
    def leave(number: int, frame: FrameType | None) -> None:
        def call() -> None:
            assert own is not None
            name = signal.Signals(number).name
            said = f"edl: {name}: the script's handler is called; this worker then leaves the job\n"
            with suppress(OSError):  # no print(): the signal may have come in the middle of one
                os.write(2, said.encode())
            own(number, frame)

        if not has_begun():  # else this would end an exit handler, with a traceback
            worker.request_leave(None if own is None else call)

    return leave


def _is_handled(number: int) -> bool:
    """Return whether this process catches or ignores a signal, perhaps by faulthandler, in C."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    masks = re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


# ------------------------------------------------------------
# Raise, in the thread of the user's script, an error that edl found in a framework's thread.
#
# There it would reach the script with another type, and the framework would print a traceback.


def raise_in(thread: int, error: EdlError) -> bool:
    """Raise `error` in a thread once that runs Python code again; return whether it will."""
    # If the framework is raising an error of its own at that moment, pybind11 wraps `error` in a
    # RuntimeError, which `unhiding` turns back.
    hide(error)
    if thread == threading.get_ident():
        return False  # the caller raises it

    def __init__(self: EdlError) -> None:
        Exception.__init__(self, *error.args)

    # Python takes a class here, and calls it without arguments.
    kind = type(type(error).__name__, (type(error),), {"__init__": __init__})
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return bool(set_error(ctypes.c_ulong(thread), ctypes.py_object(kind)))


REGISTERS_WITHIN_S = 1.0  # whatever its launcher has asked for
_worker: Worker | None = None
_over: weakref.WeakSet[Worker] = weakref.WeakSet()


_replica: FrameworkReplica | None = None
_tracked_early: dict[str, Any] = {}
_elastic_state: str | None = None  # the class of the state that follows the job in its place


def start(binding: Callable[[], Binding], settings: dict[str, Any]) -> None:
    """Make this process a worker of its job and let it take part: the core of `edl.init()`."""
    global _worker
    settings_now = config.load(**settings)
    if settings_now.job is not None:
        _refuse_child()
        if said := sorted(settings.keys() & config.OF_THE_JOB):
            logger.warning("edl.init: %s is as the launcher of the job has it", ", ".join(said))
            settings_now = config.load(**{k: v for k, v in settings.items() if k not in said})
    if _worker is not None and not _end_at_prompt(_worker):
        return  # a second call has no effect
    if config.horovod_slot() is not None:
        _begin_again_under_edl_worker()
    if settings_now.job is None and (size := config.horovod_size()) > 1:
        raise UsageError(
            f"this is one of {size} processes that a launcher without elasticity has started; "
            "give horovodrun `--host-discovery-script edl-discover`, or use `edl run`"
        )
    worker = _worker_of(settings_now, binding())
    if settings_now.job is not None:
        free_all_forks()
        keep_freed_memory(config.environment())
        speak_in_sentences()
        offer_stacks(settings_now.stacks, settings_now.stack_signal)
        leave_on_notices(worker)
        arm()
        worker.on_trained(partial(tell, settings_now.trained_file, settings_now.imports_file))
        _let_others_repair(settings_now.registers_at_s)
    Closing(
        worker.close,
        worker.ring.break_,
        lambda: worker.checkpointing.settings.save_timeout_s,
        worker.finishing.script_ended,
        partial(_was_stopped, worker),
    ).start()
    worker.start()
    _worker = worker
    if directory := worker.checkpointing.settings.checkpoint_dir:
        checkpoint(directory)
    trace_worker(worker, settings_now.job, settings_now.run)


def _was_stopped(worker: Worker) -> bool:
    # The script's own handler of a signal has ended it, so the training has not come to its end.
    if worker.is_shared and worker.finishing.ends_early:
        fails_late(STOPPED_EXIT)
    return worker.stopped


def _end_at_prompt(worker: Worker) -> bool:
    """End the job of `worker` if it was begun at a Python prompt without a launcher."""
    global _worker, _replica, _elastic_state
    # Cells of a notebook are run again: there each edl.init() begins another job of one worker.
    if worker.is_shared or not hasattr(sys, "ps1"):
        return False
    try:
        if not worker.loader.open:  # else a cell has failed, or was broken off, in a step
            worker.finishing.script_ended()
    finally:
        worker.close()
        _over.add(worker)
        worker.loader.progress.abandon()  # or the gradients of its model would go on being its own
        _worker = _replica = _elastic_state = None
        _tracked_early.clear()
    return True


def is_over(worker: Worker) -> bool:
    """Return whether `edl.init()`, called again at a Python prompt, has ended a worker's job."""
    return worker in _over


def _worker_of(settings: config.Config, binding: Binding) -> Worker:
    """Return a new worker, which is not started yet: it is in no job and no ring."""
    ring = gloo_ring(binding, settings.own_address, settings.connect_timeout_s)
    if settings.job is None:
        return Worker(settings, ring, SharedState(keeps_events=False), JobOfOne(settings))
    shared = SharedState()
    return Worker(settings, ring, shared, Daemon(settings, shared, ring, _log))


def shutdown() -> None:
    """Leave the ring and the job for good; wait for a checkpoint that is being written.

    Nothing happens before ``edl.init()`` and in a second call. At the end of the process edl leaves
    the job by itself.
    """
    if _worker is not None:
        _worker.close()


def is_initialized() -> bool:
    """Return whether ``edl.init()`` has made this process a worker; still True after shutdown()."""
    return _worker is not None


def current_worker() -> Worker:
    """Return the worker that ``edl.init()`` has made in this process.

    Raises:
        UsageError: if ``edl.init()`` was not called.
    """
    if _worker is None:
        raise UsageError("call edl.init() first")
    return _worker


def has_trained() -> bool:
    """Return whether this process has the state of a job that has made a step."""
    return _worker is not None and not _worker.warming_up and _worker.step > 0


def rank() -> int:
    """Return this worker's rank in the ring of all workers, from 0.

    A newcomer that warms up expects the last rank, so the result is never 0 then.

    Raises:
        UsageError: if ``edl.init()`` was not called, or in the code that reads a stream of samples,
            which must be the same on all workers.
    """
    refuse_in_stream("edl.rank()")
    return current_worker().rank


def size() -> int:
    """Return the number of workers in the ring of all workers; with logical workers, their number.

    A newcomer that warms up counts the workers that it found at its start, and itself. The number
    of logical workers (``edl run --logical``) never changes, and they share each step evenly, so
    what a script computes from the size (a learning rate) holds for any number of workers. To
    divide an evaluation among the workers, use :func:`num_processes`; a call within the training
    logs a warning of that.

    Raises:
        UsageError: if ``edl.init()`` was not called, or in the code that reads a stream of samples,
            which must be the same on all workers.
    """
    refuse_in_stream("edl.size()")
    worker = current_worker()
    if worker.logical and worker.step > 0:
        _warn_of_logical_size(worker.logical)
    return worker.logical or worker.size


def num_processes() -> int:
    """Return the number of workers in the ring, by which a script may divide an evaluation.

    :func:`rank` is below it. It changes when workers come and go, and is that of :func:`size`,
    except in a job with logical workers.

    Raises:
        UsageError: if ``edl.init()`` was not called, or in the code that reads a stream of samples,
            which must be the same on all workers.
    """
    refuse_in_stream("edl.num_processes()")
    return current_worker().size


@cache
def _warn_of_logical_size(logical: int) -> None:
    logger.warning(
        "edl.size() is %d, the number of logical workers, also while fewer processes share them: "
        "to divide data among these, by edl.rank(), use edl.num_processes()",
        logical,
    )


def local_rank() -> int:
    """Return this worker's slot on its host, from 0, for choosing a device; it never changes.

    Unlike Horovod's local rank, the number does not change when another worker leaves. Two workers
    of a host have the same number only while one replaces the other and no slot of the host is
    without a worker. Without a launcher the number is 0.
    """
    return current_worker().local_rank


def local_size() -> int:
    """Return how many workers on this worker's host are in the ring, itself included.

    The result is 1 while this worker warms up.
    """
    return current_worker().ring.place.local_size


def cross_rank() -> int:
    """Return the index of this host, from 0, among the hosts with a worker of the same local rank.

    "Local rank" here is Horovod's: the index of a worker among the workers of its host, without
    gaps. It may differ from the result of :func:`local_rank`. The result is 0 while this worker
    warms up.
    """
    return current_worker().ring.place.cross_rank


def cross_size() -> int:
    """Return how many hosts have a worker with this worker's local rank, this host included.

    "Local rank" is Horovod's, as in :func:`cross_rank`. The result is 1 while this worker warms up.
    """
    return current_worker().ring.place.cross_size


def generation() -> int:
    """Return the number of the ring's generation, which grows with each change of the ring.

    It is 0 while this worker warms up, and always in a job without a launcher.
    """
    return current_worker().generation


def step() -> int:
    """Return how many optimizer updates the job has made since it began, on all workers together.

    An update that all workers make together counts once; updates before a restart count as well. In
    a script with an elastic state the result is the number of saves of this state. It is 0 until a
    newcomer has got the job's state.
    """
    return current_worker().step


def leader() -> str:
    """Return the name, such as ``w0``, of the worker whose daemon decides about membership.

    It is this worker's own name while no leader is known, and in a job without a launcher.
    """
    return f"w{current_worker().leader.worker}"


def is_leader() -> bool:
    """Return whether this worker's daemon is the leader, which decides about membership.

    Also True while no leader is known, and in a job without a launcher. So use rank 0, and not the
    leader, for work that exactly one worker must do.
    """
    worker = current_worker()
    return worker.leader.worker == worker.id


def is_warming_up() -> bool:
    """Return whether this worker is a newcomer that still warms up, and so is in no common ring.

    In its warm-up it trains a batch alone; the result is discarded.
    """
    return current_worker().warming_up


def track(check: Callable[[dict[str, Any]], None], objects: dict[str, Any]) -> None:
    """Let newcomers and checkpoints get the states of the script's `objects`, from now on."""
    current_worker()
    check(objects)
    _refuse_beside_state(objects)
    if _replica is not None:
        _replica.track(objects)
    else:
        add_tracked(_tracked_early, objects)


def let_state_follow(state_name: str) -> None:
    """Declare that the script has an elastic state; from now on `edl.track` raises a UsageError."""
    global _elastic_state
    _elastic_state = state_name
    _refuse_beside_state(_tracked_early)


def _refuse_beside_state(objects: dict[str, Any]) -> None:
    """Raise a UsageError if a script has both tracked objects and an elastic state."""
    for name in objects if _elastic_state is not None else ():
        raise UsageError(
            f"edl.track({name}=...) does nothing beside an elastic state; give it to the state: "
            f"elastic.{_elastic_state}(..., {name}=...)"
        )


def checkpoint(
    directory: str | os.PathLike[str], every_s: float = 300.0, keep: int = 3, sharded: bool = False
) -> None:
    """Save the job's state in a directory regularly, so the job can outlive its workers.

    The state is the model, the optimizer, tracked objects, the step and the ledger. Call this on
    all workers before training begins. Rank 0 saves before the first step, then between two steps
    when ``every_s`` seconds have passed, and at the end. It copies the state, and a thread writes
    it. In a job without a launcher, SIGTERM then makes the worker save and end. When all die, new
    ones continue from the newest file. So does `edl run --resume`, with any number of workers.

    Args:
        directory: a directory that all hosts share, used for this training only; it is created if
            it does not exist. Or a URL that the library fsspec knows, such as ``s3://bucket/run``.
        every_s: seconds from one checkpoint to the next; above 0.
        keep: how many of the newest checkpoints are kept, at least 1; older ones are deleted.
        sharded: whether each worker writes a part of the state between two steps, not rank 0 all.

    Raises:
        CheckpointError: if nothing can be written into the directory.
        UsageError: if called twice, in training, before ``edl.init()``, or with a wrong value.
    """
    worker = current_worker()
    worker.checkpointing.attach(location(directory), every_s, keep, sharded)
    leave_on_notices(worker)


def on_resize(callback: Callable[[int, int], None]) -> None:
    """Call ``callback(old_size, new_size)`` on this worker after each change of its ring.

    The changes are: this worker joins, a planned switch, and a repair after a crash. The training
    thread calls it, after the callbacks of earlier calls of this function.

    Args:
        callback: a function of two numbers of workers: those in the ring before and after.
    """
    current_worker().on_resize(callback)


def attach_replica(
    replica: FrameworkReplica, before_join: Callable[[], None] = lambda: None
) -> None:
    """Let this worker send, receive and save the state in `replica` from now on."""
    global _replica
    current_worker().attach_replica(replica, before_join)
    if current_worker().is_shared:
        leave_on_notices(current_worker())  # the script may have set handlers since edl.init()
    current_worker().describe_model(replica.signature)
    replica.track(_tracked_early)
    _replica = replica


def _refuse_child() -> None:
    """Raise a UsageError if `multiprocessing` has started this process; else do nothing."""
    # Such a child of a worker would take part in the job under its parent's id. If it is spawned,
    # it runs the script's top level before it knows its parent, but has `_inheriting`.
    inheriting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if inheriting or multiprocessing.parent_process() is not None:
        raise UsageError(
            "edl.init() was called in a process that multiprocessing has started, which is no "
            'worker; put edl.init() and the training under `if __name__ == "__main__":`'
        )


def _let_others_repair(registers_at_s: float | None) -> None:
    """Wait before this worker, which replaces a dead one, registers: the others repair first."""
    early_s = (registers_at_s or 0.0) - time.monotonic()
    time.sleep(min(max(0.0, early_s), REGISTERS_WITHIN_S))


def _begin_again_under_edl_worker() -> NoReturn:
    """Replace this process by `edl-worker`, which starts the script again as its child process."""
    # Else Horovod's driver would exclude its host or end the job when it ends (docs/adr/0009).
    command = sys.orig_argv
    if len(command) < 2 or "-" in command[1:2]:
        raise UsageError("write `edl-worker` before the command that horovodrun starts")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "edl.cli.worker", *command])


def speak_in_sentences() -> None:
    """Print an `EdlError` that ends the script as one sentence, without a traceback."""
    global _hook
    previous = sys.excepthook
    if previous is _hook:  # the script has set no other one since edl was imported
        return

    def hook(kind: Any, error: Any, trace: Any) -> None:
        error = hidden_in(error) or error
        refused = error.exit_code if isinstance(error, NewcomerDiffers) else None
        fails(1 if refused is None else refused)
        if isinstance(error, EdlError):
            logger.debug("", exc_info=(kind, error, trace))
            print(f"edl: {error}", file=sys.stderr, flush=True)
            if refused is not None:  # CPython ends with the code of what its hook raises
                say_refused()
                raise SystemExit(refused)
        else:
            previous(kind, error, trace)

    sys.excepthook = _hook = hook


def _own_log() -> OwnLog | None:
    if not (path := config.log_of_worker()):
        return None
    log = OwnLog(path)
    log.guard()
    return log


def guard_output() -> None:
    """Leave out output that cannot be written to this worker's log file, if it has one."""
    global _log
    _log = _own_log()


_log: OwnLog | None = None
_hook: Any = None

speak_in_sentences()

guard_output()
