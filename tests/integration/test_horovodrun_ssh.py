"""An unmodified `horovodrun` that starts its workers on other hosts, by a real ssh."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from horovodrun import HorovodrunScenario, StandinScenario
from hosts import zookeeper_on
from net import INTERFACE, Net
from scenario import scenario

from edl.testing.job import Status

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or "sshd"
START_S = 20.0
SERVER = """\
HostKey {directory}/host_key
AuthorizedKeysFile {directory}/key.pub
StrictModes no
PidFile none
UsePAM no
PasswordAuthentication no
"""
CLIENT = """\
IdentityFile none
IdentitiesOnly yes
UserKnownHostsFile {directory}/known_hosts
LogLevel ERROR
ServerAliveInterval 2
ServerAliveCountMax 3
"""
# /run/sshd must exist: in a /run of its own, for the mounts of `ip netns exec` are its own.
RUN = 'mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" -D -e -f "$1"'


@contextmanager
def ssh_between(net: Net, directory: Path, *hosts: str) -> Iterator[Path]:
    """Run sshd on these hosts; yield a directory with `ssh` for the PATH, and the private `key`."""
    directory.mkdir()
    for key in ("host_key", "key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", directory / key], check=True
        )
    (directory / "sshd_config").write_text(SERVER.format(directory=directory))
    (directory / "ssh_config").write_text(CLIENT.format(directory=directory))
    client = directory / "ssh"
    client.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/ssh_config "$@"\n')
    client.chmod(0o755)
    with ExitStack() as stack:
        for host in hosts:
            log = stack.enter_context((directory / f"sshd-{host}.log").open("wb"))
            server = subprocess.Popen(
                [*net.enter(host), "sh", "-c", RUN, SSHD, directory / "sshd_config"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            stack.callback(server.wait, 10)
            stack.callback(server.kill)
        deadline = time.monotonic() + START_S
        for host in hosts:
            while 22 not in {port for _, port in net.listening(host)}:
                text = (directory / f"sshd-{host}.log").read_text()
                assert time.monotonic() < deadline, f"no sshd on host {host}: {text}"
                time.sleep(0.05)
        yield directory


SLOW_S = 180.0
HOSTS = ("a", "b", "c")


@contextmanager
def by_ssh(directory: Path, **settings: Any) -> Iterator[tuple[Net, HorovodrunScenario]]:
    """`horovodrun` on host a; what it starts on others is found by the PATH that it hands on."""
    names = "".join(f"10.77.0.{number} {host}\n" for number, host in enumerate(HOSTS, 2))
    with (
        Net("zk", *HOSTS, etc={"hosts": f"127.0.0.1 localhost\n{names}"}) as net,
        zookeeper_on(net, directory) as server,
        ssh_between(net, directory / "ssh", *HOSTS) as ssh,
    ):
        path = f"{ssh}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        options = ["--network-interface", INTERFACE, "--ssh-identity-file", str(ssh / "key")]
        settings = {
            "kind": HorovodrunScenario,
            "shield": ("edl-worker",),
            "discover": ("edl-discover", *(f"{host}:1" for host in HOSTS)),
            "here": net.enter("a"),
            "there": net.enter("zk"),
            "options": options,
            "environment": {"PATH": path},
            **settings,
        }
        with scenario(directory, server.hosts, **settings) as job:
            yield net, job


def used(now: Status) -> dict[str, int]:
    """Return the number of assigned workers of each host that has any."""
    return {host: workers for host, workers in now["assigned"].items() if workers}


@pytest.mark.long
def test_out_to_a_new_host_a_killed_worker_and_a_lost_host(tmp_path: Path) -> None:
    with by_ssh(tmp_path, np=2, max_np=3) as (net, job):
        now = job.wait_for_size(2, SLOW_S)
        assert now["assigned"] == {"a": 1, "b": 1}
        job.scale(3)
        job.wait_for_size(3, SLOW_S)
        assert job.members("w2")["w2"]["host"] == "c"
        assert job.process("w2") in net.processes("c")
        job.process("w2").kill()
        job.wait(lambda now: "w2" not in {m["id"] for m in now["members"]}, "end of w2")
        job.wait_for_size(3, SLOW_S)
        net.lose("b")
        job.wait(lambda now: now["world_size"] == 2, "a ring of 2")
        job.wait(lambda now: used(now) == {"a": 1, "c": 1}, "the driver's new placement")
        job.prove(workers=2)


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL]
)
def test_workers_on_other_hosts_end_with_horovodrun(number: signal.Signals, tmp_path: Path) -> None:
    """The workers on other hosts must end by themselves, since the end of ssh does not end them."""
    with by_ssh(tmp_path, np=2, max_np=2, kind=StandinScenario) as (_, job):
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        job.interrupt(number)
        job.until(lambda: not job.processes(), "end of all processes")
        facts: Status = {}

        def stopped() -> bool:
            facts.update(job.status())
            return bool(facts["state"] == "stopped")

        job.until(stopped, "end of the job in ZooKeeper")
        assert re.search("horovodrun (has ended|ends)", facts["reason"])


@pytest.mark.long
def test_a_slot_whose_ssh_has_ended_is_given_up(tmp_path: Path) -> None:
    """The driver takes it for the end of the process, which still runs."""
    with by_ssh(tmp_path, np=2, max_np=2, kind=StandinScenario) as (net, job):
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        for process in net.processes("a"):
            if Path(process.exe()).name == "ssh":
                process.kill()
        job.wait(lambda now: now["world_size"] == 1, "a ring of 1")
        job.until(lambda: len(net.processes("b")) == 1, "end of all but sshd on host b")
        job.wait(lambda now: used(now) == {"a": 1}, "nothing assigned to host b")
        job.edl("stop")
        assert job.end() == 0


@pytest.mark.long
def test_a_slot_whose_ssh_has_ended_costs_the_only_host_no_more(tmp_path: Path) -> None:
    """To ask the driver would end the job: it bars that host."""
    discover = ("edl-discover", "b:2")
    with by_ssh(tmp_path, np=2, max_np=2, kind=StandinScenario, discover=discover) as (net, job):
        job.wait(lambda now: now["world_size"] == 2, "2 workers")
        one = next(each for each in net.processes("a") if Path(each.exe()).name == "ssh")
        one.kill()
        job.wait(lambda now: now["world_size"] == 1, "a ring of 1")
        story = "nothing is scaled any more"
        job.until(lambda: "is not scaled: the driver would end it" in job.output(), story)
        assert job.status()["state"] == "running"
        job.edl("stop")
        assert job.end() == 1  # for the driver a process has failed
        assert job.status()["state"] == "stopped"
