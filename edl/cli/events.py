"""`edl events`: show the event log of a job or a cluster, and say what an event means."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from edl.cli.common import (
    FOLLOW_S,
    FollowOption,
    JobArgument,
    JsonOption,
    MaybeClusterOption,
    ZooKeeperOption,
    console,
    trouble_words,
)
from edl.cli.jobs import event_line
from edl.client.connection import choose_job, connected
from edl.client.waiting import ClientLimits, flat, flat_of_cluster
from edl.cluster.client import waiting
from edl.cluster.client.access import store_of_job
from edl.cluster.client.waiting import poll_cluster
from edl.cluster.lifecycle import ClusterEvent, LifeState
from edl.cluster.store import ClusterStore
from edl.errors import CoordinationError, UsageError, nearest, some
from edl.event_text import EXPLANATIONS, Severity, cost
from edl.events import Event, EventKind
from edl.host.output import wrapped
from edl.zookeeper.session import Session

E = TypeVar("E")
T = TypeVar("T")
EVERY_KIND = "all"  # what `--explain` takes beside a kind


def events(
    job: JobArgument = None,
    as_json: JsonOption = False,
    follow: FollowOption = False,
    explains: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="EVENT",
            help="Say what events of this kind mean, why they happen and what to do, like "
            f"worker_failed; {EVERY_KIND}: what each kind means. Needs no job.",
        ),
    ] = None,
    cluster: MaybeClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show the event log of a job or of a cluster: what has happened, and why.

    Without JOB and with --cluster, or EDL_CLUSTER, it is that of the cluster, with all its jobs.
    """
    if explains is not None:
        # standard output is None if the parent has closed it
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        columns = shutil.get_terminal_size().columns if is_terminal else 80
        every = explains == EVERY_KIND
        for line in overview_lines(columns) if every else explanation_lines(explains, columns):
            typer.echo(line)
        return
    with connected(zookeeper) as session:
        of_cluster = store_of_job(session, job, cluster)
        if of_cluster is not None:
            _show_of_cluster(of_cluster, job, as_json, follow)
            return
        store = choose_job(session, job, ended=True)
        width = console().width if console().is_terminal else None
        left_out = LeftOut()

        def read(last: int) -> tuple[bool, list[tuple[int, Event]]]:
            over = store.snapshot().job.state.over  # before the events, so that none is missed
            return over, store.events.read_known(last, left_out)

        _show(
            read,
            lambda _, event: json.dumps(flat(event)) if as_json else aligned(event, width),
            session if follow else None,
        )


class LeftOut:
    """Says of each event that this edl cannot read, once, that it is not shown, and why."""

    def __init__(self) -> None:
        self._said: set[int] = set()

    def __call__(self, number: int, why: str) -> None:
        if number not in self._said:
            self._said.add(number)
            typer.echo(f"edl: event {number} is left out: {why}", err=True)


def _show(
    read: Callable[[int], tuple[bool, list[tuple[int, E]]]],
    text: Callable[[int, E], str],
    session: Session | None,
) -> None:
    last = -1

    def further() -> tuple[bool, list[tuple[int, E]]]:
        return read(last)

    for over, found in [further()] if session is None else followed(further, session):
        for number, event in found:
            last = number
            typer.echo(text(number, event))
        if over:
            return


def _show_of_cluster(store: ClusterStore, job: str | None, as_json: bool, follow: bool) -> None:
    store.nodes.check_administrator(
        "read the events of the cluster (`edl events JOB --cluster ''` shows those of a run)"
    )
    width = console().width if console().is_terminal else None
    left_out = LeftOut()

    def read(last: int) -> tuple[bool, list[tuple[int, ClusterEvent]]]:
        # Read before the events, so that none is missed.
        over = job is not None and store.jobs.get(job).life.state is LifeState.ENDED
        return over, waiting.events(store, job, last, left_out)

    def text(number: int, event: ClusterEvent) -> str:
        if as_json:
            return json.dumps(flat_of_cluster(number, event))
        return event_line(event, width, named=job is None)

    _show(read, text, store.nodes.session if follow else None)


def aligned(event: Event, width: int | None = None) -> str:
    clock = datetime.fromtimestamp(event.time).strftime("%m-%d %H:%M:%S.%f")[:-3]
    columns = f"{clock}  gen {event.generation:<4d} step {event.step:<8d} {event.kind:<18} "
    text = cost(event)
    line = f"{columns}{event.reason}" + (f"  [{text}]" if text else "")
    return line if width is None else wrapped(line, width, len(columns))


def followed(read: Callable[[], T], session: Session) -> Iterator[T]:
    """Yield what `look` returns, twice a second, until the caller stops."""
    is_said = False

    def tried() -> T:
        nonlocal is_said
        try:
            found = read()
        except CoordinationError as error:
            if not is_said:
                trouble = trouble_words(session.connected, error)
                typer.echo(f"edl: {trouble}; this goes on when it answers", err=True)
            is_said = True
            raise
        is_said = False
        return found

    return poll_cluster(tried, None, ClientLimits(poll_s=FOLLOW_S))


_TITLES = {
    Severity.ERROR: "Somebody should act:",
    Severity.WARNING: "The job goes on, but look:",
    Severity.NORMAL: "A healthy job has these, too:",
}


def explanation_lines(name: str, width: int) -> list[str]:
    word = name.replace("-", "_").lower()
    if word not in tuple(EventKind):
        known = some(nearest(word, list(EventKind))[:3])
        raise UsageError(
            f"there is no event {name!r} (like it: {known}); `edl events --explain {EVERY_KIND}` "
            "lists all"
        )
    found = EXPLANATIONS[EventKind(word)]
    parts = {"meaning": found.meaning, "why": found.why, "what to do": found.advice}
    lines = [f"{word} ({found.severity})"]
    for title, text in parts.items():
        lines += ["", title, *_indented(text, width)]
    return lines


def overview_lines(width: int) -> list[str]:
    lines: list[str] = []
    for severity, title in _TITLES.items():
        lines += [*([""] if lines else []), title]
        for kind, one in EXPLANATIONS.items():
            if one.severity is severity:
                lines += [f"  {kind}", *_indented(one.meaning, width, "      ")]
    return lines


def _indented(text: str, width: int, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
