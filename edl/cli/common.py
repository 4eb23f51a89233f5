"""Shared parts of several commands: texts of options, output on a terminal, checks of input.

This module imports nothing of :mod:`edl.client`, because `edl simulate`, which needs neither a
job nor ZooKeeper, uses it too.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.markup import escape

from edl import config
from edl.errors import CoordinationError, UsageError
from edl.host.output import LineOutput, OutputStream
from edl.host.process import INTERRUPTED
from edl.text import seconds

if TYPE_CHECKING:
    from rich.table import Column, Table

ZooKeeperOption = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,…",
        help="ZooKeeper servers. Default: EDL_ZOOKEEPER, else the local one of this user.",
    ),
]
JobArgument = Annotated[
    str | None,
    typer.Argument(metavar="[JOB]", help="Name of the job; may be left out when one is running."),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Name of the cluster. Default: EDL_CLUSTER, else the only one whose secret is known "
        "here.",
    ),
]
MaybeClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME",
        help="Look for JOB in this cluster only. Default: first in the cluster that EDL_CLUSTER "
        "names, or else in the only one whose secret is known here; then among the jobs of `edl "
        "run`. '': only among the jobs of `edl run`.",
    ),
]
ClusterJobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Name of a job of the cluster.")
]
HostOption = Annotated[str | None, typer.Option("--host", help="Name of this host in the job.")]
AddressOption = Annotated[
    str | None, typer.Option("--address", help="Where other hosts reach this one.")
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="PORT",
        help="Serve the job's metrics for Prometheus there; 0: at any port. Default: not at all.",
    ),
]
InterfaceOption = Annotated[
    str | None,
    typer.Option(
        "--network-interface",
        metavar="NAME",
        help="Through which others reach this host. Default: the one that leads to ZooKeeper.",
    ),
]
BorrowedFileOption = Annotated[
    str | None,
    typer.Option(
        "--borrowed-file",
        metavar="PATH",
        help="A file that says how many slots of this host the job borrows.",
    ),
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")]
JsonOption = Annotated[bool, typer.Option("--json", help="For programs.")]
WaitTimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait, if at all. Default: as long as it takes.",
    ),
]
_UNLIMITED_COLUMNS = 1_000_000
FOLLOW_S = 0.5  # how often --watch, --follow and waiting verbs look again


def console() -> Console:
    """Return a new console for standard output, which uses colours only if that is a terminal."""
    return Console(highlight=False, markup=False, emoji=False)


def print_table(table: RenderableType) -> None:
    screen = console()
    if not screen.is_terminal:
        # as wide as its texts, so that each row is one line and can be searched
        screen.width = _UNLIMITED_COLUMNS
    screen.print(table)


def columns(*titles: str) -> list[Column]:
    """Return columns with these titles, in which a word that is too wide goes on in a new line."""
    from rich.table import Column

    return [Column(title, overflow="fold") for title in titles]


def facts_table(rows: Mapping[str, str]) -> Table:
    from rich.table import Column, Table
    from rich.text import Text

    table = Table.grid(Column(style="bold"), *columns(""), padding=(0, 2))
    for title, text in rows.items():
        table.add_row(title, Text(text))
    return table


def line_writer(*, with_time: bool = False) -> Callable[[str], None]:
    """Return a function that prints a sentence as a line; a process that lives on prints by it."""
    for handler in logging.getLogger().handlers:
        if type(handler) is logging.StreamHandler and handler.stream is sys.stderr:
            handler.setStream(_line_output(sys.stderr))
    output = _line_output(sys.stdout)

    def write(sentence: str) -> None:
        time = f"{datetime.now().astimezone():%H:%M:%S} " if with_time else ""
        output.write(f"{time}{sentence}\n")

    return write


@lru_cache(maxsize=2)  # of standard output and error, which all writers of a process share
def _line_output(file: IO[str] | None) -> LineOutput:
    output = LineOutput(file)
    output.start()
    return output


def moment(time_s: float) -> str:
    """Return a time in seconds since 1970 as text: date and time in the local time zone."""
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")


def settings_of_agent(**arguments: Any) -> config.Config:
    for variable, near in config.misspelled().items():
        OutputStream(sys.stderr).write(f"edl: {variable} is no setting of edl; {near} is\n")
    return config.load(**arguments)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """While entered, provide a function that shows a sentence at the foot of a terminal."""
    with Console(stderr=True, highlight=False).status("", spinner="line") as line:
        yield lambda message: line.update(escape(message))


@contextmanager
def interruptible() -> Iterator[None]:
    """While entered, Ctrl-C ends the command with its notes as a sentence: what goes on."""
    try:
        yield
    except KeyboardInterrupt as end:
        if notes := getattr(end, "__notes__", []):  # else nothing was changed
            print(f"edl: {'; '.join(notes)}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


def duration(option: str, text: str) -> float:
    if not (found := seconds(text)):
        raise UsageError(f"{option} {text} is no time; write it as 30s, or 2m")
    return found


def worker_number(text: str) -> int:
    match = re.fullmatch(r"w?(\d+)", text)
    if match is None:
        raise UsageError(f"{text!r} is not a worker; write w3, or 3 (see `edl status`)")
    return int(match[1])


def trouble_words(connected: bool, error: CoordinationError) -> str:
    return f"{'cannot be read' if connected else 'ZooKeeper is away'}: {error}"
