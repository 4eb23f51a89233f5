"""Blocks of commands in docs/guides do what stands there, as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import forked
import pytest
from kazoo.client import KazooClient
from paths import ROOT

from edl.client import Job, JobStatus
from edl.errors import EdlError
from edl.testing.job import EDL
from edl.testing.zookeeper import Server, free_ports

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

WAIT_S = 240.0


def blocks(page: str) -> list[list[str]]:
    """Return the commands of each block of a page for a shell, without comments."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    found = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [[line.partition("#")[0].strip() for line in block.splitlines()] for block in found]
    return [[line for line in each if line] for each in lines]


class Terminal:
    """Types commands, as somebody who reads docs/ in a checkout."""

    def __init__(self, zk_hosts: str, directory: Path) -> None:
        self._zookeeper, self._directory = zk_hosts, directory
        self._environment = {
            **os.environ,
            "PATH": f"{Path(EDL).parent}:{os.environ['PATH']}",
            "EDL_ZOOKEEPER": zk_hosts,
            "OMP_NUM_THREADS": "1",
        }

    def run(self, command: str) -> str:
        """Its output; it must end with 0."""
        ended = forked.by_exec(
            command, WAIT_S, shell=True, cwd=self._directory, env=self._environment
        )
        assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    @contextmanager
    def running(self, command: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command in the background, and end it with the block."""
        with output.open("wb") as file:
            process = subprocess.Popen(
                f"exec {command}",
                shell=True,
                cwd=self._directory,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)

    def wait(self, job: str, condition: Callable[[JobStatus], object], what: str) -> None:
        """Until the status of ``job`` fulfils ``condition``."""
        now: JobStatus | EdlError | None = None
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:  # each time anew, for the secret of the job is written when it begins
                with Job(job, self._zookeeper) as client:
                    now = client.status()
                if condition(now):
                    return
            except EdlError as error:
                now = error
            time.sleep(0.2)
        raise AssertionError(f"no {what}: {now}")


def trained_by(size: int) -> Callable[[JobStatus], bool]:
    return lambda now: now.step > 0 and [m.stage for m in now.members] == ["active"] * size


def test_two_hosts_on_one_machine(tmp_path: Path, zk_hosts: str) -> None:
    run, join, scale, status, drain, stop = next(
        block for block in blocks("hosts.md") if "--job both" in block[0]
    )
    terminal = Terminal(zk_hosts, ROOT)
    with ExitStack() as stack:
        a = stack.enter_context(terminal.running(run, tmp_path / "a"))
        terminal.wait("both", trained_by(2), "two workers")
        b = stack.enter_context(terminal.running(join, tmp_path / "b"))
        terminal.wait("both", lambda now: "b" in now.hosts, "host b")
        terminal.run(scale)
        terminal.wait("both", trained_by(4), "four workers")
        shown = terminal.run(status)
        assert "4 of 4 wanted" in shown
        assert "a: 2" in shown, shown
        terminal.run(drain)
        assert a.wait(WAIT_S) == 91, (tmp_path / "a").read_text()  # its host has left the job
        terminal.wait("both", lambda now: {m.host for m in now.members} == {"b"}, "host b alone")
        terminal.run(stop)
        assert b.wait(WAIT_S) == 0, (tmp_path / "b").read_text()


def test_the_verbs_of_a_running_job(tmp_path: Path, zk_hosts: str) -> None:
    """Those of running.md, watching.md and scaling.md, for one job."""
    script = (ROOT / "examples" / "torch_digits.py").read_text()
    script = script.replace('"--epochs", type=int, default=20', '"--epochs", type=int, default=900')
    script = script.replace('"--step-delay", type=float, default=0.0', '"--lr", type=float')
    (tmp_path / "train.py").write_text(script.replace("args.step_delay", "0.05"))
    (tmp_path / "digits_data.py").symlink_to(ROOT / "examples" / "digits_data.py")
    (tmp_path / "data").symlink_to(ROOT / "data")
    terminal = Terminal(zk_hosts, tmp_path)
    (run,) = blocks("running.md")[0]
    _list, _top, _top_digits, status, events, _dashboard = blocks("watching.md")[0]
    scale, borrow, reclaim, drain, _, stop = blocks("scaling.md")[0]
    with terminal.running(run, tmp_path / "a") as job:
        terminal.wait("digits", trained_by(2), "two workers")
        with (
            terminal.running(status, tmp_path / "status"),
            terminal.running(events, tmp_path / "events"),
        ):
            terminal.run(borrow)
            terminal.wait(
                "digits", trained_by(4), "four workers on slots of which two are borrowed"
            )
            terminal.run(reclaim)
            terminal.wait("digits", trained_by(2), "two workers again")
            terminal.run(scale)
            terminal.wait("digits", trained_by(4), "four workers")
            terminal.run(drain.replace("w3", "w5"))  # the fourth: two have come and gone
            terminal.wait("digits", trained_by(3), "three workers")
        assert "joined" in (tmp_path / "events").read_text()
        terminal.run(stop)
        assert job.wait(WAIT_S) == 143


def test_the_ensemble_of_three(tmp_path: Path) -> None:
    """`recipes/zookeeper/zoo.cfg`, with other ports and directories, for all are on this host."""
    recipe = (ROOT / "recipes" / "zookeeper" / "zoo.cfg").read_text()
    ports = free_ports(9)
    for number in (1, 2, 3):
        peers = "{}:{}".format(*ports[3 * number - 2 : 3 * number])
        recipe = recipe.replace(f"zk{number}:2888:3888", f"127.0.0.1:{peers}")
    with ExitStack() as stack:
        servers = []
        for number in (1, 2, 3):
            port, directory = ports[3 * number - 3], tmp_path / f"zk{number}"
            server = Server(directory, port, number=number)
            own = recipe.replace("clientPort=2181", f"clientPort={port}")
            (directory / "zoo.cfg").write_text(own.replace("/var/lib/zookeeper", str(directory)))
            server.start(wait=False)
            servers.append(stack.enter_context(closing(server)))
        for server in servers:
            server.wait_until_it_serves()
        (leader,) = [server for server in servers if server.leads]
        leader.kill()
        alive = [server for server in servers if server is not leader]
        deadline = time.monotonic() + WAIT_S
        while not any(server.leads for server in alive):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        client = KazooClient(",".join(server.hosts for server in servers), timeout=10.0)
        client.start(WAIT_S)
        try:
            client.create("/edl-was-here")
        finally:
            client.stop()
            client.close()


@contextmanager
def closing(server: Server) -> Iterator[Server]:
    try:
        yield server
    finally:
        server.kill()
