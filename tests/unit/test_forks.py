"""A fork of a worker holds none of its connections, so that a death is seen at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from edl.framework.forks import let_go_of_the_network

CHILD = """
import os, signal, socket, sys, time
from edl.framework.forks import free_all_forks
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
