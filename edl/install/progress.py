"""Run long commands (pip, compilers) with their output in a log, and show how far they are.

:func:`run_logged` does so.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PLAIN_PERIOD_S = 20.0  # without a terminal: how often a line is written while nothing else changes
_PERCENT = re.compile(r"\[\s*(\d{1,3})%\]")  # make's, in CMake's makefiles


class CommandFailed(Exception):
    """The error of `run_logged` that a command ended with an exit code other than 0."""

    def __init__(self, command: Sequence[str], code: int, tail: Sequence[str]) -> None:
        super().__init__(f"{' '.join(command[:6])} ended with {code}")
        self.code = code  # the exit code; negative: the number of the signal that ended the command
        # the last lines of the output, as a tuple; `run_logged` gives at most 401
        self.tail = tuple(tail)


def error_line(tail: tuple[str, ...]) -> str:
    """Return the line of a failed command's output that most likely says why it failed."""
    signs = ("fatal error", "error:", "ERROR:", "CMake Error", "Killed", "No space left")
    lines = [line.strip() for line in tail if line.strip()] or ["no output"]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if any(sign in line for sign in signs):
            # CMake and others put the place first and the reason into the next line
            return (f"{line} {following}" if line.endswith(":") else line)[:300]
    return lines[-1][:300]


def run_logged(
    command: Sequence[str],
    *,
    what: str,
    log: Path,
    env: Mapping[str, str],
    console: Console,
) -> None:
    """Run `command` to its end, append its output to a log, and show its progress."""
    show = _live if console.is_terminal else _plain
    show(command, what, log, env, console)


def _plain(
    command: Sequence[str], what: str, log: Path, env: Mapping[str, str], console: Console
) -> None:
    """Run a command to its end, and print a line of progress every 20 s (`PLAIN_PERIOD_S`)."""
    start = time.monotonic()
    state = {"percent": -1}
    ended = threading.Event()
    console.print(f"{what} ...", soft_wrap=True)

    def report() -> None:
        while not ended.wait(PLAIN_PERIOD_S):
            percent = f"{state['percent']} %, " if state["percent"] >= 0 else ""
            elapsed_s = time.monotonic() - start
            console.print(f"{what}: {percent}{elapsed_s:.0f} s", soft_wrap=True)

    def on_percent(percent: int) -> None:
        state["percent"] = percent

    reporter = threading.Thread(target=report, name="edl-progress", daemon=True)
    reporter.start()
    try:
        _stream(command, log, env, on_percent)
    finally:
        ended.set()
        reporter.join()
    console.print(f"{what}: done in {time.monotonic() - start:.0f} s", soft_wrap=True)


def _live(
    command: Sequence[str], what: str, log: Path, env: Mapping[str, str], console: Console
) -> None:
    """Run a command to its end, and show a progress bar on the terminal."""
    columns = (SpinnerColumn(), TextColumn(what), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(what, total=None)
        _stream(
            command, log, env, lambda percent: progress.update(task, total=100, completed=percent)
        )
        progress.update(task, total=100, completed=100)


def _stream(
    command: Sequence[str], log: Path, env: Mapping[str, str], on_percent: Callable[[int], None]
) -> None:
    """Run a command to its end, and append the command and its output (also of errors) to a log."""
    tail: list[str] = []
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {' '.join(command)}\n")
        sink.flush()
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            encoding="utf-8",
            errors="replace",
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    sink.write(line)
                    sink.flush()
                    tail = [*tail[-400:], line.rstrip()]
                    if found := _PERCENT.search(line):
                        on_percent(min(int(found[1]), 100))
            except BaseException:  # Ctrl-C too: leave no compiler behind
                process.terminate()
                raise
    if process.returncode != 0:
        raise CommandFailed(command, process.returncode, tail)
