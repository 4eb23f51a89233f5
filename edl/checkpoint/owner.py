"""Decide which ring may write into a directory of checkpoints: the newest that has begun there.

If a whole ring is cut off from ZooKeeper, it trains on, while the job may have been started again
from its newest checkpoint. So each ring claims the directory when it begins (:func:`take_over`), by
a file in it, and compares itself before each save with the ring that claimed it last
(:func:`renew`). The rules:

1. A ring that begins takes the directory from any other start of the job (*run*), and its claim
   names the runs from which it was taken. None of these ever gets it back, not even a process of it
   that slept meanwhile and begins only now.
2. A ring that saves takes it from older rings of its own run only. If another run has it, the ring
   saves no more, unless its own claim was written over by a run from which it has taken it.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, replace

from edl.checkpoint.location import Location
from edl.checkpoint.safetensors import write_whole
from edl.errors import CheckpointError

logger = logging.getLogger(__name__)

FILE = ".edl-owner"
MOST_REPLACED = 100  # runs that a claim names, the newest
PAUSES_S = (0.1, 0.3, 0.6)  # before a failed read is repeated


class OwnerSuperseded(CheckpointError):
    """A ring may not write into a directory of checkpoints any more: a newer one has it."""


@dataclass(frozen=True)
class Owner:
    """A ring that has claimed a directory of checkpoints."""

    job: str
    run: str  # this start of the job
    generation: int  # of the ring
    replaced: tuple[str, ...] = ()  # runs that had the directory before, the newest last
    members: tuple[str, ...] = ()  # "host:port" of `/health`; empty: not known

    def replaced_by(self, newest: Owner) -> str:
        """Return why this ring may not write any more, as a clause; empty if it may."""
        if newest.run != self.run:
            return "" if newest.run in self.replaced else _goes_on_in(newest)
        if newest.generation > self.generation:
            return (
                f"the job goes on in generation {newest.generation}, without this ring of "
                f"generation {self.generation}"
            )
        return ""


def owner_of(directory: Location) -> Owner | None:
    """Return the ring that has claimed `directory` last, or None; OSError: one may have."""
    path = directory / FILE
    try:
        values = json.loads(_text_of(path))
        lists = {name: tuple(values.get(name, ())) for name in ("replaced", "members")}
        return Owner(**{**values, **lists})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged, and counts as no claim of the directory: %s", path, error)
        return None


def _text_of(path: Location) -> str:
    """Return the text of a file; a server may fail for a moment, so it is read again."""
    for pause_s in PAUSES_S:
        try:
            return path.read_text()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause_s)
    return path.read_text()


def take_over(directory: Location, owner: Owner) -> Owner:
    """Claim `directory` for a ring that begins, and return the claim, which is on the disk then."""
    newest = owner_of(directory)
    if newest is None:
        return _claimed(directory, owner, None)
    if newest.run == owner.run:
        return renew(directory, owner)
    if owner.run in newest.replaced:
        raise OwnerSuperseded(_goes_on_in(newest))
    others = [*newest.replaced, newest.run]
    return _claimed(directory, replace(owner, replaced=tuple(others[-MOST_REPLACED:])), newest)


def renew(directory: Location, owner: Owner) -> Owner:
    """Claim `directory` for a ring that is about to save, and return the claim."""
    newest = owner_of(directory)
    if newest is not None:
        if why := owner.replaced_by(newest):
            raise OwnerSuperseded(why)
        if newest.run == owner.run:
            owner = replace(owner, replaced=newest.replaced)
    return _claimed(directory, owner, newest)


def check_run(directory: Location, owner: Owner) -> None:
    """Raise OwnerSuperseded if another start has the directory, before a file gets its name."""
    newest = owner_of(directory)
    if newest is not None and newest.run not in (owner.run, *owner.replaced):
        raise OwnerSuperseded(_goes_on_in(newest))


def _claimed(directory: Location, owner: Owner, newest: Owner | None) -> Owner:
    """Write a claim unless `newest` is the same; return it."""
    if owner != newest:
        write_whole(directory / FILE, [json.dumps(asdict(owner)).encode()])
    return owner


def _goes_on_in(newest: Owner) -> str:
    """Return the clause that says that another start of the job has the directory."""
    return (
        f"the directory belongs to generation {newest.generation} of another start of job "
        f"{newest.job} by now, and the job goes on there"
    )
