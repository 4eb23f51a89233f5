"""`edl top`: show all jobs, or one job, on the whole terminal until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from edl.cli.common import ZooKeeperOption, console, trouble_words
from edl.client.connection import choose_job, connected
from edl.client.job import ObservedJob, ObservedJobs
from edl.errors import CoordinationError, UnknownJob
from edl.events import Event
from edl.job.snapshot import Snapshot
from edl.status import (
    MOST_EVENTS,
    JobSummary,
    TextLine,
    job_screen,
    job_status,
    jobs_screen,
    pause_s,
)
from edl.text import cropped, rounded

REDRAWN_PER_S = 2.0
STALE_S = 3.0  # without an answer from ZooKeeper: then the age of what is shown is said
Lines = Callable[[int, int], list[TextLine]]
"""A function that returns the lines to show for a width and a height of the terminal."""


@dataclass
class Screen:
    """The content of the screen of `edl top`: lines for the size of the terminal, and a foot."""

    lines: Lines = field(default=lambda _w, _h: [])
    # why nothing newer could be read, as "ZooKeeper is away: ..."; empty if it could
    away: str = ""
    read_at_s: float = 0.0  # when the lines' content was read, in seconds of `time.monotonic`

    def text(self, to: Console, foot: bool = True) -> Text:
        """Return all lines as one text, cropped to the size of the terminal."""
        lines = self.lines(to.width, to.height - 1)[: max(1, to.height - 1)]
        if foot:
            lines.append(self._foot())
        texts = [Text(cropped(line.text, to.width), style=line.style) for line in lines]
        return Text("\n", no_wrap=True).join(texts)

    def _foot(self) -> TextLine:
        age_s = time.monotonic() - self.read_at_s
        if self.away:
            ago = rounded(age_s)
            return TextLine(f"{ago} old: {self.away}", "bold red")
        clock = f"{datetime.now().astimezone():%H:%M:%S}"
        old = f", {rounded(age_s)} old" if age_s > STALE_S else ""
        return TextLine(f"{clock}{old}  Ctrl-C leaves", "dim")


def top(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Name of one job. Default: all jobs.", show_default=False
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show all jobs, or JOB, on the whole terminal, and keep that current until Ctrl-C.

    All jobs: those of `edl run` whose secrets are known here. JOB: its progress, its workers and
    its newest events, until it ends. If the output is no terminal, it is shown once. The job is not
    disturbed: at most 200 nodes a second are read from ZooKeeper.
    """
    with connected(zookeeper) as session:
        if job is None:
            jobs = ObservedJobs(session)
            _show(
                lambda: _all_lines(jobs.read(), jobs.locked, jobs.unreadable),
                lambda: jobs.due_reads,
                lambda: False,
                lambda: session.connected,
            )
            return
        one = ObservedJob(choose_job(session, job, ended=True))

        def read() -> Lines:
            now = one.read()
            return _job_lines(now, one.events(MOST_EVENTS), session.hosts)

        def over() -> bool:
            return one.snapshot is not None and one.snapshot.job.state.over

        _show(read, lambda: one.due_reads, over, lambda: session.connected)


def _show(
    read: Callable[[], Lines],
    due_reads: Callable[[], int],
    over: Callable[[], bool],
    connected: Callable[[], bool],
) -> None:
    """Show what `read` returns, again and again until Ctrl-C or `over`."""
    to = console()
    screen = Screen(read(), read_at_s=time.monotonic())
    if to.is_terminal and not to.is_dumb_terminal:
        with (
            suppress(KeyboardInterrupt),
            Live(
                get_renderable=lambda: screen.text(to),
                console=to,
                screen=True,
                refresh_per_second=REDRAWN_PER_S,
                vertical_overflow="crop",
            ),
        ):
            while not over():
                time.sleep(pause_s(due_reads()))
                _renew(screen, read, connected)
    to.print(screen.text(to, foot=False), soft_wrap=True)


def _renew(screen: Screen, read: Callable[[], Lines], connected: Callable[[], bool]) -> None:
    """Let `screen` show what `read` returns, or the old lines and why there are no newer ones."""
    try:
        screen.lines = read()
    except UnknownJob:
        raise
    except CoordinationError as error:
        screen.away = trouble_words(connected(), error)
        return
    screen.away, screen.read_at_s = "", time.monotonic()


def _all_lines(found: Sequence[JobSummary], locked: int, unreadable: Mapping[str, str]) -> Lines:
    return lambda width, height: jobs_screen(found, locked, time.time(), width, height, unreadable)


def _job_lines(now: Snapshot, events: Sequence[Event], zookeeper: str) -> Lines:
    """Return a function that makes the lines about one job for a width and a height."""
    status = job_status(now, zookeeper)
    timed = [(_clock(event.time, time.time()), event) for event in events]

    def lines(width: int, height: int) -> list[TextLine]:
        age_s = (now.job.ended or time.time()) - now.job.created
        return job_screen(status, timed, age_s, width, height)

    return lines


def _clock(time_s: float, now_s: float) -> str:
    """Return a time as text: the local time, after the month and day if they are not today's."""
    moment = datetime.fromtimestamp(time_s)
    is_today = moment.date() == datetime.fromtimestamp(now_s).date()
    return moment.strftime("%H:%M:%S" if is_today else "%m-%d %H:%M:%S")
