"""The parts of logs that `edl host` sends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl.core.cluster.log_choice import chosen_logs
from edl.core.cluster.log_part import LogPart
from edl.launch.log_reader import former, last_output
from edl.scheduler.host.log_files import bytes_in
from edl.scheduler.host.log_places import KEPT_RUNS, KEPT_S, LogPlaces
from edl.scheduler.host.log_server import read_part


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


def test_logs_of_runs_that_ended_long_ago_are_removed(tmp_path: Path) -> None:
    places = LogPlaces(tmp_path / "jobs", tmp_path / "agents")
    places.agents.mkdir()
    for number in range(KEPT_RUNS + 4):
        log = places.of_agent(f"j{number}", "aa")
        log.touch()
        os.utime(log, (number, number))
        places.of_workers(f"j{number}").mkdir(parents=True)
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


def test_the_log_of_the_last_run_is_chosen() -> None:
    there = {"b": ["w0", "w10", "agent-aa"], "a": ["w0", "w2", "x-7"]}
    found = chosen_logs(there, {"w0": "a", "w1": "c"})
    assert found == [("w0", "a"), ("w2", "a"), ("w10", "b"), ("x-7", "a")]
    assert chosen_logs(there, {})[:2] == [("w0", "a"), ("w0", "b")], "nobody knows"


def test_the_end_of_an_output(log: Path) -> None:
    assert last_output(log, 100) == last_output(log, 8) == "one\ntwo"
    assert last_output(log, 7) == last_output(log, 4) == "two"
    assert last_output(log, 2) == "o", "of a line that is too long"
    log.rename(former(log))
    log.write_bytes(b"thr\xff\n")
    assert last_output(log, 9) == "two\nthr\ufffd", "it goes back into the file before"
    assert last_output(log, 5) == "thr\ufffd"
    assert last_output(log.with_name("none"), 9) == ""
