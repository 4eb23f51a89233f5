"""Agents that belong to one run of a job: none starts a run, and each end has a code of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until

from edl.client import Job, submit
from edl.host.process import EXIT_CODES, AgentEnd
from edl.records import RequestedBy

pytestmark = pytest.mark.integration
__all__ = ["shell"]
RUN, LATER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
Create = Callable[..., Job]


@pytest.fixture
def create(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Create:
    for name in ("EDL_ZOOKEEPER", "XDG_STATE_HOME", "EDL_SESSION_TIMEOUT_S"):
        monkeypatch.setenv(name, shell.environment[name])

    def call(run: str, hosts: dict[str, int], *options: str, **settings: Any) -> Job:
        command = [sys.executable, STANDIN, *options]
        job = submit(command, hosts, name="j", run=run, cwd=shell.directory, **settings)
        job.close()
        return job

    return call


def agent(shell: Shell, host: str, run: str = RUN, job: str = "j") -> Running:
    """Start an agent as an engine does: anywhere, for the job's record says where its script is."""
    words = ("--job", job, "--run", run, "--host", host, "--slots", "2", "--json")
    return shell.start("agent", *words)


def ended(one: Running, end: AgentEnd) -> dict[str, Any]:
    """Wait for the end of an agent, which it tells by its code and its last line."""
    code = one.wait()
    said: dict[str, Any] = json.loads(one.output.splitlines()[-1])
    assert (said["end"], said["exit_code"]) == (end, code), one.output
    assert code == EXIT_CODES.get(end, 1 if end is AgentEnd.FAILED else 0), one.output
    return said


def test_a_late_agent_starts_nothing(shell: Shell, create: Create) -> None:
    job = create(RUN, {"a": 1, "b": 1}, min_np=2)
    first = agent(shell, "a")
    first.expect("is here")
    assert shell.status()["generation"] == 0, "of two, both are needed"
    second = agent(shell, "b")
    shell.until_size(2)
    assert shell.edl("stop", "j").returncode == 0
    for host, one in (("a", first), ("b", second)):
        said = ended(one, AgentEnd.STOPPED)
        assert (said["job"], said["run"], said["host"]) == ("j", RUN, host)
        assert said["reason"] == "edl stop"
    late = agent(shell, "a")
    why = f"run {RUN} of job j is over: it was stopped (edl stop)"
    assert ended(late, AgentEnd.OVER)["reason"] == why
    assert f"edl: {why}" in late.output
    create(RUN, {"a": 1, "b": 1})  # by the next controller, which does not know
    assert (job.run(), job.status().state) == (RUN, "stopped")
    assert create(LATER, {"a": 1}, "--steps", "5").run() == LATER
    why = f"run {RUN} of job j is over: run {LATER} has taken its place"
    assert ended(agent(shell, "a"), AgentEnd.OVER)["reason"] == why
    assert job.status().hosts == {}
    ended(agent(shell, "a", LATER), AgentEnd.FINISHED)
    ended(agent(shell, "a", job="k"), AgentEnd.NO_SUCH_JOB)
    ended(shell.start("join", "--job", "j", "--json"), AgentEnd.REFUSED)
    run = ("run", "--job", "k", "--json", sys.executable, STANDIN, "--fail-at", "2", "--code", "1")
    ended(shell.start(*run), AgentEnd.FAILED)
    assert not shell.processes()


def test_an_agent_says_why_it_leaves_a_job_that_goes_on(shell: Shell, create: Create) -> None:
    create(RUN, {"a": 1, "b": 1}, max_np=4)
    stays, drained = agent(shell, "a"), agent(shell, "b")
    shell.until_size(2)
    other = ended(agent(shell, "a"), AgentEnd.ALREADY_HERE)
    assert "host 'a' of job j belongs to another agent" in other["reason"]
    assert shell.edl("drain", "j", "--host", "b").returncode == 0
    assert ended(drained, AgentEnd.LEFT)["reason"] == "edl drain: host b leaves the job"
    replaced, preempted = agent(shell, "b"), agent(shell, "c")
    for host in (replaced, preempted):
        host.expect("offers 2 slots to job j")
    with shell.store("j") as store:
        store.set_desired(lambda now: {"a": 1, "b": 1, "c": 1}, RequestedBy.PERSON, "test")
        shell.until_size(3)
        store.set_desired(lambda now: {"a": 1, "c": 1}, RequestedBy.PERSON, "test")
    said = ended(replaced, AgentEnd.LEFT)
    assert said["reason"] == "the job's workers of host b were placed on other hosts"
    shell.until_size(2)
    preempted.signal(signal.SIGTERM)
    assert ended(preempted, AgentEnd.PREEMPTED)["reason"] == "SIGTERM: host c leaves the job"
    shell.until_size(1)
    assert shell.edl("stop", "j").returncode == 0
    ended(stays, AgentEnd.STOPPED)


@pytest.mark.long  # tests/README.md, Time
def test_a_run_whose_host_never_comes_fails(shell: Shell, create: Create) -> None:
    job = create(RUN, {"a": 1, "b": 1}, min_np=2, start_timeout_s=4.0)
    said = ended(agent(shell, "a"), AgentEnd.FAILED)
    assert said["reason"] == "1 of at least 2 workers came within 6 s: no agent of host b"
    assert job.status().generation == 0
    assert not shell.processes()


@pytest.mark.long  # tests/README.md, Time
def test_an_agent_that_slept_through_the_end_of_its_run_ends(shell: Shell, create: Create) -> None:
    create(RUN, {"a": 1})
    asleep = agent(shell, "a")
    shell.until_size(1)
    os.kill(asleep.process.pid, signal.SIGSTOP)
    until(lambda: shell.status()["hosts"] == {}, WAIT_S)
    assert shell.edl("stop", "j").returncode == 0
    create(LATER, {"a": 1})
    awake = agent(shell, "a", LATER)
    shell.until_size(1)
    os.kill(asleep.process.pid, signal.SIGCONT)
    ended(asleep, AgentEnd.OVER)
    assert "its workers on this host were ended" in asleep.output
    assert shell.until_size(1)["members"][0]["host"] == "a"
    assert shell.edl("stop", "j").returncode == 0
    ended(awake, AgentEnd.STOPPED)
