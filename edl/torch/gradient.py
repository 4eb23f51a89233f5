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
    """An allreduce of one gradient that this worker has started and not waited for yet.

    Attributes:
        handle: Horovod's handle, to wait for the allreduce.
        sent: the tensor that is sent; it must stay alive until Horovod has read it.
        local: the parameter's gradient when it was sent; None if it had none, and zeros were sent.
        version: PyTorch's count of in-place writes to ``local`` when it was sent.
    """

    handle: int
    sent: torch.Tensor
    local: torch.Tensor | None
    version: int


@dataclass(slots=True, eq=False)
class Gradient:
    """The record of one parameter's gradient: when it was computed, sent and averaged.

    A parameter has one such object for the whole training. "Local" is the gradient that this worker
    has computed, "mean" the average over the global batch of all workers, and "leftover" a gradient
    that is still there from the step before. Steps are numbered from 1 on this worker, and backward
    passes from 0 over all steps.

    Attributes:
        parameter: the parameter, whose ``grad`` the methods read and set.
        part: the :class:`~edl.torch.accumulation.Contribution` of the parameter, by which what is
            added to its gradient is weighted.
        name: the parameter's name; empty if the optimizer does not train it any more.
        collective: the name of the gradient's allreduce.
        computed: the number of the step in which backward computed the gradient last; 0: none.
        computed_in: the number of that backward pass; -1: none.
        pending: the allreduce that was started and not waited for; None: there is none.
        buffer: memory that receives the next average; None: memory is allocated for it.
        left: the gradient at the end of the last step, or when it became the mean; None: there was
            none.
        left_version: PyTorch's count of in-place writes to that gradient at that time.
        local: the local gradient while :meth:`become_mean` has put the mean in its place; else
            None.
        mean_in: the number of the step whose mean the gradient is; -1: it is no mean.
        is_mixed: whether the gradient is a sum that includes one of an earlier step.
        forgotten_in: the step in which the script set the mean to None or zeros before the gradient
            was reduced a second time; -1: none.
        forgotten: the value that the script had set then: None, or zeros.
        microbatches: the sum over the microbatches so far; None: there is none.
        pieces_of: the number of the step that these microbatches belong to; -1: none.
    """

    parameter: torch.nn.Parameter
    part: Contribution
    name: str = ""  # empty: the optimizer does not train it any more
    collective: str = ""  # the name of its allreduce
    computed: int = 0  # the step in which backward computed it last
    computed_in: int = -1  # the number of that backward pass
    pending: PendingAllreduce | None = None
    buffer: torch.Tensor | None = None  # memory for the next average
    left: weakref.ref[torch.Tensor] | None = None  # the gradient when the last step was complete
    left_version: int = 0
    local: torch.Tensor | None = None  # with several optimizers: the local gradient
    mean_in: int = -1  # the step whose mean the gradient is; -1: none
    is_mixed: bool = False  # a gradient of an earlier step is part of it
    forgotten_in: int = -1  # the step in which the script cleared it
    forgotten: torch.Tensor | None = None  # the gradient after that: None, or zeros
    microbatches: torch.Tensor | None = None  # the sum over all but the last
    pieces_of: int = -1  # the step that the microbatches belong to

    def is_local(self, step: int) -> bool:
        """Return whether the gradient is this worker's own of step ``step``, and not the mean.

        A gradient that the script has set itself counts as its own, a leftover of the step before
        does not. True while its allreduce is pending; else False if the parameter has no gradient.
        """
        if self.pending is not None:
            return True
        if self.parameter.grad is None or self.mean_in == step:
            return False
        return self.computed == step or not self.is_leftover()

    def is_leftover(self, since: int = 0) -> bool:
        """Return whether the gradient is still the tensor that the last step has left.

        False if the parameter has no gradient, or had none then.

        Args:
            since: how many in-place writes the tensor has had since the end of that step; with any
                other number of writes it does not count as a leftover.
        """
        if self.left is None or (gradient := self.parameter.grad) is None:
            return False
        return self.left() is gradient and gradient._version == self.left_version + since

    def refuse_leftover(self, since: int = 0) -> None:
        """Raise UsageError if the gradient is still the tensor that the last step has left.

        Such a gradient is the mean of an earlier step. A newcomer does not have it, so its update
        would differ.

        Args:
            since: how many in-place writes the gradient has had since that step, as for
                :meth:`is_leftover`.
        """
        if self.is_leftover(since):
            self._refuse()

    def refuse_mixed(self, step: int) -> None:
        """Raise UsageError if the gradient is, or includes, one of a step before ``step``.

        A gradient that the script has set to None or zeros is accepted.
        """
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
        """Record the present gradient as the one that the step leaves, for :meth:`is_leftover`.

        It is called at the end of a step, and when the gradient becomes the mean. Without a
        gradient, None is recorded.
        """
        gradient = self.parameter.grad
        if gradient is None:
            self.left = None
        else:
            self.left, self.left_version = weakref.ref(gradient), gradient._version

    def check_unchanged(self) -> None:
        """Check that the script has not changed the local gradient since its allreduce was started.

        The allreduce must not have been dropped: :attr:`pending` is not None.

        Raises:
            UsageError: the script has changed or replaced the gradient; its change would not be in
                the mean.
        """
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
        """Return ``average``, which was received, as the gradient that the parameter is to have.

        It has the dtype of the local gradient, or of the parameter where there is none, and the
        parameter's order in memory. It is ``average`` itself if that has both, as it has with a
        row-major parameter whose gradients were sent in their own dtype.
        """
        parameter, local = self.parameter, self.parameter.grad
        dtype = parameter.dtype if local is None else local.dtype
        if parameter.is_contiguous():
            return average.to(dtype)
        return laid_out_like(parameter, average, dtype)

    # --- microbatches

    def put_aside(self, step: int) -> None:
        """Move the gradient of a microbatch into the sum of its batch; the gradient becomes None.

        It is called after each microbatch but the last. So the script's ``zero_grad()`` cannot
        clear the sum. Nothing happens if backward has computed no gradient in this step.

        Args:
            step: the number of the current step.
        """
        if self.computed != step or (gradient := self.parameter.grad) is None:
            return
        self.parameter.grad = None
        before = self.microbatches if self.pieces_of == step else None
        self.microbatches, self.pieces_of = (
            gradient if before is None else before.add_(gradient),
            step,
        )

    def take_back(self, step: int) -> None:
        """Set the gradient to the sum over all microbatches of the step, after the last of them.

        Nothing is set if no microbatch was put aside in this step. A sum of an earlier step, which
        the script has left unfinished, is dropped.

        Args:
            step: the number of the current step.
        """
        pieces, self.microbatches = self.microbatches, None
        if pieces is None or self.pieces_of != step:
            return
        own = self.parameter.grad if self.computed == step else None
        self.parameter.grad = pieces if own is None else pieces.add_(own)
        self.computed = step

    # --- with several optimizers: a backward pass may add to a gradient that is the mean already

    def become_mean(self, mean: torch.Tensor, step: int) -> None:
        """Set the parameter's gradient to ``mean``, and keep the local gradient in :attr:`local`.

        Args:
            mean: the mean over the global batch.
            step: the number of the step whose mean it is.
        """
        if self.computed != step:  # this worker has not: it may be left of an earlier step
            self.is_mixed = self.is_leftover() or (self.is_mixed and not self._is_forgotten())
        self.local, self.parameter.grad, self.mean_in = self.parameter.grad, mean, step
        self.remember()

    def become_local(self, step: int) -> None:
        """Set the parameter's gradient from the mean of ``step`` back to the local gradient.

        If it is not the mean of ``step``, nothing changes. If the script has set the mean to None
        or zeros, the gradient stays so, and :meth:`forget_again` can set it so again.
        """
        if self.mean_in == step:
            if self._is_forgotten():
                self.forgotten_in, self.forgotten = step, self.parameter.grad
            else:
                self.parameter.grad = self.local
            self.local, self.mean_in = None, -1

    def forget_again(self, step: int) -> None:
        """Set the gradient to None or zeros again, if the script had done so in step ``step``.

        Otherwise nothing changes. It is called after a reduction that was repeated because the ring
        broke: that reduction has put the mean in the place of the None or the zeros.
        """
        if self.forgotten_in == step:
            self.parameter.grad, self.local, self.mean_in = self.forgotten, None, -1

    def refuse_changed(self, step: int) -> None:
        """Raise UsageError if the script has changed the gradient since it became the mean.

        Nothing is raised if the gradient is no mean of ``step``, or if the script has set it to
        None or zeros. It is called before more gradients are reduced in the same step. If the ring
        broke after that, the survivors would reduce the local gradient again, and the script's
        change would be lost.
        """
        if self.mean_in == step and not self.is_leftover() and not self._is_forgotten():
            raise UsageError(
                f"the gradient of {self.name} was changed between two backward passes of one step; "
                "change gradients (clip, unscale) after the last backward() before an update, or "
                "make the update first"
            )

    def _is_forgotten(self) -> bool:
        """Return whether the script has set the gradient to None or zeros after its reduction."""
        gradient = self.parameter.grad
        return gradient is None or (not self.is_leftover() and not gradient.any())

    def expect_more(self, step: int) -> None:
        """Prepare the gradient for an addition by autograd in step ``step``, right before it.

        If the gradient is the mean of ``step`` already, the local gradient takes its place again.
        If it is a leftover of an earlier step, the sum is marked in :attr:`is_mixed`.

        Raises:
            UsageError: the gradient is the mean, and the script has changed it.
        """
        if self.parameter.grad is None:
            self.is_mixed = False
        if self.mean_in == step:
            self.refuse_changed(step)
            self.become_local(step)
            self.forgotten_in, self.forgotten = -1, None
        elif self.computed != step:
            self.is_mixed = self.is_leftover()


def not_finite(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return whether any of ``gradients`` has an inf or a nan, as a 0-d tensor of bool.

    The tensor is on the device of the first gradient.
    """
    finite = [gradient.isfinite().all() for gradient in gradients]
    return ~torch.stack([each.to(finite[0].device) for each in finite]).all()
