"""Count the ranks of an unchanged Horovod script, and check its calls, for all frameworks."""

from __future__ import annotations

import logging
from typing import Any

from edl.errors import UsageError
from edl.framework import process
from edl.framework.horovod_absent import ADASUM, PROCESS_SETS

logger = logging.getLogger(__name__)

NO_LOGICAL = (
    "--transparent needs the number of ranks that the script sees (hvd.size()), which stays the "
    "same whatever the number of processes: give edl run --logical N"
)
SUM = (
    "with --transparent gradients are averaged over the ranks; for their sum multiply the learning "
    "rate by hvd.size(), and leave out op=hvd.Sum"
)


def ranks() -> int:
    """Return the number of the script's ranks, which never changes: the logical workers."""
    worker = process.current_worker()
    return worker.logical or worker.size


def check_has_ranks() -> None:
    """Raise a UsageError if this process is in a job without logical workers."""
    worker = process.current_worker()
    if worker.is_shared and not worker.logical:
        raise UsageError(NO_LOGICAL)


def check_reduction(asked: dict[str, Any], horovod: Any, passes: str = "") -> None:
    """Check what a script asks of Horovod's distributed optimizer or tape.

    On rank 0 a warning says that compression has no effect.

    Args:
        asked: the arguments that the script has given, by name.
        horovod: Horovod's module, which has ``Average`` and the like.
        passes: the error message for ``backward_passes_per_step`` above 1; empty: it is allowed.

    Raises:
        UsageError: an argument asks for what edl does not do.
    """
    operation = asked.get("op", horovod.Average)
    check_collective(asked.get("process_set"), operation, horovod)
    if operation != horovod.Average:
        raise UsageError(SUM)
    if passes and asked.get("backward_passes_per_step", 1) > 1:
        raise UsageError(passes)
    none = horovod.Compression.none
    if asked.get("compression", none) is not none and process.rank() == 0:
        logger.warning("gradients are added up exactly, so compression=... has no effect")


def check_collective(process_set: Any, operation: Any, horovod: Any) -> None:
    """Check what a script asks of a collective.

    Args:
        process_set: the processes that take part; None: all.
        operation: the reduction, such as Horovod's ``Average``; None: the default one.
        horovod: Horovod's module.

    Raises:
        UsageError: the reduction is Adasum, or only some processes are to take part.
    """
    if operation == horovod.Adasum:
        raise UsageError(f"op=Adasum is not there: {ADASUM}")
    if process_set not in (None, horovod.global_process_set):
        raise UsageError(f"process_set: {PROCESS_SETS}")


def place_of_root(rank: int, there: int) -> int:
    """Return the place, in rank order, of the process that a broadcast of ``rank`` comes from.

    Args:
        rank: the root that the script names.
        there: the number of processes that have sent.

    Raises:
        UsageError: another rank than 0 is named, and there is no process for each.
    """
    if there == 1:  # alone, or the others have sent nothing
        return 0
    if not 0 <= rank < there:
        raise UsageError(
            f"a broadcast from rank {rank}: with --transparent {there} processes share the ranks "
            "now, and the number changes; broadcast from rank 0"
        )
    return rank
