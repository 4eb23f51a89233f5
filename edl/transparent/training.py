"""Lead a process through its script's loop over epochs to where the job is: :class:`Training`.

A script for plain Horovod goes through all its epochs, also in a process that joins later, or that
resumes it. Until it has come to the epoch of the job, it *passes over* epochs: each of its loops
has one batch, its optimizer makes no update, its collectives are of this process alone, and its
rank is not 0. What it has changed meanwhile is undone. Job and script agree by the script's own
number of an epoch, which it gives to ``sampler.set_epoch()``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

import edl.torch
from edl.binding.process import current_worker
from edl.errors import CheckpointError, UsageError
from edl.transparent.script import LoopWatch, ended_behind, ranks

AHEAD = (
    "this worker's script trains epoch {mine} now, and the job is in epoch {job}: a script must "
    "begin with the same epoch on all workers, also on one that starts later; let it not begin "
    "with its own newest checkpoint file (edl run --resume continues a job), or send the number of "
    "the first epoch from rank 0 by hvd.broadcast"
)
OTHER_ORDER = (
    "this worker's script has called sampler.set_epoch({mine}) for an epoch in which the other "
    "workers have called set_epoch({job}), so they would train other samples: a script must give "
    "it the same number on all workers, before its loop over the loader"
)


class EpochNumbers:
    """The numbers of a script's epochs, which grow, and are the same on all its processes."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._offset = 0

    def next(self, sampler_epoch: int) -> int:
        # Two phases of training may both begin with 0; or the script never calls `set_epoch()`.
        if self._last is not None and sampler_epoch + self._offset <= self._last:
            self._offset = self._last + 1 - sampler_epoch
        self._last = sampler_epoch + self._offset
        return self._last


class ScriptEpochs:
    """The script's numbers of the job's epochs, which begin with 0; a part of the job's state."""

    def __init__(self) -> None:
        self._numbers: list[int] = []
        self._sampler_epochs: list[int] = []

    def state_dict(self) -> dict[str, Any]:
        return {"numbers": list(self._numbers), "sampler epochs": list(self._sampler_epochs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._numbers, self._sampler_epochs = list(state["numbers"]), list(state["sampler epochs"])

    def name(self, epoch: int, number: int, sampler_epoch: int) -> None:
        """Note the script's number of the job's epoch `epoch`, unless it has one."""
        while epoch >= len(self._numbers):
            self._numbers.append(number)
            self._sampler_epochs.append(sampler_epoch)

    def number(self, epoch: int) -> int:
        known = len(self._numbers) - 1  # an epoch in which no process has been follows these
        return self._numbers[min(epoch, known)] + max(0, epoch - known)

    def sampler_epoch(self, epoch: int) -> int:
        known = self._sampler_epochs
        if epoch < len(known):
            return known[epoch]
        stride = known[-1] - known[-2] if len(known) > 1 else 1
        return known[-1] + stride * (epoch + 1 - len(known))


class Training:
    """The training of one script: the batches of its loops over the training loader."""

    def __init__(
        self,
        loader: edl.torch.DataLoader,
        optimizer: torch.optim.Optimizer,
        epochs: ScriptEpochs,
        example: Callable[[], Any],
    ) -> None:
        self._loader, self._optimizer = loader, optimizer
        self._numbers, self._load_example = epochs, example
        self._epochs = loader.endless_epochs()
        self._epoch = -1  # the job's, once this process takes part in it
        self._number = -1  # the script's, of its newest loop
        self._warms_up = False
        self._has_begun = False  # this process trains that epoch, or has trained it
        self._has_trained = False  # that epoch, or one before it
        self._example: Any = None
        self._state: Any = None  # of the job, while the script passes over epochs
        self._has_stepped = False  # with the last batch
        self._watch = LoopWatch(lambda: self._has_stepped)
        self.passes_over = False
        current_worker().finishing.check_end = self.check_end

    @property
    def step_in_epoch(self) -> int:
        return 0 if self.passes_over else self._loader.batch_index

    @property
    def is_in_step(self) -> bool:
        return self._watch.is_within and current_worker().loader.open

    def batches(self, number: int, sampler_epoch: int) -> Iterator[Any]:
        self._watch.check_next()
        self._number = number
        if self._epoch < 0:
            yield from self._come_in(number)
            if self._epoch < 0:
                return
        elif self._has_begun:
            self._numbers.name(self._epoch + 1, number, sampler_epoch)
            self._epoch, self._has_begun = next(self._epochs), False
        job = self._numbers.number(self._epoch)
        _check_not_ahead(number, job)
        if number < job:
            yield from self._pass_over()
            return
        if sampler_epoch != (theirs := self._numbers.sampler_epoch(self._epoch)):
            raise UsageError(OTHER_ORDER.format(mine=sampler_epoch, job=theirs))
        self.passes_over, self._has_begun, self._has_trained = False, True, True
        current_worker().show_epoch(number)
        self._restore()
        yield from self._watch.batches(self._untrained())

    def _untrained(self) -> Iterator[Any]:
        for batch in self._loader:
            self._has_stepped = False
            yield batch

    def note_step(self) -> None:
        self._has_stepped = True

    def check_not_left_early(self) -> None:
        self._watch.check_not_left_early()

    def check_end(self) -> None:
        """Check that the script may end now; undo what it changed while it passed over epochs."""
        self._watch.check_end()
        # At the job's end it may have passed over all epochs: the job had trained before.
        before, ledger = self._epoch - 1, current_worker().loader.ledger
        at_end = before >= 0 and self._number == self._numbers.number(before)
        if self.passes_over and not (at_end and not ledger.done):
            raise ended_behind(self._number, self._warms_up and not self._has_trained)
        self._restore()

    def _restore(self) -> None:
        if self._state is not None:
            replica = current_worker().replica
            assert replica is not None
            replica.restore(self._state)
            self._state = None

    def _come_in(self, number: int) -> Iterator[Any]:
        """Take part in the job if it is in the script's epoch `number`; else `_epoch` stays -1."""
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
        _check_not_ahead(number, job)
        self.passes_over = job is not None and number < job
        if not self.passes_over:
            self._epoch = next(self._epochs)  # joins

    def _pass_over(self) -> Iterator[Any]:
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
    """Take the place of `optimizer.step()` in an epoch that is passed over."""


_no_update._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


def _check_not_ahead(mine: int, job: int | None) -> None:
    if job is not None and mine > job:
        raise UsageError(AHEAD.format(mine=mine, job=job))


# ------------------------------------------------------------
# Send the script's averages of the weights to newcomers and resumed jobs: `ScriptAverages`.
#
# A script for plain Horovod makes its `AveragedModel` (EMA, SWA) in each process, and no call says
# that it belongs to the state of the training.


NONE_SAVED = (
    "an earlier edl wrote the checkpoint, and saved no averages of the weights in it, so this "
    "script's AveragedModel would begin anew: begin the training anew (edl run without --resume), "
    "or remove the AveragedModel from the script"
)
UNLIKE = (
    "an AveragedModel of this script is not like the job's: {kind} must have the same parameters "
    "and buffers when it is made, on all workers and in a resumed job ({why})"
)


class ScriptAverages:
    """The averages of the weights that a script makes, in its order; a part of the job's state."""

    edl_compared = False  # a script may make an average on rank 0 alone

    def __init__(self, passes_over: Callable[[], bool] = lambda: False) -> None:
        self._passes_over = passes_over
        self._were_saved = True  # in the checkpoint that this process has loaded, if any
        self._made: list[weakref.ref[AveragedModel]] = []
        self._waiting: list[Any] = []  # states of averages that the script has yet to make

    def add(self, average: AveragedModel) -> None:
        if not self._were_saved and self._passes_over():
            raise CheckpointError(NONE_SAVED)
        self._made.append(weakref.ref(average))
        if self._waiting:
            _load([average], [self._waiting.pop(0)])

    def state_dict(self) -> dict[str, Any]:
        # None: the script has deleted the average.
        states = [None if one is None else dict(one.state_dict()) for one in self._alive()]
        return {"states": [*states, *self._waiting]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states, alive = state["states"], self._alive()
        _load(alive, states)
        self._waiting = list(states[len(alive) :])

    def edl_state_if_missing(self) -> dict[str, Any]:
        """Return the state for a job that is resumed from a checkpoint without averages."""
        if any(one is not None for one in self._alive()):
            raise CheckpointError(NONE_SAVED)
        self._were_saved = False
        return {"states": []}

    def _alive(self) -> list[AveragedModel | None]:
        return [ref() for ref in self._made]


def _load(averages: Sequence[AveragedModel | None], states: Sequence[Any]) -> None:
    for average, state in zip(averages, states, strict=False):
        if average is None or state is None:
            continue
        mine = average.state_dict()
        # A subclass may make buffers after its construction, as in its first update.
        new = {name: value for name, value in state.items() if name not in mine}
        device = next(average.parameters(), average.n_averaged).device
        try:
            for name, value in new.items():
                if "." not in name and isinstance(value, torch.Tensor):  # not of a submodule
                    average.register_buffer(name, value.to(device, copy=True))
            average.load_state_dict(state)
        except (RuntimeError, KeyError) as error:
            kind, why = type(average).__name__, " ".join(str(error).split())
            raise UsageError(UNLIKE.format(kind=kind, why=why)) from error


def watch_averages(averages: ScriptAverages) -> None:
    # It replaces constructors, because PyTorch has no hook for that. The outermost one adds the
    # average: a subclass makes its own buffers after it has called that of `AveragedModel`.
    in_the_making: set[int] = set()  # ids of averages whose outermost constructor runs

    def watch(kind: type[AveragedModel]) -> None:
        make = kind.__init__

        @functools.wraps(make)
        def noted(self: AveragedModel, *given: Any, **named: Any) -> None:
            if id(self) in in_the_making:
                make(self, *given, **named)
                return
            in_the_making.add(id(self))
            try:
                make(self, *given, **named)
            finally:
                in_the_making.discard(id(self))
            averages.add(self)

        kind.__init__ = noted  # type: ignore[method-assign]

    def defined(kind: type[AveragedModel], /, **named: Any) -> None:
        super(AveragedModel, kind).__init_subclass__(**named)
        watch(kind)

    for kind in _with_subclasses(AveragedModel):
        watch(kind)
    AveragedModel.__init_subclass__ = classmethod(defined)  # type: ignore[assignment]


def _with_subclasses(kind: type[AveragedModel]) -> Iterator[type[AveragedModel]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _with_subclasses(one)


# ------------------------------------------------------------
# Refuse a loss with the result of a collective in it: `refuse_gradient`.


NO_GRADIENT = (
    "a loss with the result of hvd.{name} in it: with --transparent a collective is over the "
    "processes, which may have several ranks each, so the gradient would depend on their number; "
    "compute the loss from the batch of one rank, and use the result without a gradient "
    "(detach()), as for a metric"
)


def refuse_gradient(name: str, tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return `result`, in which a backward pass fails; with one rank it goes on to `tensor`."""
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return result
    apply: Callable[..., torch.Tensor] = _Collective.apply  # PyTorch gives it no type
    return apply(tensor, (result,), name)


class _Collective(torch.autograd.Function):
    """The autograd function of a collective."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, results: tuple[torch.Tensor], name: str
    ) -> torch.Tensor:
        ctx.shape, ctx.name = tensor.shape, name
        return results[0]  # it came in a tuple to have no gradient

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ranks() > 1:
            raise UsageError(NO_GRADIENT.format(name=ctx.name))
        return gradients[0].reshape(ctx.shape), None, None
