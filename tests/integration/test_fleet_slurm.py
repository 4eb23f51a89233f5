"""A cluster that borrows its hosts from a real Slurm of three nodes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import STANDIN, Running, Shell, shell, until
from paths import SCRIPTS
from slurm import ONE_PARTITION, PREEMPTION, Slurm

from edl.testing.throttle import FILE as THROTTLE
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]  # tests/README.md, Time
__all__ = ["shell"]

WAIT_S = 180.0
OUTAGES_S = 30.0  # ten minutes were run, too
GRACE_S = 60  # between a notice of Slurm and its kill
SAMPLES, EPOCHS = 1920, 3


class SlurmLab:
    def __init__(self, shell: Shell, slurm: Slurm) -> None:
        self.shell = shell
        self.slurm = slurm
        shell.environment |= slurm.environment

    def start(self, *options: str) -> Running:
        words = ["--name", "lab", "--policy", "max_min", "--fleet", "slurm", *options]
        controller = self.shell.start("cluster", "start", *words)
        controller.expect("leads cluster lab", WAIT_S)
        return controller

    def submit(self, name: str, *options: str, **keys: Any) -> None:
        command = [sys.executable, STANDIN, *options]
        lines = {"name": name, "command": command, "min": 1, "max": 2} | keys
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
        path = self.shell.directory / f"{name}.yaml"
        path.write_text(text)
        done = self.shell.edl("submit", str(path))
        assert done.returncode == 0, done.stderr

    def train(self, name: str, directory: Path, slow: Path) -> None:
        options = {"samples": SAMPLES, "epochs": EPOCHS, "batch-size": 4, "out": directory}
        words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
        own = ["env", f"{THROTTLE}={slow}", "OMP_NUM_THREADS=1"]
        command = [*own, sys.executable, str(SCRIPTS / "counting.py"), *words]
        self.submit(name, command=command, max=3)

    def shown(self, job: str) -> dict[str, Any]:
        done = self.shell.edl("show", job, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["job"]
        return found

    def hosts(self) -> dict[str, Any]:
        done = self.shell.edl("cluster", "status", "--json")
        assert done.returncode == 0, done.stderr
        hosts = json.loads(done.stdout)["hosts"]
        return {one["host"]: one for one in hosts if one["state"] != "silent"}

    def queue(self) -> list[str]:
        return self.slurm.run("squeue", "--noheader", "--format=%T").split()

    def runs(self, job: str, size: int) -> bool:
        now = self.shell.status(job)
        active = [one for one in now["members"] if one["stage"] == "active"]
        return bool(now["world_size"] == len(active) == len(now["members"]) == size)

    def until(self, condition: Any, what: str, timeout_s: float = WAIT_S) -> None:
        until(condition, timeout_s, lambda: f"{what}: {self.describe()}")

    def describe(self) -> str:
        logs = sorted(self.shell.directory.glob("state/edl/clusters/lab/**/*.log"))
        parts = [one.output[-3000:] for one in self.shell.started]
        parts += [f"--- {log}\n{log.read_text(errors='replace')[-1500:]}" for log in logs]
        return "\n".join([*parts, self.slurm.story()])

    def lease_logs(self) -> str:
        logs = (self.shell.directory / "state/edl/clusters/lab/leases").glob("*.log")
        return "".join(log.read_text() for log in logs)


@contextmanager
def lab_of(shell: Shell, partitions: str = ONE_PARTITION) -> Iterator[SlurmLab]:
    """Start Slurm; at the end, kill what the leases have left."""
    with Slurm(shell.directory / "slurm", ("n1", "n2", "n3"), partitions) as slurm:
        try:
            yield SlurmLab(shell, slurm)
        finally:
            for one in shell.started:
                one.process.kill()
                one.process.wait(10)  # before psutil does, which would take its exit code
            for one in processes_of(shell.environment["XDG_STATE_HOME"]):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


def processes_of(state: str) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid != os.getpid() and one.environ().get("XDG_STATE_HOME") == state:
                found.append(one)
    return found


def test_a_host_comes_for_a_job_and_goes_when_it_is_idle(shell: Shell) -> None:
    with lab_of(shell) as lab:
        options = ("--host-slots", "2", "--max-hosts", "2", "--idle", "3")
        controller = lab.start(*options)
        assert lab.queue() == []
        end = shell.directory / "end"
        lab.submit("j", "--until", str(end))
        lab.until(lambda: lab.shown("j")["state"] == "running", "the job does not run")
        shell.until_size(2)
        assert lab.queue() == ["RUNNING"]
        [(name, host)] = lab.hosts().items()
        assert name in lab.slurm.nodes
        assert host["used"] == 2
        lab.submit("k", "--until", str(end))
        lab.until(lambda: lab.shown("k")["state"] == "running", "the other job does not run")
        assert len(lab.queue()) == 2
        lab.until(lambda: len(lab.hosts()) == 2, "the second host does not come")
        controller.signal(signal.SIGTERM)
        assert controller.wait() == 0
        assert "slurm still lends 2 hosts (n1" in controller.output
        controller = lab.start(*options)
        end.touch()
        lab.until(lambda: not lab.queue(), "the hosts are not given back")
        lab.until(lambda: not lab.hosts(), "a host still offers slots")
        assert lab.lease_logs().count("has left cluster lab") == 2, lab.describe()
        assert "is given back: idle for" in controller.output
        assert {lab.shown(job)["result"] for job in ("j", "k")} == {"finished"}
        assert [lab.shown(job)["runs"] for job in ("j", "k")] == [1, 1]
        controller.signal(signal.SIGTERM)
        assert controller.wait() == 0
        assert "still lends" not in controller.output


def test_slurm_lends_another_node_than_the_drained_one(shell: Shell) -> None:
    """It takes the first one that is free, which would be the drained one again and again."""
    with lab_of(shell) as lab:
        controller = lab.start("--host-slots", "2", "--max-hosts", "1", "--idle", "1")
        end = shell.directory / "end"
        lab.submit("j", "--until", str(end))
        lab.until(lambda: lab.shown("j")["state"] == "running", "the job does not run")
        [first] = lab.hosts()
        assert shell.edl("drain", first).returncode == 0
        lab.until(lambda: lab.hosts().keys() - {first}, "no other node is lent")
        lab.until(lambda: lab.shown("j")["state"] == "running", "the job does not run there")
        assert "came to nothing" not in controller.output
        # Nor is a lease that waits bound to what was drained when it was asked for.
        for name in lab.slurm.nodes:
            lab.slurm.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=full")
        [second] = lab.hosts()
        assert shell.edl("drain", second).returncode == 0
        lab.until(lambda: lab.queue() == ["PENDING"], "the host is not asked for")
        lab.slurm.run("scontrol", "update", f"nodename={first}", "state=resume")
        assert shell.edl("undrain", first).returncode == 0
        lab.until(lambda: first in lab.hosts(), "the first node is not lent")
        end.touch()
        lab.until(lambda: lab.shown("j")["result"] == "finished", "the job does not end")


def test_another_host_is_asked_for_in_place_of_one_that_slurm_cannot_start(shell: Shell) -> None:
    """Slurm drains a node whose prolog fails, and holds the batch job."""
    prolog = shell.directory / "prolog"
    prolog.write_text('#!/bin/sh\n[ "$SLURMD_NODENAME" != n1 ]\n')
    prolog.chmod(0o755)
    with lab_of(shell, f"{ONE_PARTITION}Prolog={prolog}\n") as lab:
        controller = lab.start("--host-slots", "2", "--max-hosts", "1")
        end = shell.directory / "end"
        lab.submit("j", "--until", str(end))
        lab.until(lambda: lab.shown("j")["state"] == "running", "the job does not run")
        assert "launch failed requeued held; the next one waits 10 s" in controller.output
        assert lab.hosts().keys() <= {"n2", "n3"}
        assert lab.queue() == ["RUNNING"], "what Slurm holds is cancelled"
        end.touch()
        lab.until(lambda: lab.shown("j")["result"] == "finished", "the job does not end")


def test_jobs_do_not_notice_that_slurmctld_is_killed_while_slots_move(shell: Shell) -> None:
    """Two jobs share two hosts; one of them comes and goes, so the slots of the other move."""
    with lab_of(shell) as lab:
        controller = lab.start("--host-slots", "2", "--max-hosts", "2", "--idle", "1")
        end = shell.directory / "end"
        lab.submit("x", "--until", str(end), min=2, max=4)
        lab.until(lambda: lab.shown("x")["state"] == "running", "the job does not run")
        shell.until_size(4, "x")
        lab.submit("y", "--until", str(end), min=2, max=4)
        hosts = lab.hosts()
        lab.slurm.save()
        began = time.monotonic()
        kills = moves = 0
        while time.monotonic() - began < OUTAGES_S:
            lab.slurm.kill_controller()
            kills += 1
            for verb, size in (("resume", 2), ("halt", 4)):
                assert shell.edl(verb, "y").returncode == 0
                lab.until(lambda size=size: lab.runs("x", size), f"x has not {size} workers")
                moves += 1
            lab.slurm.start_controller()
            time.sleep(kills % 3)  # sometimes it is killed before it is quite there
        until(lambda: len(lab.queue()) == 2, WAIT_S)
        assert lab.hosts().keys() == hosts.keys()
        assert lab.shown("x")["runs"] == 1
        events = shell.events("x")
        troubles = {"worker_failed", "worker_frozen", "evicted", "slot_disabled"}
        assert not troubles.intersection(one["kind"] for one in events), events
        rings = [one for one in events if one["kind"] == "generation"]
        assert not any(one["repair"] for one in rings[1:]), rings
        assert len(rings) >= moves
        assert kills >= 2
        assert controller.output.count("slurm: asks for") == 1
        # A job needs another host while nobody lends one: it comes when Slurm is back.
        end.touch()
        lab.until(lambda: lab.shown("x")["state"] == "ended", "x does not end")
        assert shell.edl("delete", "y").returncode == 0
        lab.until(lambda: not lab.queue(), "the hosts are not given back")
        lab.slurm.kill_controller()
        lab.until(lambda: "slurm does not answer" in controller.output, "it is not missed")
        lab.submit("z", "--steps", "1")
        time.sleep(5)  # the outage lasts for several looks of the leader
        lab.slurm.start_controller()
        lab.until(lambda: lab.shown("z")["result"] == "finished", "the new job does not run")


def test_a_preempted_host_leaves_both_its_jobs_with_one_switch_and_comes_back(
    shell: Shell,
) -> None:
    """Each sample is counted once an epoch in both."""
    with lab_of(shell, PREEMPTION % GRACE_S) as lab:
        controller = lab.start("--host-slots", "2", "--max-hosts", "3", "--partition", "low")
        slow = shell.directory / "slow"
        Throttle(0.4, 1000).put(slow)
        counted = {}
        for name in ("a", "b"):  # 2 and 1 on two hosts, and then 1 and 2: the second has both
            counted[name] = shell.directory / name
            counted[name].mkdir()
            lab.train(name, counted[name], slow)
            lab.until(lambda name=name: lab.shown(name)["state"] == "running", f"no {name}")
            shell.until_size(3, name)
        lab.until(lambda: [one["used"] for one in lab.hosts().values()] == [2] * 3, "not all used")
        [both] = [host for host, one in lab.hosts().items() if len(one["jobs"]) == 2]
        for name in counted:
            lab.until(lambda name=name: lab.runs(name, 3), f"{name} has not 3 workers")
        before = {name: shell.status(name)["generation"] for name in counted}
        began = time.monotonic()
        words = ("--partition=high", f"--nodelist={both}", "--exclusive", "--output=/dev/null")
        number = lab.slurm.run("sbatch", "--parsable", *words, "--wrap=sleep 20").strip()
        for name in counted:
            lab.until(lambda name=name: lab.runs(name, 2), f"{name} does not leave")
        lab.until(lambda: lab.slurm.state(int(number)) == "RUNNING", "it is not preempted")
        if time.monotonic() - began >= GRACE_S:
            pytest.fail(f"the host did not leave before it was killed: {lab.describe()}")
        assert both not in lab.hosts()
        for name, generation in before.items():
            rings = [one for one in shell.events(name) if one["kind"] == "generation"]
            news = [one for one in rings if one["generation"] > generation]
            assert len(news) == 1, f"{name}: {news}\n{lab.describe()}"
        for name in counted:
            lab.until(lambda name=name: lab.runs(name, 3), f"{name} does not grow again")
        assert len(lab.queue()) == 3
        assert "came to nothing" not in controller.output
        slow.unlink()
        for name, directory in counted.items():
            lab.until(
                lambda name=name: lab.shown(name)["result"] == "finished", f"no end of {name}"
            )
            assert lab.shown(name)["runs"] == 1
            reports = [json.loads(path.read_text()) for path in directory.glob("*.json")]
            assert reports
            for report in reports:
                assert report["wrong"] == []
                assert report["counts"] == {str(EPOCHS): SAMPLES}


def test_what_outlives_its_lease_ends_before_its_slots_are_offered_again(shell: Shell) -> None:
    """`edl host` is killed, with Slurm's process above it; what it has started is frozen."""
    with lab_of(shell) as lab:
        only = "--fleet-option=--nodelist=n1"
        controller = lab.start("--host-slots", "2", "--max-hosts", "1", only)
        end = shell.directory / "end"
        lab.submit("j", "--until", str(end), min=2)
        lab.until(lambda: lab.shown("j")["state"] == "running", "the job does not run")
        shell.until_size(2)
        state = shell.environment["XDG_STATE_HOME"]
        [host] = [one for one in processes_of(state) if is_host(one)]
        assert len(runs_of(state)) == 1
        watcher = host.parent()
        assert watcher is not None
        assert "slurmstepd" in watcher.name()
        watcher.kill()
        host.kill()
        for one in processes_of(state):
            if one.environ().get("EDL_CLUSTER_RUN"):
                one.suspend()
        lab.slurm.run("scancel", "--me")
        runs: list[set[str]] = []

        def is_back() -> bool:
            runs.append(runs_of(state))
            assert len(runs[-1]) <= 1, "processes of two runs live on the slots of one"
            return controller.output.count("slurm: asks for") == 2 and lab.runs("j", 2)

        lab.until(lambda: "l1 came to nothing" in controller.output, "Slurm lends it still")
        assert runs_of(state), "the workers have outlived the lease"
        lab.until(is_back, "the job does not run again")
        assert list(lab.hosts()) == ["n1"]
        end.touch()
        lab.until(lambda: lab.shown("j")["result"] == "finished", "the job does not end")


def is_host(process: psutil.Process) -> bool:
    words = process.cmdline()
    return "--lease" in words and "srun" not in words[0]


def runs_of(state: str) -> set[str]:
    found = set()
    for one in processes_of(state):
        with contextlib.suppress(psutil.Error):
            mark = one.environ().get("EDL_CLUSTER_RUN", "")
            found |= {mark} if mark and STANDIN in one.cmdline() else set()
    return found
