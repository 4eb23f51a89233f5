"""The parts of logs that `edl host` sends."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import parse_qs

import pytest
from made import make_job

from edl.cluster.client.logs import ClusterJobLogs
from edl.cluster.host.logs import KEPT_RUNS, KEPT_S, LogPlaces, bytes_in, read_part
from edl.cluster.records import PART_BYTES, LogPart, chosen_logs
from edl.errors import CoordinationError, UnknownJob
from edl.events import Event, WorkerExitedDetails
from edl.host.adoption import identity
from edl.host.logs import former, last_output
from edl.job.snapshot import Snapshot
from edl.zookeeper.access import Access


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "x-0.log"
    path.write_bytes(b"one\ntwo\n")
    return path


def number(path: Path) -> int:
    return path.stat().st_ino


def test_a_log_is_read_part_by_part(log: Path) -> None:
    part, content = read_part(log, 0, 0, most=5)
    assert (part, content) == (LogPart(number(log), 5), b"one\nt")
    part, content = read_part(log, part.file, part.next)
    assert (part, content) == (LogPart(number(log), 8), b"wo\n")
    assert read_part(log, part.file, part.next) == (part, b"")
    with log.open("ab") as file:
        file.write(b"three\n")
    assert read_part(log, part.file, part.next)[1] == b"three\n"


def test_only_its_end_is_read(log: Path) -> None:
    assert read_part(log, 0, -4) == (LogPart(number(log), 8), b"two\n")
    assert read_part(log, 0, -400)[1] == b"one\ntwo\n"


def test_reading_goes_on_in_the_file_that_the_worker_began(log: Path) -> None:
    part, _ = read_part(log, 0, 0, most=4)
    log.rename(former(log))
    log.write_bytes(b"three\n")
    part, content = read_part(log, part.file, part.next)
    assert (part, content) == (LogPart(number(former(log)), 8), b"two\n")
    part, content = read_part(log, part.file, part.next)
    assert (part, content) == (LogPart(number(log), 6), b"three\n")
    assert read_part(log, 0, 0)[1] == b"one\ntwo\n", "from its beginning"
    assert read_part(log, 0, -3)[1] == b"ee\n"
    assert bytes_in(log) == 14


def test_what_nobody_read_in_time_is_missing(log: Path) -> None:
    part, _ = read_part(log, 0, 0)
    log.rename(former(log))
    log.write_bytes(b"three\n")
    other = log.with_name("other")
    other.write_bytes(b"four\n")  # so that the numbers are not those of removed files
    log.rename(former(log))
    other.rename(log)
    part, content = read_part(log, part.file, part.next)
    assert (content, part.missed) == (b"three\n", True)
    part, content = read_part(log, part.file, part.next)
    assert (content, part.missed) == (b"four\n", False)
    part, content = read_part(log, number(log), 999)
    assert (content, part.missed) == (b"four\n", True), "another file has the number"


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_part(tmp_path / "none.log", 0, 0)


def test_only_jobs_that_had_an_agent_here_have_logs(tmp_path: Path) -> None:
    workers, agents = tmp_path / "jobs", tmp_path / "agents"
    agents.mkdir()
    for job in ("j", "j-2", "own"):
        logs = workers / job / "logs"
        logs.mkdir(parents=True)
        (logs / "x-0.log").touch()
        (logs / "x-1.log").touch()
        (logs / "w0.log").symlink_to("x-0.log")
    (agents / "j-aa.log").touch()
    (agents / "j-2-bb.log").touch()
    places = LogPlaces(workers, agents)
    assert places.of_job("j") == {
        "w0": workers / "j/logs/x-0.log",
        "x-1": workers / "j/logs/x-1.log",
        "agent-aa": agents / "j-aa.log",
    }
    assert places.of_job("j-2").keys() == {"w0", "x-1", "agent-bb"}
    assert places.of_job("own") == places.of_job("../jobs/own") == places.of_job("") == {}


def places_with_runs(directory: Path, count: int) -> LogPlaces:
    """Return places with an agent's log of each of ``count`` jobs; that of j0 is the oldest."""
    places = LogPlaces(directory / "jobs", directory / "agents")
    places.agents.mkdir()
    for number in range(count):
        log = places.of_agent(f"j{number}", "aa")
        log.touch()
        os.utime(log, (number, number))
    return places


def test_logs_of_runs_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    places = places_with_runs(tmp_path, KEPT_RUNS + 4)
    for number in range(KEPT_RUNS + 4):
        logs = places.of_workers(f"j{number}")
        logs.mkdir(parents=True)
        for path in (logs, logs.parent):
            os.utime(path, (number, number))
    kept = places.of_agent("j3", "bb")  # a later run of the same job
    kept.touch()
    (places.of_workers("j2") / "x-0.log").touch()  # of another host that shares the directory
    places.prune([("j1", "aa")], now_s=KEPT_S)
    assert len(list(places.agents.iterdir())) == KEPT_RUNS + 5, "all of the last day stay"
    places.prune([("j1", "aa")], now_s=KEPT_S + 1000)
    gone = [n for n in range(KEPT_RUNS + 4) if not places.of_agent(f"j{n}", "aa").exists()]
    assert gone == [0, 2, 3, 4]
    assert kept.exists()
    left = [n for n in range(KEPT_RUNS + 4) if not places.of_workers(f"j{n}").exists()]
    assert left == [0, 4]


def test_logs_of_a_job_that_another_host_runs_are_kept(tmp_path: Path) -> None:
    """It shares the directory, and the newest run on this host has ended long ago."""
    places = places_with_runs(tmp_path, KEPT_RUNS + 1)
    logs = places.of_workers("j0")
    logs.mkdir(parents=True)
    (logs / "x-0.process").write_text(identity(os.getpid()))
    places.prune([], now_s=time.time() + 2 * KEPT_S)
    assert not places.of_agent("j0", "aa").exists()
    assert logs.exists()


def test_the_log_of_the_last_run_is_chosen() -> None:
    there = {"b": ["w0", "w10", "agent-aa"], "a": ["w0", "w2", "x-7"]}
    found = chosen_logs(there, {"w0": "a", "w1": "c"})
    assert found == [("w0", "a"), ("w2", "a"), ("w10", "b"), ("x-7", "a")]
    assert chosen_logs(there, {})[:2] == [("w0", "a"), ("w0", "b")], "nobody knows"


class Worker:
    """A worker that writes a line whenever a part of its log has been read, up to 100 times."""

    def __init__(self, log: Path, line: bytes) -> None:
        self.log = log
        self.line = line
        self.reads = 0

    def answer(self, *request: object) -> tuple[int, bytes]:
        path = str(request[-2])
        if "?" not in path:
            return 200, json.dumps({"w0": bytes_in(self.log)}).encode()
        query = parse_qs(path.partition("?")[2])
        part, content = read_part(self.log, int(query["file"][0]), int(query["from"][0]))
        self.reads += 1
        if self.reads < 100:
            with self.log.open("ab") as file:
                file.write(self.line)
        return 200, json.dumps(part.to_json()).encode() + b"\n" + content


def reader_of(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> ClusterJobLogs:
    monkeypatch.setattr("edl.cluster.client.logs.send_change", worker.answer)
    monkeypatch.setattr("edl.cluster.client.logs.choose_job", Mock(side_effect=UnknownJob("j")))
    access = Access("lab", "0" * 64)
    host = SimpleNamespace(name="h", offer=SimpleNamespace(address="127.0.0.1", port=1))
    store: Any = Mock()
    store.nodes.session.access = access
    store.jobs.full_name.return_value = "j"
    store.jobs.log_access.return_value = access
    store.hosts.list.return_value = [host]
    reader = ClusterJobLogs(store, "j", None)
    reader.poll()
    return reader


def read_now(reader: ClusterJobLogs) -> bytes:
    return b"".join(content for _, parts in reader.read() for content in parts)


def test_an_event_of_a_newer_edl_leaves_the_others(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a worker whose host is gone is in the event of that end."""
    reader = reader_of(Worker(log, b""), monkeypatch)
    end = Event(1.0, 1, 5, "it left", WorkerExitedDetails("w7", "gone", 1, 0, "", "last\n"))
    unread = CoordinationError("an event has the kind 'rescued', which this edl does not know")
    events = SimpleNamespace(
        read=Mock(side_effect=unread), read_known=lambda after=-1, unreadable=None: [(0, end)]
    )
    run = SimpleNamespace(events=events, snapshot=lambda: Snapshot(make_job()))
    monkeypatch.setattr("edl.cluster.client.logs.choose_job", lambda *_, **__: run)
    reader.poll()
    assert reader.tails == {"w7": "last\n"}


def test_a_reading_ends_while_the_worker_writes(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.rename(former(log))
    log.write_bytes(b"three\n")
    worker = Worker(log, b"more\n")
    reader = reader_of(worker, monkeypatch)
    assert read_now(reader) == b"one\ntwo\nthree\nmore\n"
    assert worker.reads == 2
    assert read_now(reader) == b"more\nmore\n", "it goes on where the last one ended"
    (of_w0,) = reader.logs
    assert reader.end(of_w0, 10) == b"more\nmore\n"
    assert reader.end(of_w0, 1000) == log.read_bytes()[:-5]
    assert worker.reads < 10


def test_a_worker_that_writes_faster_than_its_log_is_read(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_bytes(b"x" * 2 * PART_BYTES)
    worker = Worker(log, b"y" * PART_BYTES)
    reader = reader_of(worker, monkeypatch)
    assert set(read_now(reader)) == set(b"x")
    assert len(reader.end(reader.logs[0], PART_BYTES + 1)) == PART_BYTES + 1
    assert worker.reads == 4


def test_the_end_of_an_output(log: Path) -> None:
    assert last_output(log, 100) == last_output(log, 8) == "one\ntwo"
    assert last_output(log, 7) == last_output(log, 4) == "two"
    assert last_output(log, 2) == "o", "of a line that is too long"
    log.rename(former(log))
    log.write_bytes(b"thr\xff\n")
    assert last_output(log, 9) == "two\nthr\ufffd", "it goes back into the file before"
    assert last_output(log, 5) == "thr\ufffd"
    assert last_output(log.with_name("none"), 9) == ""
