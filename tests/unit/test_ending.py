"""The end of a worker's process, in processes of their own: told, flushed, and in bounded time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# What is registered before edl's own comes after: it sees what a launcher sees then. So does the
# wait for processes, where a framework has imported multiprocessing first.
LAST = """
import atexit, multiprocessing.util, os, sys, time
def marker():
    return open(f"/proc/{os.getpid()}/comm").read().strip()
atexit.register(lambda: print(marker(), flush=True))
from edl.framework import ending
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
    ("last", "said", "code"), [("", "edl-ended:0", 0), ("1/0", "edl-ended:1", 1)]
)
def test_the_end_of_a_script_is_reported(tmp_path: Path, last: str, said: str, code: int) -> None:
    hook = "import edl.framework.process\nending.arm()\n"
    done = run(tmp_path, hook + last)
    assert (done.stdout.strip(), done.returncode) == (said, code)


def test_without_a_launcher_nothing_is_reported(tmp_path: Path) -> None:
    assert not run(tmp_path, "").stdout.startswith("edl-ended")


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
    assert run(tmp_path, script).stdout.strip() == "edl-ended:0"
    assert (tmp_path / "log.txt").read_text() == "the last line"


def test_a_process_that_the_script_waits_for_is_part_of_it(tmp_path: Path) -> None:
    script = """
ending.arm()
multiprocessing.get_context("fork").Process(target=time.sleep, args=(1.0,)).start()
"""
    assert not run(tmp_path, script).stdout.strip().startswith("edl-ended:0")


def test_a_close_that_hangs_is_unblocked_and_then_reported(tmp_path: Path) -> None:
    script = """
ending.BREAK_S, ending.CLOSE_S = 0.1, 0.1
ending.arm()
def close():
    deadline = time.monotonic() + 30.0
    while not marker().startswith("edl-ended") and time.monotonic() < deadline:
        time.sleep(0.02)
    print("closed", flush=True)
ending.Closing(close, lambda: print("unblocked", flush=True), lambda: 0.0).start()
"""
    assert run(tmp_path, script).stdout.split() == ["unblocked", "closed", "edl-ended:0"]
