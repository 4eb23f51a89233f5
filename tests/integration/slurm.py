"""A Slurm cluster of several nodes on this machine, in a directory of its own; no services.

::

    with Slurm(tmp_path / "slurm", ("n1", "n2")) as slurm:
        slurm.run("sbatch", "--nodes=2", script)

Debian's slurmd may run several times on one machine, as nodes of other names. Nobody is
authenticated: everything listens on loopback, for the time of a test.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from edl.testing.zookeeper import free_ports

START_S = 60.0
CONFIGURATION = """\
ClusterName=edl-test
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
FirstJobId={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SlurmdParameters=config_overrides
"""
ONE_PARTITION = "PartitionName=all Nodes={names} Default=YES MaxTime=INFINITE State=UP\n"
# Jobs of `high` take the nodes of those of `low`, which get SIGTERM and some time, and wait again.
PREEMPTION = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes={names} Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=%d
PartitionName=high Nodes={names} MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NODE = "NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs=1\n"


class Slurm:
    """The cluster; a context manager. Its jobs are numbered from ``first_job``."""

    def __init__(
        self,
        directory: Path,
        nodes: Sequence[str],
        partitions: str = ONE_PARTITION,
        enter: Sequence[str] = (),
    ) -> None:
        """Make a cluster; ``enter`` are the words before a command that run it elsewhere."""
        self._partitions, self._enter = partitions, enter
        self.nodes = tuple(nodes)
        self.directory = directory
        self.configuration = directory / "slurm.conf"
        self.first_job = 0  # a number that no other cluster on this machine has: our port
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._newest: dict[str, subprocess.Popen[bytes]] = {}  # by program
        self.environment = {"SLURM_CONF": str(self.configuration)}

    def __enter__(self) -> Self:
        (self.directory / "state").mkdir(parents=True)
        machine = socket.gethostname().partition(".")[0]
        self.first_job, *ports = free_ports(1 + len(self.nodes))
        text = (CONFIGURATION + self._partitions).format(
            machine=machine,
            port=self.first_job,
            user=getpass.getuser(),
            directory=self.directory,
            names=",".join(self.nodes),
        )
        for name, port in zip(self.nodes, ports, strict=True):
            text += NODE.format(name=name, machine=machine, port=port)
        self.configuration.write_text(text)
        try:
            self.start_controller()
            for name in self.nodes:
                self._start("slurmd", "-D", "-N", name)
            deadline = time.monotonic() + START_S
            while self._idle() < len(self.nodes):
                assert time.monotonic() < deadline, self.story()
                time.sleep(0.2)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()

    def run(self, *words: str | Path, environment: dict[str, str] | None = None) -> str:
        """Run a command of Slurm, which must succeed, and return its standard output."""
        done = subprocess.run(
            [*self._enter, *words],
            env={**os.environ, **(environment or {}), **self.environment},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, f"{words} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def state(self, job: int) -> str:
        """Of a job: PENDING, RUNNING, COMPLETED and so on."""
        answer = self.run("scontrol", "--oneliner", "show", "job", str(job))
        return next(word for word in answer.split() if word.startswith("JobState="))[9:]

    def start_controller(self) -> None:
        """Start slurmctld, with the state that it had."""
        self._start("slurmctld", "-D")

    def save(self) -> None:
        """Wait until slurmctld has written its jobs down; killed before, it forgets them."""
        saved = self.directory / "state" / "job_state"
        before = saved.stat().st_mtime_ns if saved.exists() else 0
        for job in self.run("squeue", "--noheader", "--format=%A").split():
            self.run("scontrol", "update", f"JobId={job}", "Comment=saved")
        deadline = time.monotonic() + START_S
        while not saved.exists() or saved.stat().st_mtime_ns == before:
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.2)

    def kill_controller(self) -> None:
        controller = self._newest["slurmctld"]
        controller.kill()
        controller.wait(10)

    def story(self) -> str:
        logs = sorted(self.directory.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def _idle(self) -> int:
        done = subprocess.run(
            [*self._enter, "sinfo", "--noheader", "--Node", "--format=%T"],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.split().count("idle")

    def _start(self, program: str, *words: str) -> None:
        with (self.directory / f"{program}-{words[-1]}.log").open("ab") as log:
            daemon = subprocess.Popen(
                self._command(program, *words),
                env=os.environ | self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        self._newest[program] = daemon

    def _command(self, program: str, *words: str) -> list[str]:
        path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
        assert path, f"{program} is not installed; `make setup-tests` does it"
        return [*self._enter, path, *words, "-f", str(self.configuration)]

    def _kill(self) -> None:
        mine = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                # A slurmstepd writes its title over its environment.
                answer = process.environ().get("SLURM_CONF")
                ours = answer == str(self.configuration) or process.cwd() == str(self.directory)
                if ours and process.pid != os.getpid():
                    mine.append(process)
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(mine, timeout=10)
        for daemon in self._daemons:
            daemon.wait(10)
