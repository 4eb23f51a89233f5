"""Keep the progress of a script that keeps its own place in its data: how often it has saved.

:class:`ScriptProgress` has that number. A step is from one save of the script's state to the next.
There is no ledger: which samples are trained, and what is redone, is up to the script
(docs/adr/0010).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from edl.worker.progress import Receive, TrainingProgress


class Comparable(Enum):
    """Whether the workers of a script hold the same state when they save it, as far as known."""

    UNKNOWN = "unknown"  # no two workers have compared a save yet
    YES = "yes"  # they were equal at the first comparison, so they must be at all later saves
    NO = "no"  # they differed: they are not compared any more


class ScriptProgress(TrainingProgress):
    """The number of saves of the script's state, as the progress of a job without edl's loader."""

    unit = "saves of its state"
    without_checkpoint = "; start the job again from the script's own checkpoint"

    def __init__(self) -> None:
        super().__init__()
        self.ended = False  # the training has ended on this worker, or on its state source
        self.comparable = Comparable.UNKNOWN  # the same on all workers

    def saved(self) -> None:
        """Count a save of the script's state as one more `step`; all workers save together."""
        self.step += 1

    def reopen(self) -> None:
        """Take back the last save, by which the training has ended here, since others train on."""
        self.step -= int(self.ended)
        self.ended = False

    def may_pause(self, repaired_at: int) -> bool:
        """Return True: all workers return to the last save in a repair, so none is in a step."""
        return True

    def row(self) -> dict[str, int]:
        """Return 0 for the step record's fields `epoch`, `wanted` and `ledger`, by name."""
        return {"epoch": 0, "wanted": 0, "ledger": 0}

    @property
    def epoch_progress(self) -> dict[str, int]:
        """An empty dict: no fields, since the script itself keeps its place in its data."""
        return {}

    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Note `members`, the worker ids of a new ring in rank order; `in_step` is not used."""
        self.members = members

    def header(self) -> dict[str, Any]:
        """Return this progress as JSON values, which the state source sends to other workers."""
        return {
            "step": self.step,
            "ended": self.ended,
            "joined_after": self.joined_after,
            "comparable": self.comparable.value,
        }

    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Replace this progress with the one that the state source sent as `header`."""
        self.step, self.has_state = int(header["step"]), True
        self.ended = bool(header["ended"])
        self.joined_after = int(header["joined_after"])
        self.comparable = Comparable(header["comparable"])
