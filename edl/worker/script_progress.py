"""How far a script is that keeps its own place in its data: how often it has saved its state.

A step is from one save to the next. There is no ledger: which samples are trained, and what is
redone, is the script's own matter (docs/adr/0010).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from edl.worker.progress import Receive, TrainingProgress


class Comparable(Enum):
    """Whether the workers of a script hold the same state when they save it."""

    UNKNOWN = "unknown"
    YES = "yes"
    NO = "no"


class ScriptProgress(TrainingProgress):
    """The saves that all workers have made.

    Attributes:
        ended: the script's training has, somewhere.
        comparable: as the first save has shown; the same on all workers.
    """

    unit = "saves of its state"
    without_checkpoint = "; start the job again from the script's own checkpoint"

    def __init__(self) -> None:
        super().__init__()
        self.ended = False
        self.comparable = Comparable.UNKNOWN

    def saved(self) -> None:
        """The script has saved its state, as all workers do at this point of it."""
        self.step += 1

    def may_pause(self, repaired_at: int) -> bool:
        """Always: after a repair the script begins anew on all of them."""
        return True

    def row(self) -> dict[str, int]:
        return {"epoch": 0, "wanted": 0, "ledger": 0}

    @property
    def epoch_progress(self) -> dict[str, int]:
        return {}

    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        self.members = members

    def header(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "ended": self.ended,
            "joined_after": self.joined_after,
            "comparable": self.comparable.value,
        }

    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        self.step, self.has_state = int(header["step"]), True
        self.ended = bool(header["ended"])
        self.joined_after = int(header["joined_after"])
        self.comparable = Comparable(header["comparable"])
