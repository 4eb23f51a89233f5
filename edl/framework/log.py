"""Let one worker write the job's numbers to TensorBoard, MLflow or another logger (:func:`log`)."""

from __future__ import annotations

import operator
import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

from edl.core.step.mean import weighted_means
from edl.errors import UsageError
from edl.framework.metrics import number_of, weight_of
from edl.framework.process import current_worker
from edl.worker.worker import Worker

NOTHING = -1  # the step before all steps
_written: weakref.WeakKeyDictionary[Worker, dict[str, int]] = weakref.WeakKeyDictionary()


def log(
    values: Mapping[str, Any],
    write: Callable[[int, dict[str, float]], object],
    step: SupportsIndex | None = None,
    weight: float | None = None,
) -> dict[str, float]:
    """Let one worker write the means of ``values`` over all workers, once a step; return the means.

    All workers must call this at the same points, with the same names, after the update of a batch
    and before the next batch, as :func:`edl.framework.metrics.mean`. Rank 0 calls ``write``, and
    all wait until that has returned. If rank 0 dies before, the next rank 0 writes the point. A
    step that was written is not written again, not even when the job trains it again after all
    workers have died and the job continues from a checkpoint. Only if rank 0 dies in the moment
    between the return of ``write`` and its word to the others, the point is written twice.

    Args:
        values: numbers, or tensors with one element, by name.
        write: called as ``write(step, means)`` on rank 0; it is to return when the point is safe
            from a death of its process (``SummaryWriter.flush()``). What it raises ends rank 0.
        step: the step of the point, a whole number from 0 that grows, the same on all workers;
            None: ``edl.step()``.
        weight: how many samples this worker's values stand for; None: ``edl.batch_weight()``.

    Returns:
        The mean of each value, the same on all workers; nan if the weight of every worker is 0.
        While this worker warms up, its own values.

    Raises:
        UsageError: if this is called inside a step or outside of the training, if ``values`` is no
            dict of numbers by name, if ``step`` or ``weight`` is no number that it can be, or if
            workers give different names or steps. With an elastic state also if ``weight`` is None.
        RingBroken: if a worker is gone, in a script with an elastic state.
        WorkerEvicted, JobFailed: if this worker or the job cannot go on.
    """
    worker = current_worker()
    is_named = isinstance(values, Mapping) and all(isinstance(one, str) for one in values)
    if not is_named or not values or not callable(write):
        raise UsageError(
            "edl.log takes numbers by name, and a function that writes them: "
            'edl.log({"loss": loss}, write), which calls write(step, {"loss": ...})'
        )
    at = worker.step if step is None else _checked_step(step)
    samples = weight_of(weight, "edl.log")
    names = sorted(values)
    name = ",".join(names)
    numbers = [number_of(values[one], "edl.log") for one in names]
    rows = worker.exchange([samples, _known(worker, name), at, _code(name), *numbers])
    _check_alike([int(row[2]) for row in rows], [int(row[3]) for row in rows])
    means = weighted_means([[row[0], *row[4:]] for row in rows])
    point = dict(zip(names, means, strict=True))
    if not worker.warming_up:
        worker.learning.see_means(worker.step, point)
        known = max(int(row[1]) for row in rows)
        while known < at:  # once, and once more for each rank 0 that dies before it has written
            if worker.rank == 0:
                write(at, dict(point))
                known = at
                worker.checkpointing.put_logged(name, at)
            known = max(int(row[0]) for row in worker.exchange([known]))
        _written[worker][name] = known
    return point


def _checked_step(step: SupportsIndex) -> int:
    """Return the step of a point that the script gives."""
    try:
        at = operator.index(step)
    except TypeError:
        at = NOTHING
    if at < 0:
        raise UsageError(
            f"edl.log: the step is {step!r}; give a whole number from 0, as edl.step() or "
            "int(optimizer.iterations)"
        )
    return at


def _code(name: str) -> int:
    return zlib.crc32(name.encode())


def _check_alike(steps: list[int], codes: list[int]) -> None:
    """Raise an error, the same on all workers, unless all log the same names at the same step."""
    what = "steps " + ", ".join(map(str, steps)) if len({*steps}) > 1 else "different names"
    if len({*steps}) > 1 or len({*codes}) > 1:
        raise UsageError(
            f"edl.log: the workers gave {what}; all must log the same names at the same step"
        )


def _known(worker: Worker, name: str) -> int:
    """Return the highest step of which this worker knows that `name` was written; -1: of none."""
    of_worker = _written.setdefault(worker, {})
    if name not in of_worker:
        if worker.warming_up or worker.rank != 0:
            return NOTHING  # rank 0 says what the checkpoint's directory has
        of_worker[name] = worker.checkpointing.logged().get(name, NOTHING)
    return of_worker[name]
