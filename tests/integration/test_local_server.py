"""The ZooKeeper of one machine: started once, found by all, and nobody else's is touched."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import forked
import psutil
import pytest

from edl import config
from edl.errors import CoordinationError, UsageError
from edl.zookeeper.local_server import _lives, find_local, local_status, start_local, stop_local
from edl.zookeeper.session import Session

pytestmark = pytest.mark.integration


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "zookeeper"
    yield directory
    stop_local(directory)
    assert find_local(directory) is None
    left = [p for p in psutil.process_iter() if str(directory) in " ".join(_command_line(p))]
    assert left == []


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _command_line_of(pid: int) -> list[str]:
    try:
        return _command_line(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return []


def test_start_find_stop_and_start_again_on_the_same_port_with_its_data(state: Path) -> None:
    assert find_local(state) is None
    assert local_status(state) is None
    assert not stop_local(state)
    hosts = start_local(state)
    assert start_local(state) == find_local(state) == hosts
    server = local_status(state)
    assert server is not None
    assert server.hosts == hosts == f"127.0.0.1:{server.port}"
    assert server.port < 32_768  # no outgoing connection takes it while the server is stopped
    assert server.version.startswith("3.")
    assert server.data_dir == state / "data"
    assert server.log_file.is_file()
    with Session(hosts, 2.0) as session:
        session.client.create("/kept")
    assert stop_local(state)
    assert _command_line_of(server.pid) == []  # gone, or waiting for init to reap it
    assert find_local(state) is None
    assert start_local(state) == hosts
    with Session(hosts, 2.0) as session:
        assert session.client.exists("/kept")


def test_it_listens_on_loopback_only_and_only_on_one_port(state: Path) -> None:
    start_local(state)
    server = local_status(state)
    assert server is not None
    assert _listening(server.pid) == {("127.0.0.1", server.port)}


def _own_port(address: str) -> int:
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    while True:
        port = random.randrange(max(1024, first - 10_000), first)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port


def test_at_another_address_it_keeps_its_place_and_its_data(state: Path) -> None:
    """127.0.0.2 is one of this machine; test_zookeeper_address.py has real hosts."""
    hosts = start_local(state, address="127.0.0.2", port=_own_port("127.0.0.2"))
    server = local_status(state)
    assert server is not None
    assert server.hosts == hosts == find_local(state) == f"127.0.0.2:{server.port}"
    assert _listening(server.pid) == {("127.0.0.2", server.port)}
    with Session(hosts, 2.0) as session:
        session.client.create("/kept")
    assert start_local(state, address="127.0.0.2", port=server.port) == hosts
    for other in ({"address": "127.0.0.1"}, {"port": server.port + 1}):
        with pytest.raises(UsageError, match=rf"runs already, at {hosts}; `edl zookeeper stop`"):
            start_local(state, **other)
    assert stop_local(state)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.2", server.port))
        squatter.listen()
        with pytest.raises(UsageError, match="another process has it; choose another --port"):
            start_local(state)  # other hosts would not find a new port
    assert start_local(state) == hosts
    with Session(hosts, 2.0) as session:
        assert session.client.exists("/kept")


def _listening(pid: int) -> set[tuple[str, int]]:
    connections = psutil.Process(pid).net_connections("tcp")
    listening = {c.laddr for c in connections if c.status == psutil.CONN_LISTEN}
    return {(address.ip.removeprefix("::ffff:"), address.port) for address in listening}


def test_many_that_start_it_at_once_get_the_same_server(state: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(start_local(state))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_it_survives_its_starter_and_the_signals_of_its_group(state: Path) -> None:
    program = (
        "import pathlib, sys; from edl.zookeeper.local_server import start_local; "
        "print(start_local(pathlib.Path(sys.argv[1])))"
    )
    done = forked.by_exec(
        [sys.executable, "-c", program, str(state)], 60, check=True, start_new_session=True
    )
    assert find_local(state) == done.stdout.strip()
    server = local_status(state)
    assert server is not None
    assert os.getsid(server.pid) != os.getsid(0)


def test_a_recycled_process_number_is_not_mistaken_for_the_server(state: Path) -> None:
    hosts = start_local(state)
    server = local_status(state)
    assert server is not None
    innocent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (state / "server.json").write_text(json.dumps({"pid": innocent.pid}))
        assert find_local(state) is None
        assert start_local(state) == hosts  # found by its command line: no second one
        (state / "server.json").unlink()
        assert stop_local(state)
        assert innocent.poll() is None
    finally:
        innocent.communicate(b"\n", timeout=10)


def test_a_kept_port_that_somebody_took_is_replaced(state: Path) -> None:
    hosts = start_local(state)
    assert stop_local(state)
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        taken = f"127.0.0.1:{squatter.getsockname()[1]}"
        configuration = state / "zoo.cfg"
        kept = configuration.read_text()
        old, new = (f"clientPort={one.partition(':')[2]}\n" for one in (hosts, taken))
        configuration.write_text(kept.replace(old, new))
        assert configuration.read_text() != kept
        assert start_local(state) != taken


FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600.0,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_lives_until_its_last_thread_has_ended(wait_until: Callable[..., None]) -> None:
    """Until then it keeps its port, though it looks like a zombie, as a JVM that ends does."""
    words = [sys.executable, "-c", FIRST_THREAD_ENDS]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        found = psutil.Process(process.pid)
        try:
            wait_until(lambda: found.status() == psutil.STATUS_ZOMBIE)
            assert _lives(found)
        finally:
            process.kill()
        wait_until(lambda: not _lives(found))


def test_what_is_missing_is_said_in_one_sentence(state: Path, tmp_path: Path) -> None:
    with pytest.raises(CoordinationError, match="no `java` on the PATH: `apt-get install"):
        start_local(state, {"PATH": str(tmp_path)})
    environ = {**config.environment(), "ZOOKEEPER_HOME": str(tmp_path)}
    with pytest.raises(CoordinationError, match=r"there is no ZooKeeper in .*ZOOKEEPER_HOME"):
        start_local(state, environ)


def test_a_server_that_dies_at_its_start_is_reported_with_its_log(
    state: Path, tmp_path: Path
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho broken on purpose\nexit 3\n")
    java.chmod(0o755)
    environ = {**config.environment(), "JAVA_HOME": str(tmp_path)}
    with pytest.raises(CoordinationError, match=r"died at its start; see .*zookeeper\.log"):
        start_local(state, environ)
    assert "broken on purpose" in (state / "zookeeper.log").read_text()
