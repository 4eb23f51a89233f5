"""Jobs on several hosts: `edl run` on one, `edl join` on others, each host a network namespace.

::

    with Net("zk", "a", "b") as net, on_hosts(net, tmp_path, np=1, max_np=2) as job:
        job.join("b")
        job.scale(2)
        job.lose("a")          # without a word, `edl run` and its worker
        job.prove(workers=1)

ZooKeeper is on the host `zk`, and so are the verbs. Each host has its own state directory; who
joins is given the secret in a file, as a user would copy it.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from net import Net
from scenario import Scenario, scenario

from edl.testing.job import EDL
from edl.testing.zookeeper import Server

APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


class HostsScenario(Scenario):
    """A job on the hosts of ``net``; ``first`` has `edl run`."""

    net: Net
    first = "a"
    clocks: Mapping[str, int] = {}  # minutes by which the wall clock of a host is wrong
    session_s = 3.0
    apart: Sequence[str] = ()  # hosts that see no process of others; signals stay outside
    join_options: Sequence[str] = ()

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self._skew = wrong_clock(self.directory) if self.clocks else None
        self.here, self.there = self._enter(self.first), self.net.enter("zk")
        super().begin(np, max_np, min_np)
        assert self._process is not None
        self.agents = {self.first: self._process}

    def join(self, host: str, slots: int = 1, **environment: str) -> None:
        """`edl join` on ``host``, under the name that it has itself."""
        output = self.directory / f"{host}.output"
        command = self._joining(host, "--slots", str(slots), *self.join_options)
        self.agents[host] = self._spawn(command, output, **environment)

    def try_join(self, host: str, *options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._joining(host, *options),
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.directory,
            timeout=60,
        )

    def _joining(self, host: str, *options: str) -> list[str | Path]:
        state = self.directory / f"{host}-state"
        state.mkdir(exist_ok=True)
        secret = shutil.copy(self.directory / f"state/edl/jobs/{self.name}/secret", state)
        words = [*self._enter(host), "env", f"XDG_STATE_HOME={state}", EDL, "join"]
        return [*words, "--job", self.name, "--secret-file", secret, *options]

    def _enter(self, host: str) -> list[str]:
        wrong_s = 60 * self.clocks.get(host, 0)
        clock = ["env", f"LD_PRELOAD={self._skew}", f"SKEW_S={wrong_s}"] if wrong_s else []
        return [*self.net.enter(host), *(APART if host in self.apart else ()), *clock]

    def joined(self, *hosts: str, np: int) -> None:
        """Let hosts join, and scale the job to ``np`` workers."""
        for host in hosts:
            self.join(host)
        names = {self.net.names[host] for host in hosts}
        self.wait(lambda now: names <= now["hosts"].keys(), f"hosts {names}")
        self.scale(np)
        self.wait_for_size(np)

    def host_output(self, host: str) -> str:
        if host == self.first:
            return self.output()
        return (self.directory / f"{host}.output").read_text(errors="replace")

    def lose(self, host: str) -> None:
        """Lose the host with all that was on it, without a word about it."""
        self.net.lose(host)
        self._forget(host)

    def leave(self, host: str) -> int:
        """Ctrl-C in `edl join`; its exit code."""
        self.agents[host].send_signal(signal.SIGINT)
        return self.left(host)

    def left(self, host: str) -> int:
        """Wait until the agent on ``host`` has ended, with all that was there; its exit code."""
        code = self.agents[host].wait(60)
        assert not self.net.processes(host), self.describe(f"something was left on host {host}")
        self._forget(host)
        return code

    def _forget(self, host: str) -> None:
        gone = self.agents.pop(host)
        gone.wait(10)
        if gone is self._process:
            self._follow(next(iter(self.agents.values())))

    def end(self, timeout_s: float = 120.0) -> int:
        """Wait for the end of all agents; the first exit code that is not 0, or 0."""
        codes = [super().end(timeout_s), *(agent.wait(10) for agent in self.agents.values())]
        return next((code for code in codes if code), 0)

    def story(self, what: str) -> str:
        parts = [super().describe(what)]
        for path in sorted(self.directory.glob("*.output")):
            if path != self._output:
                parts.append(f"--- {path.stem} ---\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(parts)

    def close(self) -> None:
        super().close()
        for agent in getattr(self, "agents", {}).values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(10)


def wrong_clock(directory: Path) -> Path:
    """Build a library that makes a process's wall clock wrong by SKEW_S seconds (LD_PRELOAD)."""
    library = directory / "skew.so"
    source = Path(__file__).with_name("skew.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@contextmanager
def on_hosts(net: Net, directory: Path, **settings: Any) -> Iterator[HostsScenario]:
    """Run a job on the hosts of ``net``, with one slot on each."""
    settings = {"kind": HostsScenario, "net": net, **settings}
    settings["options"] = ["--slots", "1", *settings.get("options", ())]
    with (
        zookeeper_on(net, directory) as server,
        scenario(directory, server.hosts, **settings) as job,
    ):
        yield job


def zookeeper_on(net: Net, directory: Path) -> Server:
    return Server(
        directory / "zookeeper",
        2181,
        net.address("zk"),
        enter=net.enter("zk"),
        inside=lambda function: net.inside("zk", function),
    )
