"""`edl explain`: say what a kind of event means, why it happens, and what to do."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import Annotated

import typer

from edl.errors import UsageError, nearest, some
from edl.event_text import EXPLANATIONS, Severity
from edl.events import EventKind

_TITLES = {
    Severity.ERROR: "Somebody should act:",
    Severity.WARNING: "The job goes on, but look:",
    Severity.NORMAL: "A healthy job has these, too:",
}


def explain(
    event: Annotated[
        str | None,
        typer.Argument(
            metavar="[EVENT]",
            help="Kind of the event, such as worker_failed. Default: all kinds are listed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say what a kind of event means, why it happens, and what to do. Needs no job."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()  # None: the parent has closed it
    width = shutil.get_terminal_size().columns if is_terminal else 80
    for line in explanation_lines(event, width) if event else overview_lines(width):
        typer.echo(line)


def explanation_lines(name: str, width: int) -> list[str]:
    """Return the explanation of the events called `name` as lines of at most `width` columns."""
    word = name.replace("-", "_").lower()
    if word not in tuple(EventKind):
        known = some(nearest(word, list(EventKind))[:3])
        raise UsageError(f"there is no event {name!r} (like it: {known}); `edl explain` lists all")
    found = EXPLANATIONS[EventKind(word)]
    parts = {"meaning": found.meaning, "why": found.why, "what to do": found.advice}
    lines = [f"{word} ({found.severity})"]
    for title, text in parts.items():
        lines += ["", title, *_indented(text, width)]
    return lines


def overview_lines(width: int) -> list[str]:
    """Return all kinds of events with their meanings, the gravest first, in `width` columns."""
    lines: list[str] = []
    for severity, title in _TITLES.items():
        lines += [*([""] if lines else []), title]
        for kind, one in EXPLANATIONS.items():
            if one.severity is severity:
                lines += [f"  {kind}", *_indented(one.meaning, width, "      ")]
    return lines


def _indented(text: str, width: int, indent: str = "  ") -> list[str]:
    """Return `text` as lines of at most `width` columns, each after `indent`."""
    return textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
