"""One parameter's gradient: where it comes from, and what was sent of it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch

from edl.errors import UsageError
from edl.torch.accumulation import Contribution


@dataclass(slots=True)
class PendingAllreduce:
    """A gradient on its way. ``sent`` must stay alive until Horovod has read it.

    ``local`` and ``version``: the parameter's gradient when it was sent, and how often it had
    been written to; None where it has none and takes part with zeros.
    """

    handle: int
    sent: torch.Tensor
    local: torch.Tensor | None
    version: int


@dataclass(slots=True, eq=False)
class Gradient:
    """What is known of one parameter's gradient.

    One object a parameter, for a look-up by tensor costs more than all else here.
    """

    parameter: torch.nn.Parameter
    part: Contribution
    name: str = ""  # no name: the optimizer does not have it any more
    collective: str = ""  # under which name it is sent
    computed: int = 0  # the number of the step in which backward has computed it last
    computed_in: int = -1  # that of the backward pass
    pending: PendingAllreduce | None = None
    buffer: torch.Tensor | None = None  # memory for the next average
    left: weakref.ref[torch.Tensor] | None = None  # when the last step was complete
    left_version: int = 0
    local: torch.Tensor | None = None  # with several optimizers: what it was before it was reduced
    mean_in: int = -1  # the number of the step in which it was, while that goes on
    is_mixed: bool = False  # something was added to that of an earlier step
    forgotten_in: int = -1  # the number of the step in which the script began anew with it
    forgotten: torch.Tensor | None = None  # what it is since: None, or zeros
    microbatches: torch.Tensor | None = None  # the sum of those of a batch, but the last
    pieces_of: int = -1  # the number of the step that they belong to

    def is_local(self, step: int) -> bool:
        """This worker has computed it, and it is not the mean yet."""
        if self.pending is not None:
            return True
        if self.parameter.grad is None or self.mean_in == step:
            return False
        return self.computed == step or not self.is_leftover()

    def is_leftover(self, since: int = 0) -> bool:
        """It is that of the step before, and was written to ``since`` times after it."""
        if self.left is None or (gradient := self.parameter.grad) is None:
            return False
        return self.left() is gradient and gradient._version == self.left_version + since

    def refuse_leftover(self, since: int = 0) -> None:
        """Refuse a gradient of the step before, which was written to ``since`` times after it.

        It is the mean of another step, and a newcomer does not have it.
        """
        if self.is_leftover(since):
            self._refuse()

    def refuse_mixed(self, step: int) -> None:
        """Refuse a gradient that is of an earlier step than ``step``, or has a part that is."""
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
        """The step is complete."""
        gradient = self.parameter.grad
        if gradient is None:
            self.left = None
        else:
            self.left, self.left_version = weakref.ref(gradient), gradient._version

    def check_unchanged(self) -> None:
        """What was reduced must be what is there, for nobody could tell which of them is meant."""
        flight, local = self.pending, self.parameter.grad
        assert flight is not None
        version = 0 if local is None else local._version
        if local is not flight.local or version != flight.version:
            raise UsageError(
                f"the gradient of {self.name} was changed while it was being reduced; change "
                "gradients when backward() has returned, for example before optimizer.step(): "
                "they are the mean over all workers then"
            )

    # --- a batch in pieces

    def put_aside(self, step: int) -> None:
        """A piece is done, and more follow: the script may forget what it sees as the gradient."""
        if self.computed != step or (gradient := self.parameter.grad) is None:
            return
        self.parameter.grad = None
        before = self.microbatches if self.pieces_of == step else None
        self.microbatches, self.pieces_of = (
            gradient if before is None else before.add_(gradient),
            step,
        )

    def take_back(self, step: int) -> None:
        """The last piece: the gradient is the sum of all. Others are of a step that was left."""
        pieces, self.microbatches = self.microbatches, None
        if pieces is None or self.pieces_of != step:
            return
        own = self.parameter.grad if self.computed == step else None
        self.parameter.grad = pieces if own is None else pieces.add_(own)
        self.computed = step

    # --- with several optimizers a backward pass may add to what is the mean already

    def become_mean(self, mean: torch.Tensor, step: int) -> None:
        """Set the gradient to ``mean``; what it was before is kept until the next step."""
        if self.computed != step:  # others have, and what lies here may be of an earlier step
            self.is_mixed = self.is_leftover() or (self.is_mixed and not self._is_forgotten())
        self.local, self.parameter.grad, self.mean_in = self.parameter.grad, mean, step
        self.remember()

    def become_local(self, step: int) -> None:
        """It is again what this worker has computed in ``step``, if it is the mean of that.

        One that the script has set to None or to zeros stays that.
        """
        if self.mean_in == step:
            if self._is_forgotten():
                self.forgotten_in, self.forgotten = step, self.parameter.grad
            else:
                self.parameter.grad = self.local
            self.local, self.mean_in = None, -1

    def forget_again(self, step: int) -> None:
        """What was reduced before the script began anew with it came once more, in another ring."""
        if self.forgotten_in == step:
            self.parameter.grad, self.local, self.mean_in = self.forgotten, None, -1

    def refuse_changed(self, step: int) -> None:
        """Refuse a mean that was changed in ``step``, before something else is reduced in it.

        Were the ring to break then, the survivors would have to change it once more.
        """
        if self.mean_in == step and not self.is_leftover() and not self._is_forgotten():
            raise UsageError(
                f"the gradient of {self.name} was changed between two backward passes of one step; "
                "change gradients (clip, unscale) after the last backward() before an update, or "
                "make the update first"
            )

    def _is_forgotten(self) -> bool:
        """The script has begun anew with it."""
        gradient = self.parameter.grad
        return gradient is None or (not self.is_leftover() and not gradient.any())

    def expect_more(self, step: int) -> None:
        """Autograd is about to add to it in ``step``.

        Raises:
            UsageError: it is the mean, and was changed.
        """
        if self.parameter.grad is None:
            self.is_mixed = False
        if self.mean_in == step:
            self.refuse_changed(step)
            self.become_local(step)
            self.forgotten_in, self.forgotten = -1, None
        elif self.computed != step:
            self.is_mixed = self.is_leftover()
