"""The program of the template process: import what a job's workers import, then fork workers.

The launcher runs this file by its path, with the interpreter and the options of the job's command:

    python [options] main.py DESCRIPTOR IMPORTS

DESCRIPTOR is the number of a socket to the launcher, which is the parent of this process. IMPORTS
is the file that the job's first worker has written (:mod:`edl.binding.process`). This program
imports nothing of edl by itself, so that a worker finds the same modules, in the same order, as a
worker that was started by ``exec``.

Messages on the socket are JSON, one in a packet:

1. From here, once: ``{"ready": true}``, or ``{"refused": REASON}`` before this process ends.
2. From the launcher, for each worker: ``{}`` with three descriptors: a file with the order (JSON:
   ``environment``, ``cwd``, ``command``, ``main``, ``target``, ``arguments``, ``template``), the
   worker's log, and a socket to the new worker.
3. From the new worker, on that socket: ``{"pid": PID}``. It runs the script when the launcher
   answers, and ends at once when the launcher has closed the socket.

The worker is a child of the launcher, not of this process: it is forked by an intermediate process
that ends at once, while the launcher adopts orphans (``PR_SET_CHILD_SUBREAPER``). The main function
is :func:`serve`; in the new worker, what it returns is run as the script.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
    del sys.path[0]  # the directory of this file: no module of a worker may come from there

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import struct
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

YIELDS_S = 20.0  # at the lowest priority, at most
LOWEST = 19
DEADLINE_S = 10.0  # for the launcher to become the parent of a new worker, and to answer it
INHERITED = "EDL_INHERITED_TEMPLATE"  # SOCKET:PROCESS of a template; edl.config reads it
_BAD_CUDA, _NAMELESS = 3, 4  # exit codes of a process that is forked on trial
_PACKET = 1 << 16  # bytes of a message, at most
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_MM, _PR_SET_MM_MAP = 1, 15, 35, 14


def serve(descriptor: int, imports: str) -> dict[str, Any]:
    """Import a worker's modules, report, and fork at each order; return it, in workers only."""
    launcher = os.getppid()
    control = socket.socket(fileno=descriptor)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    with open(imports, encoding="utf-8") as file:
        what = json.load(file)
    _yield_to_others(nice)
    culprit = _import_all(what["modules"], what["environment"])
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    if reason := _why_no_fork(culprit, what["own"], control):
        control.send(json.dumps({"refused": reason}).encode())
        os._exit(0)
    print(f"ready, with {len(sys.modules)} modules", flush=True)
    control.send(b'{"ready": true}')
    return _fork_at_orders(control, launcher)


def _fork_at_orders(control: socket.socket, launcher: int) -> dict[str, Any]:
    while True:
        message, ancillary, _, _ = socket.recv_fds(control, _PACKET, 3)
        if not message or len(ancillary) != 3:
            os._exit(0)
        if _fork(launcher):
            control.close()
            order_file, log, answer = ancillary
            return _become_worker(order_file, log, answer)
        for one in ancillary:
            os.close(one)


def _yield_to_others(nice: int) -> None:
    """Lower the priority of this process to the lowest for at most 20 s (`YIELDS_S`)."""
    # An ordinary user may not restore it. Not for longer: beside workers that use all processors
    # the imports would take minutes.
    if (trial := os.fork()) == 0:
        try:
            os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
            os.setpriority(os.PRIO_PROCESS, 0, nice)
        except OSError:  # of an ordinary user
            os._exit(1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1]) == 0:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST)
        signal.signal(signal.SIGALRM, lambda *_: os.setpriority(os.PRIO_PROCESS, 0, nice))
        signal.setitimer(signal.ITIMER_REAL, YIELDS_S)


def _import_all(modules: list[str], environment: dict[str, str | None]) -> str:
    before = dict(os.environ)
    _set_environment({**before, **environment})
    culprit = "site, at the start of Python" if _threads() > 1 else ""
    for name in modules:
        if name in sys.modules:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - what an import may raise is not known
            print(f"{name} cannot be imported before a worker starts: {error}", flush=True)
            continue
        if not culprit and _threads() > 1:
            culprit = name
    _set_environment(before)
    gc.collect()
    gc.freeze()  # what is here stays: the collections of the workers leave their pages shared
    return culprit


def _set_environment(values: Mapping[str, str | None]) -> None:
    """Make `values` the whole environment of this process; a name with value None is left out."""
    for name in os.environ.keys() - {name for name, value in values.items() if value is not None}:
        del os.environ[name]
    os.environ.update({name: value for name, value in values.items() if value is not None})


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _why_no_fork(culprit: str, own: dict[str, str], control: socket.socket) -> str:
    for name, path in own.items():
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if name in sys.modules and (origin is None or os.path.abspath(origin) != path):
            return f"the script has a module {name}, and an import has imported another one"
    # On trial, as OpenBLAS ends its threads before each fork.
    code = _tried()
    if code in _OF_A_TRIAL:
        return _OF_A_TRIAL[code]
    if code != 0:
        return f"a process that was forked on trial ended with {code}"
    if _threads() > 1:
        return f"the import of {culprit} has started a thread"
    for name in os.listdir("/proc/self/fd"):
        try:
            opened = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the descriptor of the listing itself
            continue
        is_shared = opened.startswith(("/dev/nvidia", "/dev/kfd", "socket:", "pipe:"))
        if is_shared and int(name) != control.fileno():
            return f"an import has opened {opened}, which all workers would share"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        if shared := next((line for line in file if " rw-s " in line), ""):
            return f"an import has made memory that all workers would share: {shared.split()[-1]}"
    return ""


_OF_A_TRIAL = {
    _BAD_CUDA: "an import has begun to use CUDA",
    _NAMELESS: "this kernel does not let a forked process show its own environment",
}


def _tried() -> int:
    if (trial := os.fork()) == 0:
        code = 2
        try:
            cuda = getattr(sys.modules.get("torch"), "cuda", None)
            if cuda is not None and cuda._is_in_bad_fork():
                code = _BAD_CUDA
            else:
                _show_as([sys.executable], {"EDL_TRIAL": "1"})
                with open("/proc/self/environ", "rb") as file:
                    code = 0 if file.read() == b"EDL_TRIAL=1\0" else _NAMELESS
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(trial, 0)[1])


def _fork(launcher: int) -> bool:
    """Fork a child of the launcher, which adopts orphans meanwhile; return True in the child."""
    sys.stdout.flush()
    sys.stderr.flush()
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    if os.fork():
        os._exit(0)
    os.setsid()
    deadline = time.monotonic() + DEADLINE_S
    while os.getppid() != launcher:
        if time.monotonic() > deadline:
            os._exit(1)
        time.sleep(0.0002)
    return True


def _become_worker(order_file: int, log: int, answer: int) -> dict[str, Any]:
    with socket.socket(fileno=answer) as launcher:
        launcher.settimeout(DEADLINE_S)
        try:
            launcher.send(json.dumps({"pid": os.getpid()}).encode())
            allowed = launcher.recv(_PACKET)
        except OSError:
            allowed = b""
    if not allowed:  # the launcher has given up or died, so no process knows of this one
        os._exit(1)
    with open(order_file, encoding="utf-8") as file:
        file.seek(0)
        order: dict[str, Any] = json.load(file)
    null = os.open(os.devnull, os.O_RDWR)
    for mine, standard in ((null, 0), (log, 1), (log, 2)):
        os.dup2(mine, standard)
    os.close(log)
    os.close(null)
    os.chdir(order["cwd"])
    _set_environment(order["environment"])
    _show_as(order["command"], order["environment"])
    importlib.invalidate_caches()
    # NumPy's seed and multiprocessing's key are drawn anew; Python's generator does so itself.
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()
    if processes := sys.modules.get("multiprocessing.process"):
        current = processes.current_process()
        current.authkey = os.urandom(len(current.authkey))
    process = sys.modules.get("edl.binding.process")
    if process is not None:
        process.guard_output()
    sys.orig_argv = order["command"]
    return _give_template(order) if order["template"] else order


def _give_template(order: dict[str, Any]) -> dict[str, Any]:
    """Fork a second template for this process, for tests; return the order, also in its workers."""
    launcher, (ours, theirs) = os.getpid(), socket.socketpair(type=socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _show_as([sys.executable, __file__, "inherited"], order["environment"])
        return _fork_at_orders(theirs, launcher)
    theirs.close()
    os.environ[INHERITED] = f"{ours.detach()}:{pid}"
    return order


# --- what the system shows of a process


def _prctl(*arguments: Any) -> int:
    """Call `prctl`, with integers or arrays (their addresses); -1 for an error."""
    values = [one if isinstance(one, ctypes.Array) else ctypes.c_ulong(one) for one in arguments]
    values += [ctypes.c_ulong(0)] * (5 - len(values))
    return int(ctypes.CDLL(None, use_errno=True).prctl(*values))


def _show_as(command: list[str], environment: dict[str, str]) -> None:
    """Make `ps` and the files in `/proc` show `command` and `environment` for this process."""
    global _shown
    words = [os.fsencode(word) for word in command]
    pairs = [os.fsencode(f"{name}={value}") for name, value in environment.items()]
    # Linux reads both from memory whose address a process may move.
    arguments, variables = (b"".join(one + b"\0" for one in each) for each in (words, pairs))
    _shown = ctypes.create_string_buffer(arguments + variables, len(arguments) + len(variables))
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(os.path.basename(words[0])[:15]))
    start = ctypes.addressof(_shown)
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    code, data = [fields[n - 3] for n in (26, 27)], [fields[n - 3] for n in (45, 46)]
    heap, stack = fields[47 - 3], fields[28 - 3]
    sbrk = ctypes.CDLL(None).sbrk
    sbrk.restype = ctypes.c_void_p
    ends = start, start + len(arguments), start + len(arguments), start + len(_shown)
    places = *map(int, (*code, *data, heap)), sbrk(ctypes.c_ssize_t(0)), int(stack), *ends
    map_ = struct.pack("=12QII", *places, 0, 0, 0xFFFFFFFF)  # no auxiliary vector, no executable
    _prctl(_PR_SET_MM, _PR_SET_MM_MAP, ctypes.create_string_buffer(map_, len(map_)), len(map_))


_shown: Any = None  # holds the memory that the system reads


# --- the script


def run_as_main(kind: str, target: str, arguments: list[str]) -> None:
    """Run a script, a module or code as `__main__`, as the interpreter does."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__annotations__={}, __builtins__=sys.modules["builtins"])
    sys.modules["__main__"] = module
    if kind == "module":
        _run_module(target, arguments)
    elif kind == "code":
        _set_path("")
        sys.argv[:] = ["-c", *arguments]
        module.__dict__["__loader__"] = importlib.machinery.BuiltinImporter
        _exec(f"{target}\n", "<string>", module)
    else:
        sys.argv[:] = [target, *arguments]
        path = os.path.join(os.getcwd(), target)  # the interpreter does not normalise it either
        if _is_importable(path):
            _set_path(path, always=True)
            _run_module("__main__", arguments, alter_argv=False)
            return
        _set_path(os.path.dirname(os.path.realpath(target)))
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        module.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError as error:
            print(
                f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] "
                f"{error.strerror}",
                file=sys.stderr,
            )
            raise SystemExit(2) from None
        _exec(text, path, module)


def _is_importable(path: str) -> bool:
    for hook in sys.path_hooks:
        try:
            hook(path)
        except ImportError:
            continue
        return True
    return False


def _set_path(first: str, always: bool = False) -> None:
    if always or (not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated):
        sys.path.insert(0, first)


def _run_module(name: str, arguments: list[str], alter_argv: bool = True) -> None:
    import runpy

    if alter_argv:
        _set_path(os.getcwd())
        sys.argv[:] = ["-m", *arguments]
    _showing(lambda: runpy._run_module_as_main(name, alter_argv))  # type: ignore[attr-defined]


def _exec(text: str | bytes, path: str, module: types.ModuleType) -> None:
    _showing(lambda: exec(compile(text, path, "exec", dont_inherit=True), module.__dict__))


def _showing(run: Callable[[], object]) -> None:
    try:
        run()
    except SystemExit:
        raise
    except BaseException:
        show = sys.excepthook

        def show_script(kind: Any, error: BaseException, trace: types.TracebackType | None) -> None:
            inner = trace
            while inner is not None:
                if inner.tb_frame.f_code.co_filename == __file__:
                    trace = inner.tb_next
                inner = inner.tb_next
            show(kind, error.with_traceback(trace), trace)

        sys.excepthook = show_script
        raise


if __name__ == "__main__":
    order_ = serve(int(sys.argv[1]), sys.argv[2])
    run_as_main(order_["main"], order_["target"], order_["arguments"])
