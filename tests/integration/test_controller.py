"""Controllers of a cluster as processes: they create runs, and another one leads when one dies."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until
from hand_host import HandHost

from edl.coordination.access import Access
from edl.coordination.cluster_store import ClusterStore, StoredJob
from edl.coordination.cluster_submission import submit_job
from edl.coordination.secrets import new_secret
from edl.core.cluster.job_life import LifeResult, LifeState
from edl.core.cluster.manifest import JobManifest

pytestmark = pytest.mark.integration
__all__ = ["shell"]

LAB = Access("lab", new_secret())


@pytest.fixture
def cluster(shell: Shell) -> Shell:
    """Return a shell with the secret of the cluster `lab`."""
    shell.environment["EDL_SECRET"] = LAB.secret
    return shell


def start(shell: Shell) -> Running:
    return shell.start("cluster", "start", "--name", "lab", "--policy", "fifo")


def manifest(shell: Shell, name: str, *options: str, **changes: Any) -> JobManifest:
    command = (sys.executable, STANDIN, *options)
    return replace(JobManifest(name, command, 1, 4, cwd=str(shell.directory)), **changes)


def until_state(store: ClusterStore, job: str, state: LifeState) -> StoredJob:
    found: list[StoredJob] = []

    def is_so() -> bool:
        found[:] = [store.job(job)]
        return found[0].life.state is state

    until(is_so, WAIT_S, lambda: f"{job} is not {state}: {found[0].life}")
    return found[0]


def test_a_job_runs_to_its_end(cluster: Shell) -> None:
    controller = start(cluster)
    controller.expect("leads cluster lab in term 1")
    with HandHost(cluster, LAB, "a", 2) as host:
        submit_job(host.store, manifest(cluster, "j", "--steps", "20", max=2))
        ended = until_state(host.store, "j", LifeState.ENDED)
        assert ended.life.result is LifeResult.FINISHED
        until(lambda: not host.store.snapshot().hosts[0].assigned.jobs, WAIT_S)
        events = [(event.kind, event.reason) for _, event in host.store.events.read()]
    controller.process.terminate()
    assert controller.wait() == 0
    assert "job j: queued -> starting" in controller.output
    assert events[0][0] == "leader"


def test_another_one_leads_when_the_leader_dies(cluster: Shell) -> None:
    first = start(cluster)
    first.expect("leads cluster lab in term 1")
    second = start(cluster)
    second.expect("waits: process")
    second_waits = time.monotonic()
    first.process.send_signal(signal.SIGKILL)
    second.expect("leads cluster lab in term 2")
    took_s = time.monotonic() - second_waits
    print(f"another one leads after {took_s:.2f} s")
    third = start(cluster)
    third.expect("waits: process")
    second.process.send_signal(signal.SIGSTOP)  # it is silent, but no port is closed
    third.expect("leads cluster lab in term 3")
    second.process.send_signal(signal.SIGCONT)
    second.expect(f"waits: process {third.process.pid}")
    for one in (second, third):
        one.process.terminate()
        assert one.wait() == 0
    assert took_s < 2.0
