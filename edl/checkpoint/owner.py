"""Decide which ring may write into a directory of checkpoints: the newest that has begun there.

If a whole ring is cut off from ZooKeeper, it trains on, while the job may have been started again
from its newest checkpoint. So each ring claims the directory when it begins (:func:`claim`), by a
file in it, and compares itself before each save with the ring that claimed it last
(:func:`owner_of`, :meth:`Owner.replaced_by`). If that is a newer one, the older ring saves no more.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edl.checkpoint.safetensors import write_whole

FILE = ".edl-owner"


@dataclass(frozen=True)
class Owner:
    """A ring that has claimed a directory of checkpoints.

    Attributes:
        job: the name of the job.
        run: the identifier of the start of the job that the ring belongs to.
        generation: the number of the ring's generation.
    """

    job: str
    run: str
    generation: int

    def replaced_by(self, newest: Owner) -> str:
        """Return why this ring may not write into the directory any more, as a clause.

        The result is empty if it may. It may not if ``newest`` belongs to another start of the
        job, whichever began first, or has a higher generation.

        Args:
            newest: the ring that has claimed the directory last.
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
    """Return the ring that has claimed ``directory`` last.

    The result is None if none has claimed it, or if the file that says so cannot be read.
    """
    try:
        return Owner(**json.loads((directory / FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def claim(directory: Path, owner: Owner) -> None:
    """Record in ``directory`` that it belongs to the ring ``owner`` from now on.

    The claim of another ring is replaced, even that of a newer one; the same claim is not written
    again. The record is on the disk when the function returns.

    Raises:
        OSError: if the record cannot be written into the directory.
    """
    if owner_of(directory) != owner:
        write_whole(directory / FILE, [json.dumps(asdict(owner)).encode()])
