"""`edl timeline`: merge the timelines that the rings of a job have written into one file."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.errors import UsageError
from edl.events import Event
from edl.horovod_timeline import RingTimeline, merge_timelines, of_one_run, parse_timeline
from edl.text import counted


def timeline(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="As in HOROVOD_TIMELINE of the job."),
    ],
    job: Annotated[
        str | None,
        typer.Option("--job", help="Draw the events of this job, too.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Default: FILE.", show_default=False),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Merge the Horovod timelines of all rings of a job into one, for Perfetto or chrome://tracing.

    With HOROVOD_TIMELINE=FILE.json each ring of a job writes FILE.gN.json, N its generation.
    """
    found, others = _read(file)
    kept = of_one_run(found)
    target = output or file
    events: list[Event] = []
    if job is not None:
        with connected(zookeeper) as session:
            store = choose_job(session, job, ended=True)
            events = [event for _, event in store.events.read_known()]
    text = json.dumps(merge_timelines(kept, events))
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the timeline cannot be written: {error}; give another -o") from error
    rings = counted(len(kept), "ring")
    typer.echo(f"{target}: {rings}; open it in Perfetto or chrome://tracing")
    for number in sorted({one.generation for one in found} - {one.generation for one in kept}):
        typer.echo(f"generation {number} is left out: it is of an earlier run")
    for path in others:
        typer.echo(f"{path} is left out: it has no timeline of Horovod in it")
    for one in kept:
        if not one.whole:
            typer.echo(f"generation {one.generation} ends where its writer was killed")


def _read(file: Path) -> tuple[list[RingTimeline], list[Path]]:
    """Read the files of all rings that were told to write `file`."""
    if not file.name:
        raise UsageError(f"{file} is a directory; give FILE as in HOROVOD_TIMELINE of the job")
    of_ring = re.compile(rf"{re.escape(file.stem)}\.g(\d+){re.escape(file.suffix)}")
    found, others = [], []
    for path in sorted(file.parent.iterdir()) if file.parent.is_dir() else ():
        if (match := of_ring.fullmatch(path.name)) is None:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if (one := parse_timeline(int(match[1]), text)) is not None:
            found.append(one)
        else:
            others.append(path)
    if not found:
        raise UsageError(_advice(file, others))
    return found, others


def _advice(file: Path, others: Sequence[Path]) -> str:
    """Return why there is no timeline of `file`, and what to do."""
    if others:
        return (
            f"{', '.join(map(str, others))}: there is no timeline of Horovod in it; if the job has "
            "just begun, call this again later"
        )
    if match := re.fullmatch(r"(.+)\.g\d+(\.[^.]*)?", file.name):
        whole = file.with_name(match[1] + (match[2] or ""))
        return f"{file} is the timeline of one ring; write `edl timeline {whole}`"
    example = file.with_name(f"{file.stem}.g1{file.suffix}")
    return (
        f"there is no timeline {example} or of another ring; start the job with "
        f"HOROVOD_TIMELINE={file}, and call this where its rank 0 has written"
    )
