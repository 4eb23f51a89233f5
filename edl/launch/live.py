"""Draw the status line that stays at the foot of an agent's terminal, as that of `edl run`."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from edl.core.job_line import job_line
from edl.core.snapshot import Snapshot
from edl.launch.host_agent import Display
from edl.launch.output import Output


class LiveLine:
    """The status line of a job: progress, time left, world size, samples/s, epoch, step."""

    def __init__(self, job: str, width: Callable[[], int] | None = None) -> None:
        self._job = job
        self._width = width
        self._snapshot: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Store `snapshot`, the newest copy of the job's records, which `render` shows."""
        self._snapshot = snapshot

    def render(self) -> Text:
        """Return the status line, without a line break, for the records of the last `update`."""
        width = None if self._width is None else self._width()
        parts = job_line(self._job, self._snapshot, width)
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def agent_display(job: str, screen: Console, quiet: bool = False) -> Display:
    """Return the display with which an agent shows a job on standard output."""
    line = LiveLine(job, lambda: screen.width)
    return Display(Output(screen, line.render, shows_workers=not quiet), line.update)
