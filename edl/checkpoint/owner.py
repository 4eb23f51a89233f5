"""Which ring writes into a directory of checkpoints: the newest one that has begun there.

A ring that is cut off from ZooKeeper as a whole trains on, while the job may have been started
again from its newest checkpoint. So whoever begins claims the directory, and whoever saves looks
first whether it is still its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edl.checkpoint.safetensors import write_whole

FILE = ".edl-owner"


@dataclass(frozen=True)
class Owner:
    """A ring of the job ``job``, in the start ``run`` of it."""

    job: str
    run: str
    generation: int

    def replaced_by(self, newest: Owner) -> str:
        """Why the job goes on in ``newest`` and not here; empty: it goes on here.

        One of another start has begun later.
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
    """Who has claimed ``directory`` last; None: nobody has, or nobody can tell."""
    try:
        return Owner(**json.loads((directory / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def claim(directory: Path, owner: Owner) -> None:
    """Let ``directory`` belong to ``owner``. Raises OSError."""
    if owner_of(directory) != owner:
        write_whole(directory / FILE, [json.dumps(asdict(owner)).encode()])
