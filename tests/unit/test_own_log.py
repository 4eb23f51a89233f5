"""A worker's log begins anew when it is long, and a full disk ends nobody who prints."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

from edl.host.logs import LogReader, former
from edl.host.process import FORMER_LOG

ROTATING = """
import sys
from edl.job.pending_writes import OwnLog

log = OwnLog(sys.argv[1])
log.guard()
for number in range(1000):
    print(f"line {number}", file=(sys.stdout, sys.stderr)[number % 2])
    log.rotate(2000)
    if number % 100 == 99:
        print("ready", file=answers, flush=True)
        sys.stdin.readline()
"""
# The limit of a file's size stands for the disk: what goes beyond fails, and it can be lifted.
FULL = """
import logging, resource, sys
from edl.job.pending_writes import OwnLog

log = OwnLog(sys.argv[1])
log.guard()
print("begin")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
for number in range(100):
    print(f"line {number}")
    print(f"error {number}", file=sys.stderr)
logging.warning("a record")
answers.write(f"{log.take_failure()}|{log.take_failure()}")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("end")
answers.write(f"|{log.take_failure()}")
"""
# Each series of lost lines is one failure, also where the line that counts them still fits.
NEARLY_FULL = """
import resource, sys
from edl.job.pending_writes import OwnLog

log = OwnLog(sys.argv[1])
log.guard()
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
print("x" * 99)
answers.write(f"{log.take_failure()} {log.take_lost()}")
for limit in (60, 120, 180):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    print("x" * 99)
    answers.write(f"|{log.take_failure()} {log.take_lost()}")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("end")
answers.write(f"|{log.take_failure()} {log.take_lost()}")
"""


def start(script: str, path: Path, log: Path) -> subprocess.Popen[str]:
    set_up = f"""
import os, sys
answers = os.fdopen(os.dup(1), "w")
log = os.open({str(log)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1), os.dup2(log, 2), os.close(log)
"""
    return subprocess.Popen(
        [sys.executable, "-u", "-c", set_up + script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_reader_has_every_line_though_the_log_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "abc.log"
    read = b""
    with start(ROTATING, log, log) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with closing(LogReader(log)) as reader:
            while True:
                while chunk := reader.read(100):
                    read += chunk
                process.stdin.write("\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    break
    assert process.returncode == 0
    assert read.decode().splitlines() == [f"line {number}" for number in range(1000)]
    assert log.stat().st_size + former(log).stat().st_size < 2 * 2100
    assert sorted(path.name for path in tmp_path.iterdir()) == ["abc.log", f"abc.log{FORMER_LOG}"]


def test_who_reads_too_late_is_told_so(tmp_path: Path) -> None:
    log = tmp_path / "abc.log"
    log.write_text("first\n")
    with closing(LogReader(log)) as late:
        for text in ("second\n", "third\n"):
            log.rename(former(log))
            log.write_text(text)
        assert late.read(100) == b"first\n"
        assert late.read(100) == (
            b"\nedl: what the worker has written here is gone: nobody read it in time\nthird\n"
        )
    with closing(LogReader(log)) as whole, closing(LogReader(log, from_now=True)) as new:
        assert whole.read(100) + whole.read(100) == b"second\nthird\n"
        assert new.read(100) == b""


def test_a_full_disk_ends_nobody_and_what_is_missing_is_said(tmp_path: Path) -> None:
    log = tmp_path / "abc.log"
    with start(FULL, log, log) as process:
        answers = process.communicate()[0]
    assert process.returncode == 0, log.read_text()
    assert answers == f"File too large: {log}|None|None"
    text = log.read_text()
    lines = text.splitlines()
    assert (lines[:2], lines[-1]) == (["begin", "line 0"], "end")
    missing = "".join(f"line {number}\nerror {number}\n" for number in range(100))
    missing += "WARNING:root:a record\n"
    there = 100 - len("begin\n")
    assert f"edl: {len(missing) - there} bytes are left out here" in lines


def test_a_disk_with_room_for_a_few_bytes_is_one_failure(tmp_path: Path) -> None:
    log = tmp_path / "abc.log"
    with start(NEARLY_FULL, log, log) as process:
        answers = process.communicate()[0].split("|")
    assert process.returncode == 0, log.read_text()
    assert answers[:4] == [f"File too large: {log} 0", *["None 0"] * 3]
    lost = int(answers[4].removeprefix("None "))
    assert 300 < lost <= 400
    assert log.read_text().endswith(f"edl: {lost} bytes are left out here\nend\n")


def test_output_that_goes_elsewhere_is_left_alone(tmp_path: Path) -> None:
    with start(ROTATING, tmp_path / "another.log", tmp_path / "abc.log") as process:
        process.communicate("\n" * 10)
    assert (tmp_path / "abc.log").read_text().count("line") == 1000
    assert [path.name for path in tmp_path.iterdir()] == ["abc.log"]
