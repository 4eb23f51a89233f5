"""`edl zookeeper start --address`: one command gives several hosts their ZooKeeper."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import forked
import pytest
from cli_shell import STANDIN, WAIT_S, until
from net import Net

from edl.testing.job import EDL

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PORT = 2181


class Machine:
    """A host with a user of its own: the commands there, and their settings."""

    def __init__(self, net: Net, name: str, directory: Path) -> None:
        self.name, self.address = name, net.address(name)
        self._enter, self._directory = net.enter(name), directory / name
        self._directory.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("EDL_")},
            "XDG_STATE_HOME": str(self._directory),
            "EDL_SESSION_TIMEOUT_S": "2",
        }
        self._started: list[subprocess.Popen[bytes]] = []

    def edl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return forked.by_exec(
            [*self._enter, str(EDL), *words], WAIT_S, env=self.environment, cwd=self._directory
        )

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Run `edl` in the background; its output is in the file that :meth:`output` reads."""
        with (self._directory / "output").open("ab") as log:
            process = subprocess.Popen(
                [*self._enter, str(EDL), *words],
                env=self.environment,
                cwd=self._directory,
                stdout=log,
                stderr=log,
            )
        self._started.append(process)
        return process

    def output(self) -> str:
        return (self._directory / "output").read_text()

    def secret_of(self, job: str) -> Path:
        return self._directory / "edl" / "jobs" / job / "secret"

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Net, Machine, Machine]]:
    with Net("a", "b") as net:
        a, b = (Machine(net, name, tmp_path) for name in ("a", "b"))
        try:
            yield net, a, b
        finally:
            a.edl("zookeeper", "stop")
            for machine in (a, b):
                machine.close()
            for host in ("a", "b"):
                net.kill(host)


@pytest.mark.long  # `make test` has test_local_server.py, at 127.0.0.2
def test_one_command_gives_two_hosts_their_zookeeper(
    machines: tuple[Net, Machine, Machine],
) -> None:
    net, a, b = machines
    refused = a.edl("zookeeper", "start", "--address", b.address)
    assert refused.returncode == 2
    assert refused.stderr == (
        f"edl: {b.address} is no address of this machine, which has {a.address}, 127.0.0.1\n"
    )
    started = a.edl("zookeeper", "start", "--address", a.address, "--port", str(PORT))
    assert (started.returncode, started.stderr) == (0, "")
    assert f"commands on other hosts reach it by --zookeeper {a.address}:{PORT}\n" in started.stdout
    assert _listening(net) == {(a.address, PORT)}

    job = (
        "run",
        "-np",
        "1",
        "--max-np",
        "2",
        "--slots",
        "1",
        "--job",
        "j",
        sys.executable,
        STANDIN,
    )
    run = a.start(*job)  # it finds the server by itself, and the address of this host as well
    b.environment["EDL_ZOOKEEPER"] = f"{a.address}:{PORT}"
    until(lambda: _size(a) == 1, WAIT_S, a.output)
    stranger = b.edl("status", "nosuch")
    assert stranger.stderr == "edl: there is no job named 'nosuch'; start one with `edl run`\n"
    b.environment["EDL_SECRET_FILE"] = str(a.secret_of("j"))
    join = b.start("join", "--job", "j", "--slots", "1", "-np", "1")
    until(lambda: _size(a) == 2, WAIT_S, lambda: a.output() + b.output())
    for machine in (a, b):  # its workers are where other hosts reach them
        told = [process.environ().get("EDL_ADDRESS") for process in net.processes(machine.name)]
        assert machine.address in told
        assert "127.0.0.1" not in told

    assert a.edl("zookeeper", "stop").stdout == "the local ZooKeeper is stopped\n"
    assert (a.address, PORT) not in _listening(net)
    again = a.edl("zookeeper", "start")  # address, port and data are those of the last time
    assert again.stdout == started.stdout
    until(lambda: _size(b) == 2, WAIT_S, lambda: a.output() + b.output())
    assert b.edl("stop", "j").returncode == 0
    assert (run.wait(WAIT_S), join.wait(WAIT_S)) == (143, 0)


def _listening(net: Net) -> set[tuple[str, int]]:
    """Return where processes on host a listen; Java calls an IPv4 address ::ffff:ADDRESS."""
    return {(address.removeprefix("::ffff:"), port) for address, port in net.listening("a")}


def _size(machine: Machine) -> int:
    """Return how many workers the job has, as a machine is told; 0 while there is no answer."""
    done = machine.edl("status", "j", "--json")
    return json.loads(done.stdout)["world_size"] if done.returncode == 0 else 0
