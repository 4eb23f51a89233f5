"""All jobs at a glance: what `edl list` and `edl top` read from ZooKeeper, and what they print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from known import DIGITS
from made import make_job

from edl import config
from edl.cli.main import invoke
from edl.client.job import ObservedJob, ObservedJobs
from edl.events import CheckpointFailedDetails, Event
from edl.records import JobState, Member
from edl.zookeeper.access import Access, keep
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

pytestmark = pytest.mark.integration
Wait = Callable[..., None]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    keep(config.state_dir(), "digits", DIGITS.secret)


@pytest.fixture
def store(session: Session) -> JobStore:
    store = JobStore(session, "digits")
    store.create(make_job(created=5.0), {"a": 2})
    return store


@pytest.fixture
def looking(zk_hosts: str) -> Iterator[Session]:
    with Session(zk_hosts, session_timeout_s=2.0) as one:
        yield one


def event(number: int) -> Event:
    return Event(float(number), 1, number, f"reason {number}", CheckpointFailedDetails())


def test_jobs_that_come_go_and_belong_to_others(
    store: JobStore, looking: Session, zk_hosts: str, wait_until: Wait
) -> None:
    jobs = ObservedJobs(looking)
    assert [job.name for job in jobs.read()] == ["digits"]
    with Session(zk_hosts, 2.0, access=Access("theirs", "0" * 64)) as theirs:
        JobStore(theirs, "theirs").create(make_job("theirs"), {"a": 1})
        assert ([job.name for job in jobs.read()], jobs.locked) == (["digits"], 1)
        keep(config.state_dir(), "theirs", "0" * 64)  # as `edl join` does
        assert [job.name for job in jobs.read()] == ["digits", "theirs"]
        JobStore(theirs, "theirs").delete()
    wait_until(lambda: [job.name for job in jobs.read()] == ["digits"])
    store.delete()
    wait_until(lambda: jobs.read() == [])
    store.create(make_job(created=9.0), {"a": 1})
    assert [(job.name, job.created_s) for job in jobs.read()] == [("digits", 9.0)]


def test_a_job_that_cannot_be_read_holds_up_no_other_one(
    store: JobStore, looking: Session, session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(config.state_dir(), "other", DIGITS.secret)
    other = JobStore(session, "other")
    session.identify(Access("other", DIGITS.secret))
    other.create(make_job("other"), {"a": 1})
    jobs = ObservedJobs(looking)
    assert [job.name for job in jobs.read()] == ["digits", "other"]
    session.call("spoil it", lambda c: c.set_async(other.paths.job, b"{}"))
    found = jobs.read()
    while not jobs.unreadable:  # until the watch has come
        found = jobs.read()
    assert [job.name for job in found] == ["digits", "other"], "as it was known last"
    assert (list(jobs.unreadable), jobs.locked) == (["other"], 0)

    at = ("--zookeeper", looking.hosts)
    assert invoke(["list", *at]) == 0
    printed = capsys.readouterr().out
    assert "digits" in printed
    assert "job other cannot be read: " in printed
    assert invoke(["top", *at]) == 0  # into a pipe: once
    assert "job other cannot be read: " in capsys.readouterr().out
    other.delete()


def test_a_job_is_read_for_what_has_changed(store: JobStore, wait_until: Wait) -> None:
    member = Member(0, "a", 0, "127.0.0.1", 1, 1, "t")
    store.members.put(member)
    job = ObservedJob(store)
    job.read()
    assert job.due_reads == 3
    store.members.put(replace(member, generation=1))
    wait_until(lambda: job.due_reads > 3)
    assert job.read().members[0].generation == 1


def test_the_newest_events(store: JobStore, wait_until: Wait) -> None:
    job = ObservedJob(store)
    assert job.events(3) == []
    for number in range(5):
        store.events.add(event(number))
    wait_until(lambda: job.events(3) == [event(2), event(3), event(4)])


def test_a_job_that_has_ended_is_read_no_more(store: JobStore) -> None:
    store.set_job_state(JobState.STOPPED, "edl stop")
    job = ObservedJob(store)
    ended = job.read()
    assert ended.job.state is JobState.STOPPED
    assert job.due_reads == 0
    assert job.read() is ended


@pytest.mark.usefixtures("store")
def test_the_verbs_where_the_output_is_no_terminal(
    zk_hosts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ("--zookeeper", zk_hosts)
    assert invoke(["list", *at]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["JOB", "STATE", "WORKERS"]
    assert row.split()[:3] == ["digits", "running", "0/2"]
    assert row.endswith("it starts; `edl stop digits` ends it")
    assert invoke(["list", "--cluster", "", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["wanted_np"] == 2
    assert invoke(["list", "--state", "failed", *at]) == 0
    assert capsys.readouterr().out == "no job is failed\n"
    assert invoke(["list", "--state", "queued", *at]) == 2
    assert "there is no state 'queued'" in capsys.readouterr().err
    assert invoke(["top", *at]) == 0
    shown = capsys.readouterr().out
    assert "digits" in shown
    assert invoke(["top", "digits", *at]) == 0
    one = capsys.readouterr().out
    shown += one
    assert one.splitlines()[0].startswith("digits  running")
    assert "\x1b" not in shown
    assert "Ctrl-C" not in shown
