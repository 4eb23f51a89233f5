"""Check whether a checkpoint can be resumed: its data must be those of the script.

:func:`check_source` and :func:`check_logical` compare them, and :func:`check_resumable` looks for a
checkpoint at all.
:func:`warn_of_another_job` compares the names of the jobs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edl.checkpoint import format as files
from edl.checkpoint.format import Checkpoint
from edl.checkpoint.location import Location
from edl.core.names import is_given_name
from edl.errors import CheckpointError
from edl.step.source import NO_FINGERPRINT, SUBSET, Source

logger = logging.getLogger(__name__)

_OTHER = {
    "total": "a dataset of other size",
    "fingerprint": "other data",
    "seed": "another seed (of the data loader, or of its generator)",
    "shuffle": "another shuffle",
}


def check_source(found: Checkpoint, source: Source) -> None:
    """Check that a checkpoint's sample numbers mean the same samples in this script."""
    # The batch size may differ.
    for name, mine in (
        ("total", source.total),
        ("seed", source.seed),
        ("shuffle", source.shuffle),
        ("fingerprint", source.fingerprint),
    ):
        theirs = found.manifest.source.get(name, "")
        if name == "seed" and not source.needs_same_seed:
            continue
        if name == "fingerprint" and not theirs and SUBSET in source.fingerprint:
            continue  # an earlier edl knew nothing of a Subset's samples
        if theirs != mine:
            what = _OTHER[name]
            if name == "total" and isinstance(theirs, int):
                theirs, mine = source.describe_total(theirs), source.describe_total(source.total)
            theirs, mine = (NO_FINGERPRINT if value == "" else value for value in (theirs, mine))
            raise CheckpointError(
                f"{found.path} was trained with {what}: {theirs} there, {mine} in this script; "
                "a checkpoint continues with the same samples in the same order only"
            )


def check_logical(found: Checkpoint, source: Source, names_directory: bool) -> None:
    """Raise CheckpointError for another number of logical workers, unless the user insists."""
    before, now = found.manifest.source.get("logical"), source.batching.logical
    if before is None or before == now:  # an older edl has not saved the number
        return
    samples = found.manifest.source["batch_size"], source.batch_size
    there, here = (
        f"--logical {logical} ({batch} samples in a step)" if logical else "no logical workers"
        for logical, batch in zip((before, now), samples, strict=True)
    )
    changed = f"{found.path} was trained with {there}, and this start has {here}"
    if names_directory:
        logger.warning("%s: the job goes on with these", changed)
        return
    same = f"give --logical {before}" if before else "leave out --logical"
    raise CheckpointError(
        f"cannot resume: {changed}; {same}, or insist on it by --resume-from {found.path.parent} "
        "in place of --resume"
    )


def warn_of_another_job(found: Checkpoint, job: str) -> None:
    """Warn of a checkpoint of another given name: a sweep may share a directory by mistake."""
    before = found.manifest.job
    if job != before and is_given_name(job) and is_given_name(before):
        logger.warning(
            "job %s goes on from a checkpoint of job %s, %s, and saves there from now on "
            "(--resume=auto), and job %s cannot save there any more: if these are two trainings, "
            "stop this one, and give each a directory of its own",
            *(job, before, found.path, before),
        )


def check_resumable(directory: Location) -> None:
    """Check that `directory` has a checkpoint to resume from, reading only headers of files."""
    refused: list[str] = []
    for path in files.checkpoint_files(directory):
        try:
            files.read_manifest(path)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            return
    raise nothing_to_resume(directory, refused)


def nothing_to_resume(directory: Location, refused: Sequence[str]) -> CheckpointError:
    """Return, without raising it, the error for a directory without a usable checkpoint."""
    why = f"; refused: {'; '.join(refused)}" if refused else ""
    return CheckpointError(
        f"cannot resume: there is no checkpoint in {directory}{why}; start without --resume to "
        "begin afresh"
    )
