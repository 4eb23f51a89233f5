"""Let newcomers that do not do as the others leave the ring, and the others go on without them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import NoReturn

from edl.errors import JobTrained, MismatchedEnd, NewcomerDiffers, RingBroken, StepsBack
from edl.ring.ring import Ring
from edl.step.record import IDLE, StepRecords, Stop, check_together
from edl.step.state_check import Mismatch, why_mismatch
from edl.text import names
from edl.worker.activity import call_site
from edl.worker.progress import LoaderProgress, TrainingProgress

logger = logging.getLogger(__name__)
UNIT = LoaderProgress.unit  # of edl's loader; a script of Horovod's counts its saves


def end_mismatch(
    found: Mismatch, records: StepRecords, ring: Ring, progress: TrainingProgress
) -> NoReturn:
    """Make the newcomers leave that are elsewhere in the script, or raise MismatchedEnd."""
    if progress.unit == UNIT and not (found.leaving or records.differ_in("exchange")):
        check_together(records)
    mine = _doing(records, ring.place.rank, progress).encode()
    doing = {
        worker: ring.broadcast(mine, rank, "edl.doing").decode()
        for rank, worker in enumerate(records.values("worker"))
    }
    why = why_mismatch(found, records, doing)
    if not found.leaving:
        raise MismatchedEnd(why)
    progress.at_epochs |= found.back
    error = StepsBack if found.back else JobTrained if found.over else NewcomerDiffers
    let_leave(ring, records.values("worker"), found.leaving, why, error)


def _doing(records: StepRecords, rank: int, progress: TrainingProgress) -> str:
    """Return a clause about what this worker does, and in which line of the script."""
    row, (call, where, _) = records[rank], call_site()
    at = f" at {where}" if where else ""
    if row.stop >= Stop.FINISHED:
        return "ended the training"
    if row.exchange:
        return f"called edl.{call}(){at}"
    if progress.unit != UNIT:
        return f"trained on{at}"
    return f"went on to a batch of epoch {row.epoch}{at}"


def let_leave(
    ring: Ring,
    members: Sequence[int],
    leaving: Sequence[int],
    why: str,
    error: type[NewcomerDiffers] = NewcomerDiffers,
) -> NoReturn:
    """Make newcomers leave: they end, and the ring breaks for the others; all call it alike."""
    if members[ring.place.rank] in leaving:
        with contextlib.suppress(RingBroken):
            ring.barrier(IDLE)  # all workers know when this has ended
        ring.break_()
        raise error(why)
    logger.info("%s", why)
    ring.barrier(IDLE)
    # The newcomers break the ring before anybody else does: unless they know that they have to
    # leave, they would come back.
    with contextlib.suppress(RingBroken):
        ring.broadcast(b"", members.index(leaving[0]), "edl.leaving")
    raise RingBroken(ring.generation, f"{names(leaving)} left it", tuple(leaving))
