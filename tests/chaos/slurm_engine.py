"""Slurm as the engine below a cluster: three nodes, whose daemons are killed and started again.

Hosts are borrowed from the partition `low`; jobs of the partition `high` preempt them. A node that
does not answer for 10 s is down for Slurm, which then puts its jobs into the queue again; on a real
cluster that takes minutes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from fleet_cluster import Later
from slurm import PREEMPTION, Slurm

from benchmarks.cluster.live import Supervised

NODES = ("n1", "n2", "n3")
GRACE_S = 15  # between a notice of Slurm and its kill
IMPATIENT = """\
SlurmdTimeout=10
ReturnToService=2
KillWait=5
UnkillableStepTimeout=60
"""
CALL_S = 20.0
CALM_S = 120.0  # for all nodes to be idle again
WEIGHTS = {
    "slurmctld": 3.0,
    "frozen slurmctld": 1.0,
    "slurmd": 2.0,
    "frozen slurmd": 0.7,
    "slurmstepd": 1.0,
    "srun": 0.7,
    "preemption": 3.0,
    "requeued lease": 1.0,
    "cancelled lease": 1.0,
}


class SupervisedSlurm(Slurm):
    """A Slurm of which each daemon is started again when it ends, as systemd does."""

    def __init__(self, directory: Path, nodes: Sequence[str], partitions: str) -> None:
        super().__init__(directory, nodes, partitions)
        self.kept: dict[str, Supervised] = {}  # by node; slurmctld: by its name

    def _start(self, program: str, *words: str) -> None:
        name = words[-1] if program == "slurmd" else program
        kept = Supervised(
            self._command(program, *words),
            os.environ | self.environment,
            self.directory,
            self.directory / f"{program}-{name}.log",
        )
        self.kept[name] = kept.start()

    def _kill(self) -> None:
        for one in self.kept.values():
            one.close()
        self._daemons.clear()
        super()._kill()


class SlurmEngine:
    """An :class:`fleet_cluster.Engine`."""

    hosts = NODES
    options = ("--fleet", "slurm", "--partition", "low")
    enter: Sequence[str] = ()
    address = "127.0.0.1"
    weights = WEIGHTS

    def __init__(self, slurm: SupervisedSlurm) -> None:
        self.slurm = slurm
        self.environment: Mapping[str, str] = slurm.environment
        self._controller = slurm.kept["slurmctld"]

    def strike(self, action: str, pick: float, size: float, later: Later) -> str:
        node = self.hosts[min(int(pick * len(self.hosts)), len(self.hosts) - 1)]
        frozen = action.startswith("frozen ")
        if action.endswith("slurmctld"):
            return self._silence(self._controller, frozen, 15.0 * size, later)
        if action.endswith("slurmd"):
            return self._silence(self.slurm.kept[node], frozen, 25.0 * size, later)
        if action in ("slurmstepd", "srun"):
            return _kill_one(self._of(node, action), pick)
        if self._controller.pid is None:
            return ""
        if action == "preemption":
            words = ("--partition=high", f"--nodelist={node}", "--exclusive")
            done = self._try("sbatch", *words, "--output=/dev/null", f"--wrap=sleep {25 * size}")
            return f"of {node}, for {25 * size:.0f} s" if done is not None else ""
        return self._disturb(action, pick)

    def daemons(self, host: str) -> list[psutil.Process]:
        """Return slurmd of a node, and what it has started to watch over a lease."""
        pid = self.slurm.kept[host].pid
        found = [psutil.Process(pid)] if pid is not None and psutil.pid_exists(pid) else []
        return [*found, *self._of(host, "slurmstepd")]

    def take_down(self, host: str) -> None:
        """Kill slurmd of a node, and each slurmstepd there."""
        self.slurm.kept[host].hold()
        for one in self.daemons(host):
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()

    def bring_up(self, host: str) -> None:
        self.slurm.kept[host].release()

    def take_head_down(self) -> None:
        self._controller.hold()
        self._controller.kill()

    def bring_head_up(self) -> None:
        self._controller.release()

    def calm(self) -> None:
        """Let all daemons live, the jobs of others end, and an administrator resume all nodes."""
        for one in self.slurm.kept.values():
            one.send(signal.SIGCONT)
            one.release()
        deadline_s = time.monotonic() + CALM_S
        while True:
            self._try("scancel", "--me", "--partition=high")
            for node in self.hosts:  # what slurmd or slurmctld holds to be broken
                self._try("scontrol", "update", f"nodename={node}", "state=resume")
            text = self._try("sinfo", "--noheader", "--Node", "--format=%N %T") or ""
            states = dict(line.split()[:2] for line in text.splitlines() if line.split()[1:])
            if states and all(one in ("idle", "allocated") for one in states.values()):
                return
            assert time.monotonic() < deadline_s, f"{text}\n{self.slurm.story()}"
            time.sleep(1.0)

    def leases(self) -> list[str]:
        text = self._try("squeue", "--noheader", "--format=%A %j %T %N %r")
        return ["slurmctld does not answer"] if text is None else text.splitlines()

    def story(self) -> str:
        return self.slurm.story()

    def _silence(self, kept: Supervised, frozen: bool, away_s: float, later: Later) -> str:
        """Kill a daemon, or freeze it; it is back after so many seconds."""
        if frozen:
            away_s /= 2.0
            pid = kept.send(signal.SIGSTOP)
            later(away_s, lambda: kept.send(signal.SIGCONT))
        else:
            kept.hold()
            pid = kept.kill()
            later(away_s, kept.release)
        return f"{kept.name}, process {pid}, for {away_s:.1f} s" if pid is not None else ""

    def _disturb(self, action: str, pick: float) -> str:
        """Let an administrator requeue or cancel a batch job of a lease."""
        text = self._try("squeue", "--noheader", "--partition=low", "--format=%A %j %T")
        jobs = sorted(line.split()[:2] for line in (text or "").splitlines() if "RUNNING" in line)
        if not jobs:
            return ""
        number, name = jobs[min(int(pick * len(jobs)), len(jobs) - 1)]
        words = ("scontrol", "requeue") if action == "requeued lease" else ("scancel",)
        return f"{name}, {number}" if self._try(*words, number) is not None else ""

    def _of(self, node: str, program: str) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for one in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if one.cmdline()[-2:] == ["--host", node]:
                    own = one.environ().get("SLURM_CONF") == str(self.slurm.configuration)
                    parent = one.parent() if own else None
                    for each in (one, parent) if parent is not None else ():
                        if each.name().startswith(program):
                            found[each.pid] = each
        return [found[pid] for pid in sorted(found)]

    def _try(self, *words: str) -> str | None:
        """Return what a command of Slurm prints; None if it fails, or takes too long."""
        try:
            done = subprocess.run(
                words,
                env=os.environ | self.slurm.environment,
                cwd=self.slurm.directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CALL_S,
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout if done.returncode == 0 else None


@contextmanager
def slurm_engine(directory: Path) -> Iterator[SlurmEngine]:
    """Start Slurm for the time of a ``with`` block."""
    with SupervisedSlurm(directory, NODES, PREEMPTION % GRACE_S + IMPATIENT) as slurm:
        yield SlurmEngine(slurm)


def _kill_one(processes: Sequence[psutil.Process], pick: float) -> str:
    if not processes:
        return ""
    one = processes[min(int(pick * len(processes)), len(processes) - 1)]
    with contextlib.suppress(psutil.NoSuchProcess):
        text = f"{one.name()}, process {one.pid}"
        one.kill()
        return text
    return ""
