"""Nobody waits long for the reader of what a process prints that lives on."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from typing import IO

import pytest

from edl.cli.common import line_writer
from edl.host.output import KEPT

LINES = 5000  # of 60 bytes and more, of which a pipe takes 65,536 bytes
END_S = 20.0


class Pipe:
    def __init__(self) -> None:
        self._reader, writer = os.pipe()
        self.file: IO[str] = os.fdopen(writer, "w", buffering=1)

    def close(self) -> None:
        os.close(self._reader)
        self.file.close()

    def lines(self, last: str) -> list[str]:
        found = b""
        while not found.endswith(f"{last}\n".encode()):
            found += os.read(self._reader, 1 << 16)
        return found.decode().splitlines()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    one = Pipe()
    yield one
    one.close()


@pytest.fixture
def in_time() -> Iterator[Callable[[Callable[[], object]], None]]:
    threads = ThreadPoolExecutor(1)
    yield lambda act: threads.submit(act).result(END_S) and None
    threads.shutdown(wait=False)


def sentence(number: int) -> str:
    return f"{number} cannot plan, since nobody has read this sentence until now"


def test_who_does_not_read_stops_nobody_and_is_told_what_is_missing(
    pipe: Pipe, in_time: Callable[[Callable[[], object]], None]
) -> None:
    with redirect_stdout(pipe.file):
        say, say_when = line_writer(), line_writer(with_time=True)

    def say_all() -> None:
        for number in range(LINES):
            (say_when if number % 2 else say)(sentence(number))

    in_time(say_all)
    shown = pipe.lines(sentence(LINES - 1))
    numbers = [int(found[1]) for line in shown if (found := re.search(r"(\d+) cannot plan", line))]
    assert numbers == sorted(numbers), "in order, also of two functions"
    assert numbers[-KEPT:] == [*range(LINES - KEPT, LINES)]
    (left_out,) = (line for line in shown if "cannot plan" not in line)
    missing = LINES - len(numbers)
    assert left_out == f"edl: {missing} lines are left out here, which nobody has read in time"
    assert shown.index(left_out) == len(shown) - 1 - KEPT
    say("one more")
    assert pipe.lines("one more") == ["one more"]


def test_log_records_stop_nobody_either(
    pipe: Pipe, in_time: Callable[[Callable[[], object]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with redirect_stderr(pipe.file):
        usual = logging.StreamHandler()
        monkeypatch.setattr(logging.getLogger(), "handlers", [usual])
        line_writer()

    def log_all() -> None:
        for number in range(LINES):
            logging.getLogger("edl").warning("%s", sentence(number))

    in_time(log_all)
    assert pipe.lines(sentence(LINES - 1))[0] == sentence(0)


@pytest.mark.parametrize("is_read", [True, False])
def test_lines_that_wait_come_out_at_the_end(is_read: bool) -> None:
    """And a reader that never comes does not keep the process from its end."""
    script = (
        "import sys; from edl.cli.common import line_writer; write = line_writer()\n"
        f"for number in range({KEPT}): write(f'{{number}} {'x' * 100}')\n"
        "print('all are said', file=sys.stderr, flush=True)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == "all are said\n"
        if is_read:
            lines = process.stdout.read().splitlines()
            assert [line.split()[0] for line in lines] == [str(one) for one in range(KEPT)]
        assert process.wait(END_S) == 0
        assert process.stderr.read() == ""
