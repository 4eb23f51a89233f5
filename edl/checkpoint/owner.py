"""Decide which ring may write into a directory of checkpoints: the newest that has begun there.

A ring that is cut off from ZooKeeper as a whole trains on, while the job may have been started
again from its newest checkpoint. So each ring claims the directory when it begins, and checks
before each save whether the directory is still its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edl.checkpoint.safetensors import write_whole

FILE = ".edl-owner"


@dataclass(frozen=True)
class Owner:
    """A ring that owns a directory of checkpoints.

    Attributes:
        job: the name of the job.
        run: the identifier of this start of the job.
        generation: the generation of the ring.
    """

    job: str
    run: str
    generation: int

    def replaced_by(self, newest: Owner) -> str:
        """Return why the job goes on in the ring ``newest``; empty if it goes on in this ring.

        ``newest`` is the ring that has claimed the directory last. If it belongs to another start
        of the job, that start began later.
        """
        if newest.run != self.run:
            return (
                f"the directory belongs to generation {newest.generation} of another start of job "
                f"{newest.job} by now, and the job goes on there"
            )
        if newest.generation > self.generation:
            return (
                f"the job goes on in generation {newest.generation}, without this ring of "
                f"generation {self.generation}"
            )
        return ""


def owner_of(directory: Path) -> Owner | None:
    """Return the ring that has claimed ``directory`` last; None if none has, or none is known."""
    try:
        return Owner(**json.loads((directory / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def claim(directory: Path, owner: Owner) -> None:
    """Let ``directory`` belong to ``owner`` from now on.

    Raises:
        OSError: if that cannot be written into the directory.
    """
    if owner_of(directory) != owner:
        write_whole(directory / FILE, [json.dumps(asdict(owner)).encode()])
