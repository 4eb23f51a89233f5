"""Keep track of one parameter's gradient: which step has computed it, and whether it was sent.

A :class:`Gradient` is the record of one parameter's gradient; :mod:`edl.torch.reduction` has one
for each parameter of an optimizer.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from edl.errors import UsageError
from edl.torch.accumulation import Contribution
from edl.torch.layout import laid_out_like


@dataclass(slots=True)
class PendingAllreduce:
    """An allreduce of one gradient that this worker has started and not waited for yet."""

    handle: int  # Horovod's
    sent: torch.Tensor  # it must stay alive until Horovod has read it
    local: torch.Tensor | None  # the gradient when it was sent; None: zeros were sent
    version: int  # PyTorch's count of in-place writes to `local` when it was sent


@dataclass(slots=True, eq=False)
class Gradient:
    """The record of one parameter's gradient: when it was computed, sent and averaged."""

    # Local: computed by this worker. Mean: the average over the global batch. Leftover: still there
    # from the step before. Steps of this worker are numbered from 1, backward passes from 0.

    parameter: torch.nn.Parameter
    part: Contribution  # it weights what is added to the gradient
    name: str = ""  # empty: the optimizer does not train it any more
    collective: str = ""  # the name of its allreduce
    computed: int = 0  # the step in which backward computed it last
    computed_in: int = -1  # the number of that backward pass
    pending: PendingAllreduce | None = None
    buffer: torch.Tensor | None = None  # memory for the next average
    left: weakref.ref[torch.Tensor] | None = None  # the gradient when the last step was complete
    left_version: int = 0  # the count of in-place writes to it then
    local: torch.Tensor | None = None  # with several optimizers: the local gradient
    mean_in: int = -1  # the step whose mean the gradient is; -1: none
    is_mixed: bool = False  # a gradient of an earlier step is part of it
    forgotten_in: int = -1  # the step in which the script cleared it
    forgotten: torch.Tensor | None = None  # the gradient after that: None, or zeros
    microbatches: torch.Tensor | None = None  # the sum over all but the last
    pieces_of: int = -1  # the step that the microbatches belong to

    def is_local(self, step: int) -> bool:
        """Return whether it is local, or set by the script, and not the mean of `step`."""
        if self.pending is not None:
            return True
        if self.parameter.grad is None or self.mean_in == step:
            return False
        return self.computed == step or not self.is_leftover()

    def is_leftover(self, since: int = 0) -> bool:
        """Return whether it is what the last step has left, written to `since` times."""
        if self.left is None or (gradient := self.parameter.grad) is None:
            return False
        return self.left() is gradient and gradient._version == self.left_version + since

    def refuse_leftover(self, since: int = 0) -> None:
        """Raise UsageError for a leftover: a newcomer does not have it."""
        if self.is_leftover(since):
            self._refuse()

    def refuse_mixed(self, step: int) -> None:
        """Raise UsageError if the gradient is, or includes, one of a step before `step`."""
        gradient = self.parameter.grad
        if gradient is None or (self.is_mixed and not gradient.any()):
            self.is_mixed = False
            return
        is_of_step = self.computed == step or self.mean_in == step
        if self.is_mixed or (not is_of_step and self.is_leftover()):
            self._refuse()

    def _refuse(self) -> None:
        raise UsageError(
            f"the gradient of {self.name} is still there from the step before; "
            "call optimizer.zero_grad() after each optimizer.step(); to accumulate gradients "
            "over batches, use edl.no_sync()"
        )

    def remember(self) -> None:
        """Record the present gradient as the one that the step leaves, for `is_leftover`."""
        gradient = self.parameter.grad
        if gradient is None:
            self.left = None
        else:
            self.left, self.left_version = weakref.ref(gradient), gradient._version

    def check_unchanged(self) -> None:
        """Check that the script left the local gradient as it was since its allreduce began."""
        flight, local = self.pending, self.parameter.grad
        assert flight is not None
        version = 0 if local is None else local._version
        if local is not flight.local or version != flight.version:
            raise UsageError(
                f"the gradient of {self.name} was changed while it was being reduced; change "
                "gradients when backward() has returned, for example before optimizer.step(): "
                "they are the mean over all workers then"
            )

    def mean_of(self, average: torch.Tensor) -> torch.Tensor:
        """Return `average`, which was received, as the gradient that the parameter is to have."""
        parameter, local = self.parameter, self.parameter.grad
        dtype = parameter.dtype if local is None else local.dtype
        if parameter.is_contiguous():
            return average.to(dtype)
        return laid_out_like(parameter, average, dtype)

    # --- microbatches

    def put_aside(self, step: int) -> None:
        """Move a microbatch's gradient into the sum, which `zero_grad()` cannot clear."""
        if self.computed != step or (gradient := self.parameter.grad) is None:
            return
        self.parameter.grad = None
        before = self.microbatches if self.pieces_of == step else None
        self.microbatches, self.pieces_of = (
            gradient if before is None else before.add_(gradient),
            step,
        )

    def take_back(self, step: int) -> None:
        """Set the gradient to the sum over all microbatches of the step, after the last of them."""
        pieces, self.microbatches = self.microbatches, None
        if pieces is None or self.pieces_of != step:
            return
        own = self.parameter.grad if self.computed == step else None
        self.parameter.grad = pieces if own is None else pieces.add_(own)
        self.computed = step

    # --- with several optimizers: a backward pass may add to a gradient that is the mean already

    def become_mean(self, mean: torch.Tensor, step: int) -> None:
        """Set the parameter's gradient to `mean`, and keep the local gradient in `local`."""
        if self.computed != step:  # this worker has not: it may be left of an earlier step
            self.is_mixed = self.is_leftover() or (self.is_mixed and not self._is_forgotten())
        self.local, self.parameter.grad, self.mean_in = self.parameter.grad, mean, step
        self.remember()

    def become_local(self, step: int) -> None:
        """Set the parameter's gradient from the mean of `step` back to the local gradient."""
        if self.mean_in == step:
            if self._is_forgotten():
                self.forgotten_in, self.forgotten = step, self.parameter.grad
            else:
                self.parameter.grad = self.local
            self.local, self.mean_in = None, -1

    def forget_again(self, step: int) -> None:
        """After a repeated reduction, clear the gradient again if the script had in `step`."""
        if self.forgotten_in == step:
            self.parameter.grad, self.local, self.mean_in = self.forgotten, None, -1

    def refuse_changed(self, step: int) -> None:
        """Raise UsageError if the script has changed the gradient since it became the mean."""
        # If the ring broke later, the local gradient would be reduced again, without the change.
        if self.mean_in == step and not self.is_leftover() and not self._is_forgotten():
            raise UsageError(
                f"the gradient of {self.name} was changed between two backward passes of one step; "
                "change gradients (clip, unscale) after the last backward() before an update, or "
                "make the update first"
            )

    def _is_forgotten(self) -> bool:
        gradient = self.parameter.grad
        return gradient is None or (not self.is_leftover() and not gradient.any())

    def expect_more(self, step: int) -> None:
        """Prepare the gradient for an addition by autograd in step `step`, right before it."""
        if self.parameter.grad is None:
            self.is_mixed = False
        if self.mean_in == step:
            self.refuse_changed(step)
            self.become_local(step)
            self.forgotten_in, self.forgotten = -1, None
        elif self.computed != step:
            self.is_mixed = self.is_leftover()


def not_finite(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return whether any of `gradients` has an inf or a nan, as a 0-d tensor of bool."""
    finite = [gradient.isfinite().all() for gradient in gradients]
    return ~torch.stack([each.to(finite[0].device) for each in finite]).all()
