"""Lead a process through its script's loop over epochs to where the job is: :class:`Training`.

A script for plain Horovod goes through all its epochs from the first on, also in a process that
joins the job later, or that resumes it. Until it has come to the epoch of the job, it *passes over*
epochs: each of its loops has one batch, its optimizer makes no update, its collectives are of this
process alone, and its rank is not 0. What it has changed meanwhile is undone. A newcomer passes
over epochs before it joins, while the others train.

The number by which job and script agree is the script's own number of an epoch, which it gives to
``sampler.set_epoch()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import edl.torch
from edl.errors import UsageError
from edl.framework.process import current_worker

AHEAD = (
    "this worker's script trains epoch {mine} now, and the job is in epoch {job}: a script must "
    "begin with the same epoch on all workers, also on one that starts later; let it not begin "
    "with its own newest checkpoint file (edl run --resume continues a job), or send the number of "
    "the first epoch from rank 0 by hvd.broadcast"
)


class ScriptEpochs:
    """The script's numbers of the job's epochs; a part of the job's state.

    Job and script number epochs differently: the job from 0, the script as it likes.
    """

    def __init__(self) -> None:
        self._labels: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers, for :meth:`load_state_dict`."""
        return {"labels": list(self._labels)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the numbers of the job: ``state`` is a result of :meth:`state_dict`."""
        self._labels = list(state["labels"])

    def name(self, epoch: int, label: int) -> None:
        """Note that the script calls the job's epoch ``epoch`` (from 0) ``label``.

        Nothing changes if the epoch has a number already.
        """
        if epoch >= len(self._labels):
            self._labels += [label] * (epoch + 1 - len(self._labels))

    def __getitem__(self, epoch: int) -> int:
        """Return the script's number of the job's epoch ``epoch``, from 0.

        An epoch in which no process has been yet follows the ones before.
        """
        known = len(self._labels) - 1
        return self._labels[min(epoch, known)] + max(0, epoch - known)


class Training:
    """The training of one script: the batches of its loops over the training loader.

    Args:
        loader: edl's loader of the training data.
        optimizer: the script's optimizer.
        epochs: the script's numbers of the job's epochs.
        example: returns some batch of the training data.

    Attributes:
        passes_over: whether the script goes through epochs that the job has behind it.
    """

    def __init__(
        self,
        loader: edl.torch.DataLoader,
        optimizer: torch.optim.Optimizer,
        epochs: ScriptEpochs,
        example: Callable[[], Any],
    ) -> None:
        self._loader, self._optimizer = loader, optimizer
        self._labels, self._load_example = epochs, example
        self._epochs = loader.endless_epochs()
        self._epoch = -1  # the job's, once this process takes part in it
        self._warms_up = False
        self._has_begun = False  # this process trains that epoch, or has trained it
        self._example: Any = None
        self._state: Any = None  # of the job, while the script passes over epochs
        self.passes_over = False

    @property
    def step_in_epoch(self) -> int:
        """The number of the step in its epoch, from 0, that the last batch belongs to."""
        return 0 if self.passes_over else self._loader.batch_index

    def batches(self, label: int) -> Iterator[Any]:
        """Yield the batches of one loop of the script over its training data.

        Args:
            label: the script's number of the epoch.

        Raises:
            UsageError: the script is in a later epoch than the job.
        """
        if self._epoch < 0:
            yield from self._come_in(label)
            if self._epoch < 0:
                return
        elif self._has_begun:
            self._labels.name(self._epoch + 1, label)
            self._epoch, self._has_begun = next(self._epochs), False
        job = self._labels[self._epoch]
        _check_not_ahead(label, job)
        if label < job:
            yield from self._pass_over()
            return
        self.passes_over, self._has_begun = False, True
        current_worker().show_epoch(label)
        if self._state is not None:
            replica = current_worker().replica
            assert replica is not None
            replica.restore(self._state)
            self._state = None
        yield from self._loader

    def _come_in(self, label: int) -> Iterator[Any]:
        """Take part in the job, in the epoch that the script calls ``label``.

        A newcomer first gets one batch to warm up. It joins when its script has come to the epoch
        of the job, as far as it is known; until then ``_epoch`` stays -1.
        """
        if not self._warms_up:
            epoch = next(self._epochs)
            self._warms_up = current_worker().warming_up
            if not self._warms_up:
                self._epoch = epoch
                return
            for batch in self._loader:
                self._example = batch
                yield batch
        else:
            yield from self._pass_over()
        job = current_worker().epoch_of_job()
        _check_not_ahead(label, job)
        self.passes_over = job is not None and label < job
        if not self.passes_over:
            self._epoch = next(self._epochs)  # joins

    def _pass_over(self) -> Iterator[Any]:
        """Yield one batch, without an update of the model by it."""
        if self._epoch >= 0 and self._state is None:
            replica = current_worker().replica
            assert replica is not None
            self._state = replica.capture()
        self.passes_over = True
        if self._example is None:
            self._example = self._load_example()
        optimizer = self._optimizer
        steps = vars(optimizer).get("step")  # a scheduler has wrapped it
        optimizer.step = _no_update  # type: ignore[method-assign,assignment]
        try:
            yield self._example
        finally:
            if steps is None:
                del optimizer.step
            else:
                optimizer.step = steps  # type: ignore[method-assign]
            optimizer.zero_grad(set_to_none=True)


def _no_update(*_: Any, **__: Any) -> None:
    """Take the place of ``optimizer.step()`` in an epoch that is passed over."""


_no_update._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _check_not_ahead(mine: int, job: int | None) -> None:
    """Raise a UsageError if the script is in a later epoch than the job.

    Args:
        mine: the script's number of its epoch.
        job: the script's number of the job's epoch; None: it is not known.
    """
    if job is not None and mine > job:
        raise UsageError(AHEAD.format(mine=mine, job=job))
