"""A process that runs no Python any more writes where its threads are."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

NUMBER = 40
STACKS = ("in hold_the_lock", "in wait_for_it")
FROZEN = """
import ctypes, sys, threading, time
from edl.job.daemon import offer_stacks

def hold_the_lock():
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    print("holds", flush=True)
    libc.pthread_mutex_lock(mutex)

def wait_for_it():
    time.sleep(60)

offer_stacks(sys.argv[1], int(sys.argv[2]))
threading.Thread(target=wait_for_it, daemon=True).start()
hold_the_lock()
"""


def test_all_threads_are_written_though_one_holds_pythons_lock(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    command = [sys.executable, "-c", FROZEN, str(path), str(NUMBER)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            assert path.read_text() == ""
            process.send_signal(NUMBER)
            deadline = time.monotonic() + 20.0
            while not all(one in path.read_text() for one in STACKS):
                assert time.monotonic() < deadline, path.read_text()
                time.sleep(0.01)
            assert process.poll() is None, "the signal ends nothing"
        finally:
            process.kill()


HANDLED = """
import os, signal, sys
from edl.job.daemon import offer_stacks
signal.signal(int(sys.argv[2]), lambda *_: print("mine", flush=True))
offer_stacks(sys.argv[1], int(sys.argv[2]))
offer_stacks("", int(sys.argv[2]))
offer_stacks(sys.argv[1], 0)
os.kill(os.getpid(), int(sys.argv[2]))
"""


def test_a_handler_of_the_script_stays(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    command = [sys.executable, "-c", HANDLED, str(path), str(int(signal.SIGUSR1))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.stdout == "mine\n", done.stderr
    assert not path.exists(), "the agent would send the signal"
