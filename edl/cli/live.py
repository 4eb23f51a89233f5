"""Draw the status line that stays at the foot of the terminal of `edl run` and `edl join`."""

from __future__ import annotations

from rich.text import Text

from edl.cli.common import console
from edl.core.plural import workers
from edl.core.snapshot import Snapshot
from edl.launch.host_agent import Display
from edl.launch.output import Output

_BAR = 16  # characters


class LiveLine:
    """The status line of a job: epoch, progress, samples/s, world size, generation and step.

    A generation is one ring of workers that trains; generations are numbered. Give the newest
    records to :meth:`update`, and show what :meth:`render` returns.

    Args:
        job: the name of the job.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._snapshot: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        """Store ``snapshot``, the newest copy of the job's records, which :meth:`render` shows."""
        self._snapshot = snapshot

    def render(self) -> Text:
        """Return the status line, without a line break, for the records of the last :meth:`update`.

        Until the job has its first ring of workers, the line says how many workers are ready.
        """
        snapshot = self._snapshot
        if snapshot is None or snapshot.generation is None:
            ready = sum(m.stage != "preparing" for m in snapshot.members) if snapshot else 0
            return Text(f"{self._job}  starting, {workers(ready)} ready", style="dim")
        now = snapshot.status
        done, total = now.epoch_done, now.epoch_total
        filled = min(_BAR, _BAR * done // total) if total else 0
        size = len(snapshot.generation.members)
        wanted = "" if size == snapshot.assigned.np else f"{size} of "
        epoch: tuple[str | tuple[str, str], ...] = (
            f"  epoch {now.epoch} ",
            ("━" * filled, "green"),
            ("━" * (_BAR - filled), "bright_black"),
            f" {done}/{total}",
        )
        return Text.assemble(
            (self._job, "bold"),
            *(epoch if total else ()),  # a script may keep its own place in its data
            f"  epoch {now.epoch} {done} samples" if done and not total else "",  # of a stream
            f"  {now.samples_per_s:.0f} samples/s  "
            f"{wanted}{workers(snapshot.assigned.np)}  generation {snapshot.generation.number}  "
            f"step {now.step}",
            no_wrap=True,
            overflow="ellipsis",
        )


def agent_display(job: str, quiet: bool = False) -> Display:
    """Return the display with which an agent shows a job on standard output.

    Args:
        job: the name of the job.
        quiet: whether to show no output of workers.
    """
    line = LiveLine(job)
    return Display(Output(console(), line.render, shows_workers=not quiet), line.update)
