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
    """The error of :func:`run_logged` that a command ended with an exit code other than 0.

    Args:
        command: the words of the command, of which the message has the first six.
        code: the exit code.
        tail: the last lines of the output, oldest first.

    Attributes:
        code: the exit code; negative: the number of the signal that ended the command.
        tail: the last lines of the output, as a tuple; :func:`run_logged` gives at most 401.
    """

    def __init__(self, command: Sequence[str], code: int, tail: Sequence[str]) -> None:
        super().__init__(f"{' '.join(command[:6])} ended with {code}")
        self.code = code
        self.tail = tuple(tail)


def error_line(tail: tuple[str, ...]) -> str:
    """Return the line of a failed command's output that most likely says why it failed.

    It is the first line with a sign of an error, such as "fatal error"; if there is none, the last
    line. The result has at most 300 characters.

    Args:
        tail: the last lines of the output; without any the result is "no output".
    """
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
    """Run ``command`` to its end, append its output to a log, and show its progress.

    The progress is the percentage that make prints, and the time. The command has no input. An
    exception meanwhile, such as of Ctrl-C, ends the command.

    Args:
        command: the words of the command.
        what: what the command does, as shown to the user.
        log: the file of the log, which is created if it does not exist.
        env: all environment variables of the command.
        console: where the progress is shown: a bar on a terminal, else a line every 20 s
            (``PLAIN_PERIOD_S``).

    Raises:
        CommandFailed: the command ended with an exit code other than 0.
        OSError: the command could not be started.
    """
    show = _live if console.is_terminal else _plain
    show(command, what, log, env, console)


def _plain(
    command: Sequence[str], what: str, log: Path, env: Mapping[str, str], console: Console
) -> None:
    """Run a command to its end, and print a line of progress every 20 s (``PLAIN_PERIOD_S``).

    A line is also printed at the beginning and after success.

    Args:
        command: the words of the command.
        what: what the command does, as shown to the user.
        log: the file to which the output is appended.
        env: all environment variables of the command.
        console: where the lines are printed; it is no terminal.

    Raises:
        CommandFailed: the command ended with an exit code other than 0.
        OSError: the command could not be started.
    """
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
    """Run a command to its end, and show a progress bar on the terminal.

    Args:
        command: the words of the command.
        what: what the command does, which stands before the bar.
        log: the file to which the output is appended.
        env: all environment variables of the command.
        console: the terminal.

    Raises:
        CommandFailed: the command ended with an exit code other than 0.
        OSError: the command could not be started.
    """
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
    """Run a command to its end, and append the command and its output (also of errors) to a log.

    Args:
        command: the words of the command.
        log: the file of the log, which is created if it does not exist.
        env: all environment variables of the command.
        on_percent: called with the progress, 0 to 100, each time a line of the output has it in the
            form of make, such as "[ 42%]".

    Raises:
        CommandFailed: the command ended with an exit code other than 0.
        OSError: the command could not be started.
    """
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
