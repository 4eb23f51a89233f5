"""The end of a worker's process, in processes of their own: told, flushed, and in bounded time."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl.binding import process
from edl.host.process import UNKNOWN_EXIT, ScriptEnd
from edl.host.workers import Workers

# What is registered before edl's own comes after: it sees what a launcher sees then. So does the
# wait for processes, where a framework has imported multiprocessing first. Python drops this
# attribute of sys after the last exit handler, soon after the one that edl uses.
LAST = """
import atexit, multiprocessing.util, os, sys, time
from sys import exit as early
def marker():
    return open(f"/proc/{os.getpid()}/comm").read().strip()
atexit.register(lambda: print(marker(), flush=True))
class After:
    def __del__(self):
        os.write(1, (marker() + chr(10)).encode())
sys.__interactivehook__ = After()
from edl.binding import process as ending
"""


def run(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LAST + script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("", 0),
        ("raise ValueError", 1),
        ("sys.exit(3)", 3),
        ("early(3)", 3),
        ("exit(4)", 4),
        ("raise SystemExit(5)", 5),
        ("raise SystemExit('the loss is NaN')", 1),
        ("raise type('Abort', (SystemExit,), {})(6)", 6),
    ],
)
def test_the_end_of_a_script_is_reported(tmp_path: Path, last: str, code: int) -> None:
    """While a library's exit handler runs that was registered before edl's, and after the last."""
    done = run(tmp_path, "import edl.binding.process\nending.arm()\n" + last)
    said = [f"edl-exiting:{code}", f"edl-ended:{code}"]
    assert (done.stdout.split(), done.returncode) == (said, code)


def test_an_exit_that_the_script_has_caught_is_no_end(tmp_path: Path) -> None:
    script = """
import edl.binding.process
ending.arm()
for exit in (sys.exit, early):
    try:
        exit(3)
    except SystemExit as error:
        print(error.code)
"""
    assert run(tmp_path, script).stdout.split() == ["3", "3", "edl-exiting:0", "edl-ended:0"]


def test_an_exit_in_another_thread_ends_that_thread_only(tmp_path: Path) -> None:
    """Python prints nothing of it: its threads ignore SystemExit, but not its subclasses."""
    script = """
import threading
import edl.binding.process
ending.arm()
def leave():
    raise SystemExit(3)
for target in (sys.exit, early, leave):
    thread = threading.Thread(target=target, args=(3,) if target is not leave else ())
    thread.start()
    thread.join()
"""
    done = run(tmp_path, script)
    assert (done.stdout.split(), done.stderr) == (["edl-exiting:0", "edl-ended:0"], "")


@pytest.mark.parametrize(
    ("status", "code"), [(None, None), (3, 3), ("no", "no"), ((1, 2), (1, 2)), (SystemExit(4), 4)]
)
def test_sys_exit_raises_what_python_does(status: Any, code: object) -> None:
    with pytest.raises(SystemExit) as caught:
        sys.exit(status)
    for error in (caught.value, copy.copy(caught.value), pickle.loads(pickle.dumps(caught.value))):
        assert (type(error), error.code, error.__dict__) == (SystemExit, code, {})
    caught.value.code = 7
    assert caught.value.code == 7
    del caught.value.code
    assert caught.value.code is None


def test_without_a_launcher_nothing_is_reported(tmp_path: Path) -> None:
    assert "edl-e" not in run(tmp_path, "").stdout


def test_what_the_script_wrote_is_written_though_it_closes_nothing(tmp_path: Path) -> None:
    """The file is part of a cycle: only a collection would find it, and there is none."""
    script = """
class Log: pass
log = Log()
log.itself = log
log.file = open("log.txt", "w")
log.file.write("the last line")
ending.arm()
del log
import gc
gc.disable()
"""
    assert run(tmp_path, script).stdout.split() == ["edl-exiting:0", "edl-ended:0"]
    assert (tmp_path / "log.txt").read_text() == "the last line"


def test_a_process_that_the_script_waits_for_is_part_of_it(tmp_path: Path) -> None:
    script = """
ending.arm()
multiprocessing.get_context("fork").Process(target=time.sleep, args=(1.0,)).start()
"""
    said = run(tmp_path, script).stdout.split()
    assert not said[0].startswith("edl-e")
    assert said[1] == "edl-ended:0"


def test_a_close_that_hangs_is_unblocked_and_then_reported(tmp_path: Path) -> None:
    script = """
ending.BREAK_S, ending.CLOSE_S = 0.1, 0.1
ending.arm()
def close():
    deadline = time.monotonic() + 30.0
    while not marker().startswith("edl-ended:") and time.monotonic() < deadline:
        time.sleep(0.02)
    print("closed", flush=True)
ending.Closing(close, lambda: print("unblocked", flush=True), lambda: 0.0).start()
"""
    said = ["unblocked", "closed", "edl-exiting:0", "edl-ended:0"]
    assert run(tmp_path, script).stdout.split() == said


CLOSING = """
import signal, threading
import edl.binding.process
ending.arm()
closing = ending.Closing(lambda: None, lambda: None, lambda: 0.0, lambda: print("told", flush=True))
"""
BY_SIGNAL = """
closing.start()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
RAISED_BY_SIGNAL = """
closing.start()
def leave(*_):
    raise SystemExit(0)
signal.signal(signal.SIGTERM, leave)
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(30)
"""
CAUGHT_ON_ITS_WAY = RAISED_BY_SIGNAL.replace(
    "time.sleep(30)",
    """
try:
    time.sleep(30)
finally:
    print("cleaned up")
""",
)
BY_THREAD = """
def train():
    closing.start()
    time.sleep(0.3)
threading.Thread(target=train).start()
time.sleep(0.1)
"""
IN_FORK = """
closing.start()
child = multiprocessing.get_context("fork").Process(target=print, args=("child",))
child.start()
child.join()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("last", "told"),
    [
        ("closing.start()\nsys.exit(0)", True),
        ("closing.start()\nsys.exit(3)", False),
        ("closing.start()\nraise SystemExit(0)", True),
        ("closing.start()\nraise SystemExit('the loss is NaN')", False),
        ("closing.start()\nsys.excepthook = print\nraise ValueError", False),
        (BY_SIGNAL, False),
        (RAISED_BY_SIGNAL, False),
        (CAUGHT_ON_ITS_WAY, False),
        (BY_THREAD, False),
        (IN_FORK, False),
    ],
    ids=[
        "exit 0",
        "exit 3",
        "raise 0",
        "raise a message",
        "error",
        "signal",
        "raise by signal",
        "caught",
        "other thread",
        "fork",
    ],
)
def test_the_other_workers_are_told_of_an_end_that_the_script_chose(
    tmp_path: Path, last: str, told: bool
) -> None:
    """Not of an error, of another code than 0, of a signal's handler; not by a fork."""
    assert ("told" in run(tmp_path, CLOSING + last).stdout.split()) == told


FAILS = """
from edl.errors import JobFailed, UsageError
def fails():
    raise {error}
ending.Closing(lambda: None, lambda: None, lambda: 0.0, fails).start()
"""


def test_what_ends_the_job_at_the_end_of_a_script_is_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, FAILS.format(error='JobFailed("w0 ended its script")'))
    assert (done.stderr, done.returncode) == ("edl: w0 ended its script\n", 1)


@pytest.mark.parametrize("launcher", ["", "ending.arm()\n"])
def test_a_worker_fails_by_any_error_at_its_end(tmp_path: Path, launcher: str) -> None:
    """It may come from the framework, in the update by the last batch."""
    done = run(tmp_path, FAILS.format(error='OSError("the disk is broken")') + launcher)
    assert done.returncode == 1
    assert "OSError: the disk is broken" in done.stderr


def test_a_job_without_a_launcher_that_fails_at_its_end_loses_no_output(tmp_path: Path) -> None:
    """The process is ended with another code than Python's, which flushes files on its way."""
    writes = """
print("trained")
file = open("log.txt", "w")
file.write("the last line")
"""
    done = run(tmp_path, writes + FAILS.format(error='UsageError("it may not end here")'))
    assert (done.returncode, done.stdout.split()[0]) == (1, "trained")
    assert (tmp_path / "log.txt").read_text() == "the last line"


def test_an_end_that_the_job_was_told_of_is_reported_as_one(tmp_path: Path) -> None:
    script = """
import edl.binding.process
ending.arm()
ending.Closing(lambda: None, lambda: None, lambda: 0.0, stopped=lambda: True).start()
"""
    assert run(tmp_path, script).stdout.split() == ["edl-stops:0", "edl-stopped:0"]


def test_a_sigterm_ends_no_exit_handler(tmp_path: Path) -> None:
    script = """
import signal, types
from edl.binding import process as notices
def request_leave(own):
    raise SystemExit(0)
notices.leave_on_notices(types.SimpleNamespace(request_leave=request_leave))
def close():
    os.kill(os.getpid(), signal.SIGTERM)
    print("closed")
ending.Closing(close, lambda: None, lambda: 0.0).start()
"""
    done = run(tmp_path, script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split()[0] == "closed"


def test_what_a_process_has_said_is_known_of_one_that_has_ended(tmp_path: Path) -> None:
    """Its launcher may not have looked at it between the two."""
    says = "import os; open(f'/proc/self/task/{os.getpid()}/comm', 'w').write('edl-stopped:0')"
    workers = Workers((sys.executable, "-c", says), tmp_path, dict(os.environ), tmp_path)
    workers.start("x-0", 0)
    pid = workers.pid_of("x-0")
    assert pid is not None
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert workers.reap()["x-0"].said == ScriptEnd(0, handled=True, stopped=True)


def test_a_program_that_is_not_there_leaves_a_log(tmp_path: Path) -> None:
    workers = Workers(("pythn", "x.py"), tmp_path, dict(os.environ), tmp_path)
    with pytest.raises(FileNotFoundError) as caught:
        workers.start("x-0", 0)
    said = "there is no program 'pythn' on PATH"
    assert caught.value.strerror == said
    assert workers.log_of("x-0").read_text() == f"edl: cannot start pythn x.py: {said}\n"


def test_a_process_that_somebody_else_has_reaped_has_ended(tmp_path: Path) -> None:
    """As in a program that calls `edl.run` in a thread and ignores SIGCHLD."""
    workers = Workers(("true",), tmp_path, dict(os.environ), tmp_path)
    workers.start("x-0", 0)
    pid = workers.pid_of("x-0")
    assert pid is not None
    os.waitpid(pid, 0)
    assert workers.reap()["x-0"].code == UNKNOWN_EXIT
    assert len(workers) == 0


@pytest.mark.parametrize(
    ("early_s", "slept_s"), [(None, 0.0), (-5.0, 0.0), (0.1, 0.1), (60.0, 1.0)]
)
def test_a_replacement_registers_when_the_others_have_repaired_their_ring(
    early_s: float | None, slept_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: 100.0)
    monkeypatch.setattr(process, "time", clock)
    process._let_others_repair(None if early_s is None else 100.0 + early_s)
    assert slept == [pytest.approx(slept_s)]


def test_what_is_called_first_is_not_ended_by_a_sigterm(tmp_path: Path) -> None:
    """The handler of SIGTERM asks whether the exit handler has begun."""
    script = """
closing = ending.Closing(
    lambda: print("closed"), lambda: None, lambda: 0.0, lambda: None, lambda: False
)
closing.start()
for name in "ab":
    ending.call_first(lambda name=name: print(name, ending.has_begun()))
"""
    assert run(tmp_path, script).stdout.split("\n")[:3] == ["b True", "a True", "closed"]
