"""A live cluster that borrows its hosts from a real engine, of which each part may be killed, too.

::

    with slurm_engine(directory / "slurm") as engine:
        with FleetCluster(directory, "127.0.0.1:2181", engine) as lab:
            lab.start_controller()
            lab.client().submit("job.yaml")     # the engine is asked for a host

What an engine is asked for and does with its machines: :class:`Engine`. Slurm: slurm_engine.py,
Ray: ray_engine.py.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from benchmarks.cluster.live import LiveCluster, processes_with

SLOTS = 2  # of each host
IDLE_S = 3.0  # before a host that no job needs is given back

Later = Callable[[float, Callable[[], object]], None]
"""Calls a function after so many seconds, and at the end of all trouble at the latest."""


class Engine(Protocol):
    """An engine that lends hosts, as a test runs it on this machine."""

    hosts: Sequence[str]
    options: Sequence[str]  # of `edl cluster start`, with which a cluster borrows them
    environment: Mapping[str, str]  # of its users
    enter: Sequence[str]  # the words before a command that run it where it can be reached from
    address: str  # of this process, for its machines
    weights: Mapping[str, float]  # what can be done to it, and how often that is to be done

    def strike(self, action: str, pick: float, size: float, later: Later) -> str:
        """Do one of ``weights``; return what was done, empty if there was nothing to do it to."""

    def daemons(self, host: str) -> list[psutil.Process]:
        """Return the engine's processes on a machine that it lends."""

    def take_down(self, host: str) -> None:
        """Kill the engine's processes on a machine, and start none there before :meth:`bring_up`.

        Nothing happens if they are down. A process that is just starting something may be missed:
        call it until nothing lives.
        """

    def bring_up(self, host: str) -> None:
        """Start the engine on a machine again."""

    def take_head_down(self) -> None:
        """Kill the part that starts and ends leases, until :meth:`bring_head_up`."""

    def bring_head_up(self) -> None:
        """Start that part again, with the state that it had; do nothing if it lives."""

    def calm(self) -> None:
        """End all trouble: each part lives, and nobody else has its machines."""

    def leases(self) -> list[str]:
        """Return what it lends, or is asked to lend, to anybody, for people; empty: nothing."""

    def story(self) -> str:
        """Return what its parts have printed last."""


class LeasedHost:
    """As :class:`benchmarks.cluster.live.Supervised`, for a host that an engine starts."""

    def __init__(self, name: str, engine: Engine, state: Path) -> None:
        self.host, self.name = name, f"host-{name}"
        self._engine = engine
        self._state = f"XDG_STATE_HOME={state}"

    def processes(self) -> list[psutil.Process]:
        """Return each `edl host` that lives on the machine, the oldest first."""
        return [one for one in self._started() if _words(one)[:1] == [sys.executable]]

    def launchers(self) -> list[psutil.Process]:
        """Return the processes that wait for an `edl host` there, such as Slurm's srun."""
        return [one for one in self._started() if _words(one)[:1] != [sys.executable]]

    @property
    def pid(self) -> int | None:
        found = self.processes()
        return found[0].pid if found else None

    def send(self, number: int) -> int | None:
        found = self.processes()
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        return found[0].pid if found else None

    def kill(self) -> int | None:
        return self.send(signal.SIGKILL)

    def hold(self) -> None:
        """Take the machine down, until :meth:`release`."""
        self._engine.take_down(self.host)

    def release(self) -> None:
        """Let the machine come up again."""
        self._engine.bring_up(self.host)

    def _started(self) -> list[psutil.Process]:
        found = [
            one
            for one in processes_with(self._state)
            if "--lease" in (words := _words(one)) and words[-2:] == ["--host", self.host]
        ]
        return sorted(found, key=_started_s)


class FleetCluster(LiveCluster):
    """A cluster of real processes on this machine, of which the hosts are borrowed."""

    def __init__(
        self, directory: Path, zookeeper: str, engine: Engine, policy: str = "max_min"
    ) -> None:
        lent = ("--host-slots", SLOTS, "--max-hosts", len(engine.hosts), "--idle", IDLE_S)
        super().__init__(
            directory,
            zookeeper,
            engine.environment,
            policy,
            options=[*map(str, lent), *engine.options],
            enter=engine.enter,
        )
        self.engine = engine
        state = directory / "controllers"
        self.machines = {name: LeasedHost(name, engine, state) for name in engine.hosts}
        # A test kills and freezes both kinds alike.
        hosts: dict[str, Any] = self.hosts
        hosts.update(self.machines)

    def signal_host(self, host: str, number: int) -> None:
        """Send a signal to all processes of a machine, the engine's own included."""
        for one in (*self.engine.daemons(host), *self.machines[host].launchers()):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)
        super().signal_host(host, number)

    def kill_host(self, host: str) -> None:
        """Kill -9 all processes of a machine; none lives there until it is released."""
        deadline_s = time.monotonic() + 20.0
        while time.monotonic() < deadline_s:
            self.engine.take_down(host)
            super().signal_host(host, signal.SIGKILL)
            for one in self.machines[host].launchers():
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            if not (self.processes(host) or self.machines[host].pid or self.engine.daemons(host)):
                return
            time.sleep(0.01)
        raise AssertionError(f"these on host {host} do not die: {self.processes(host)}")

    def left(self) -> list[psutil.Process]:
        lent = processes_with(f"XDG_STATE_HOME={self.directory / 'controllers'}")
        return list({one.pid: one for one in (*super().left(), *lent)}.values())

    def end(self) -> dict[str, int | None]:
        """Let the controllers end; return their exit codes by name. The hosts must have left."""
        for one in self.controllers:
            one.ask_to_end()
        return {one.name: one.wait() for one in self.controllers}

    def close(self) -> None:
        """Kill everything but the engine, for good."""
        self.hosts.clear()
        super().close()


def _words(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _started_s(process: psutil.Process) -> float:
    """Return when a process was started, in seconds since 1970; 0 if it has ended."""
    try:
        return float(process.create_time())
    except psutil.Error:
        return 0.0
