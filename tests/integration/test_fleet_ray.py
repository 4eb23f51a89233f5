"""A cluster that borrows its hosts from a real Ray of two nodes, which are network namespaces."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import STANDIN
from net import Net
from ray_nodes import RayNodes
from test_first_cluster import Machine, until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]  # tests/README.md, Time

NAMES = "127.0.0.1 localhost\n10.77.0.1 a\n10.77.0.2 b\n"


class RayLab:
    def __init__(self, machine: Machine, net: Net, ray: RayNodes, log: Path) -> None:
        self.machine, self.ray, self._net, self._log = machine, ray, net, log

    def submit(self, name: str, *options: str, **keys: Any) -> None:
        command = [sys.executable, STANDIN, *options]
        lines = {"name": name, "command": command, "min": 1, "max": 2, "cwd": "/"} | keys
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
        (self.machine.home / f"{name}.yaml").write_text(text)
        self.machine.run(f"edl submit {self.machine.home}/{name}.yaml")

    def shown(self, job: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.machine.run(f"edl show {job} --json"))["job"]
        return found

    def size(self, job: str) -> int:
        return int(json.loads(self.machine.run(f"edl status {job} --json"))["world_size"])

    def hosts(self) -> dict[str, int]:
        hosts = json.loads(self.machine.run("edl cluster status --json"))["hosts"]
        return {one["host"]: one["used"] for one in hosts if one["state"] != "silent"}

    def one(self, host: str, word: str) -> psutil.Process:
        for one in self._net.processes(host):
            with contextlib.suppress(psutil.Error):
                if any(part.endswith(word) for part in one.cmdline()):
                    return one
        raise AssertionError(f"no process on {host} has {word}")

    def parent_of(self, host: str, word: str) -> psutil.Process:
        parent = self.one(host, word).parent()
        assert parent is not None
        return parent

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until(self, condition: Any) -> None:
        until(condition, lambda: self.said)


@contextmanager
def ray_lab(directory: Path, idle_s: float) -> Iterator[RayLab]:
    with ExitStack() as stack:
        net = stack.enter_context(Net("a", "b", etc={"hosts": NAMES}))
        ray = stack.enter_context(RayNodes(net, ("a", "b")))
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": ray.environment["RAY_AUTH_TOKEN"]}
        machine = Machine(net, "a", directory, directory, **own)
        machine.run("edl zookeeper start --address 10.77.0.1 --port 2181")
        words = f"--host-slots 2 --max-hosts 2 --idle {idle_s:g} --policy max_min"
        words += f" --fleet-option=python={ray.python}"
        with machine.running(f"edl cluster start --fleet ray {words}", "leads cluster main"):
            yield RayLab(machine, net, ray, machine.home / "cluster.log")
        machine.run("edl zookeeper stop")


def test_hosts_come_and_go_and_jobs_do_not_notice_that_the_gcs_is_killed(tmp_path: Path) -> None:
    with ray_lab(tmp_path, 3) as lab:
        end = tmp_path / "end"
        lab.submit("x", "--until", str(end), min=2, max=4)
        lab.until(lambda: lab.hosts() == {"a": 2, "b": 2})
        lab.until(lambda: lab.size("x") == 4)
        lab.submit("y", "--until", str(end), min=2, max=4)
        lab.until(lambda: lab.size("x") == 2)
        for _ in range(3):
            lab.ray.kill_gcs()
            for verb, size in (("halt", 4), ("resume", 2)):
                lab.machine.run(f"edl {verb} y")
                lab.until(lambda size=size: lab.size("x") == size)
            time.sleep(4)
            lab.ray.start_gcs()
            time.sleep(4)
        assert lab.shown("x")["runs"] == 1
        assert lab.hosts() == {"a": 2, "b": 2}
        assert lab.said.count("ray: asks for") == 1
        # A program that is started anew has to ask Ray for what an actor does not answer.
        actor = lab.parent_of("b", "--lease")
        actor.suspend()
        answers = lab.said.count("ray answers again")
        lab.one("a", "ray_program.py").kill()
        lab.until(lambda: lab.said.count("ray answers again") > answers)
        for verb, size in (("halt", 4), ("resume", 2)):
            lab.machine.run(f"edl {verb} y")
            lab.until(lambda size=size: lab.size("x") == size)
        actor.resume()
        assert lab.said.count("ray: asks for") == 1
        end.touch()
        lab.until(lambda: {lab.shown(job)["result"] for job in ("x", "y")} == {"finished"})
        lab.until(lambda: not lab.hosts())
        lab.until(lambda: lab.said.count("has been given back") == 2)
        # They can be borrowed again.
        lab.submit("z", "--steps", "20")
        lab.until(lambda: lab.shown("z")["result"] == "finished")
