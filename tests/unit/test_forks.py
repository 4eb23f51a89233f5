"""A fork of a worker holds none of its connections, so that a death is seen at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from edl.binding.process import let_go_of_the_network

CHILD = """
import os, signal, socket, sys, time
from edl.binding.process import free_all_forks
server = socket.create_server(("127.0.0.1", 0))
one = socket.create_connection(server.getsockname())
two, _ = server.accept()
signal.signal(signal.SIGTERM, lambda *_: None)
free_all_forks()
free_all_forks()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(1)
one.close()
assert two.recv(1) == b""  # the fork does not hold the other end
port = server.getsockname()[1]
server.close()
try:
    socket.create_connection(("127.0.0.1", port), 5)
except ConnectionRefusedError:
    print("refused", flush=True)
os.kill(child, signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_forks_let_go_and_end_by_sigterm() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == ["refused", "-15"], done.stderr


def test_numbers_stay_taken_and_pipes_stay_open() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        let_go_of_the_network()
        same = os.path.samestat(os.fstat(server.fileno()), os.stat(os.devnull))
        os.write(writing, b"yes" if same else b"no")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 10) == b"yes"
    os.waitpid(child, 0)
    os.close(reading)
    server.close()


ENDED_AT_ONCE = """
import multiprocessing, os, signal, sys, threading, time
from edl.binding.process import free_all_forks
signal.signal(signal.SIGTERM, lambda *_: None)  # the worker's: it leaves later
free_all_forks()

def ends(child):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return False

def end_many(count):
    for _ in range(count):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(1)
        os.kill(child, signal.SIGTERM)
        lived.append(not ends(child))

lived = []
threads = [threading.Thread(target=end_many, args=(100,)) for _ in range(2)]
for thread in threads:
    thread.start()
end_many(100)
for thread in threads:
    thread.join()
print(len(lived), "forks,", sum(lived), "lived on", flush=True)
before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
for _ in range(20):
    multiprocessing.Pool(4).terminate()
    with multiprocessing.Pool(2) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]
assert signal.SIGTERM not in before
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
print("20 pools", flush=True)
"""


def test_a_fork_ends_by_a_sigterm_that_comes_at_once() -> None:
    """As multiprocessing.Pool ends its processes: it may be before they have their own handler."""
    command = [sys.executable, "-c", ENDED_AT_ONCE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.stdout.splitlines() == ["300 forks, 0 lived on", "20 pools"], done.stderr


FORK_OF_FORK = """
import os, signal, time
from edl.binding.process import free_all_forks, holding_sigterm
signal.signal(signal.SIGTERM, lambda *_: None)
free_all_forks()
with holding_sigterm():
    child = os.fork()
    if child == 0:
        blocked = signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        os._exit(7 if blocked and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 1)
assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_a_fork_keeps_sigterm_blocked_where_its_maker_says_so() -> None:
    """A loader's process ends by a SIGTERM of its worker only, from its first moment."""
    command = [sys.executable, "-c", FORK_OF_FORK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.stdout.split() == ["7"], done.stderr
