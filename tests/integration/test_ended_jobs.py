"""Ended jobs leave ZooKeeper: by `edl delete`, and by an agent when they are many or old."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from cli_shell import STANDIN, Shell, shell, until
from made import make_job

from edl.errors import JobExists, UsageError
from edl.host.host_agent import JobGarbageCollector, Retention
from edl.records import Host, JobState
from edl.zookeeper.access import Access, keep, new_secret
from edl.zookeeper.nodes import delete_ended, job_names
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration
__all__ = ["shell"]
RUN = ("run", "-np", "1", "--host", "a")


def create(hosts: str, state: Path | None, name: str, ends: JobState | None) -> None:
    secret = new_secret()
    if state is not None:
        keep(state, name, secret)
    with Session(hosts, access=Access(name, secret)) as session:
        store = JobStore(session, name)
        store.create(make_job(name=name), {"a": 1})
        if ends is not None:
            store.set_job_state(ends, "a test")


def test_an_agent_removes_the_oldest_of_too_many(zk_hosts: str, tmp_path: Path) -> None:
    """Not one that runs, nor one whose secret nobody here knows."""
    create(zk_hosts, None, "foreign", JobState.FINISHED)
    for number in range(4):
        create(zk_hosts, tmp_path, f"job-{number}", JobState.STOPPED)
    create(zk_hosts, tmp_path, "runs", None)
    own = Access("own", new_secret())
    with Session(zk_hosts, access=own) as session:
        store = JobStore(session, "own")
        store.create(make_job(name="own"), {"a": 1})
        with JobGarbageCollector(store, tmp_path, Retention(2, 3600.0)):
            until(lambda: "job-1" not in job_names(session), 30.0)
        assert job_names(session) == ("foreign", "job-2", "job-3", "own", "runs")


def test_an_agent_that_ends_at_once_removes_them_even_so(zk_hosts: str, tmp_path: Path) -> None:
    """Else many short jobs, of which none lives long enough, would stay for ever."""
    for number in range(4):
        create(zk_hosts, tmp_path, f"job-{number}", JobState.STOPPED)
    own = Access("own", new_secret())
    with Session(zk_hosts, access=own) as session:
        store = JobStore(session, "own")
        store.create(make_job(name="own"), {"a": 1})
        with JobGarbageCollector(store, tmp_path, Retention(2, 3600.0)):
            pass
        assert job_names(session) == ("job-2", "job-3", "own")


def test_only_who_has_ended_is_deleted(zk_hosts: str, tmp_path: Path) -> None:
    access = Access("digits", new_secret())
    with Session(zk_hosts, access=access) as session:
        store = JobStore(session, "digits")
        assert not delete_ended(session, store.paths)
        with Session(zk_hosts, access=access) as agent:
            store.create(make_job(name="digits"), {"a": 1})
            JobStore(agent, "digits").hosts.put(Host("a", 1, "127.0.0.1"))
            with pytest.raises(JobExists, match="host a"):
                delete_ended(session, store.paths)
            store.set_job_state(JobState.FINISHED, "trained")
            with pytest.raises(UsageError, match="has ended, and a has not left it yet"):
                delete_ended(session, store.paths)
        assert delete_ended(session, store.paths)
        assert job_names(session) == ()


def test_the_verb(shell: Shell) -> None:
    for name in ("one", "two"):
        ended = shell.edl(*RUN, "--job", name, sys.executable, STANDIN, "--steps", "3")
        assert ended.returncode == 0, ended.stderr
    running = shell.start(*RUN, "--job", "j", sys.executable, STANDIN)
    shell.until_size(1)
    refused = shell.edl("delete", "j")
    assert (refused.returncode, "end it with `edl stop j`" in refused.stderr) == (2, True)
    done = shell.edl("delete", "one", "two")
    assert done.stdout == "job one is deleted\njob two is deleted\n"
    again = shell.edl("delete", "one")
    assert (again.returncode, "there is no job named 'one'" in again.stderr) == (94, True)
    running.signal(signal.SIGINT)
    assert running.wait() == 130
