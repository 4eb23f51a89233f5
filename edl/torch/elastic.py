"""Provide ``hvd.elastic`` for a PyTorch script that imports ``edl.torch`` as ``hvd``.

It has :class:`TorchState`, :func:`run` and ``ElasticSampler``. :mod:`edl.binding.elastic` has
what is the same in every framework.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import cloudpickle
import torch

from edl.binding import elastic
from edl.binding.api import absent
from edl.binding.elastic import HorovodInternalError, Plain, State
from edl.binding.replica import ByteRange, Trackable, map_leaves
from edl.errors import UsageError
from edl.ring.ring import Ring
from edl.torch.digest import digests, size_of
from edl.torch.optimizer_state import lay_out_state
from edl.torch.replica import exchange, rates_of
from edl.torch.sampler import ElasticSampler, divide_among_ring

__all__ = ["ElasticSampler", "TorchState", "run"]


class TorchState(State):
    """Horovod's elastic state of a script: a model, an optimizer and further attributes.

    The script gives it to the function that :func:`run` has wrapped, which calls its ``commit()``.
    Each commit saves it in memory; it is restored when another worker dies, and sent to newcomers.
    Attributes may be samplers, LR schedulers, numbers and other objects. An object with
    ``state_dict()`` and ``load_state_dict()`` stays the same object when the state is restored or
    received; any other attribute is replaced by a copy. A restore undoes what has changed since the
    last commit, also inside of lists and dicts.

    Args:
        model: the model; None: there is none.
        optimizer: the optimizer; None: there is none.
        attributes: further attributes, by names that are the same on all workers.
    """

    model: Any
    optimizer: Any

    def __init__(self, model: Any = None, optimizer: Any = None, **attributes: Any) -> None:
        self._kept: list[torch.Tensor] = []
        super().__init__(model=model, optimizer=optimizer, **attributes)

    def restore(self) -> None:
        """Restore the state that was saved last, and set the gradients of its parameters to None.

        It was saved at a commit or at the beginning of the ring. The gradients belong to batches
        that the script trains again.
        """
        super().restore()
        for name in self._names:
            for parameter in _parameters(getattr(self, name)):
                parameter.grad = None

    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates of the optimizers in the state.

        Returns:
            The rates by texts for error messages, such as ``learning rate of optimizer 1``.
        """
        things = (getattr(self, name) for name in self._names)
        return rates_of([thing for thing in things if isinstance(thing, torch.optim.Optimizer)])

    def _trained(self) -> dict[str, Any]:
        trained: dict[str, Any] = {}
        for name in self._names:
            thing = getattr(self, name)
            if isinstance(thing, torch.nn.Module):
                trained[name] = dict(thing.named_parameters())
            elif isinstance(thing, torch.optim.Optimizer):
                trained[name] = thing.state_dict()
        return trained

    _size_of = staticmethod(size_of)

    def _digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        return digests(parts)

    def _values(self) -> dict[str, Any]:
        values = {}
        for name in self._names:
            thing = getattr(self, name)
            values[name] = thing.state_dict() if isinstance(thing, Trackable) else Plain(thing)
        return values

    def _put(self, values: dict[str, Any]) -> None:
        for name, value in map_leaves(values, _clone).items():
            if isinstance(value, Plain):
                setattr(self, name, value.value)
                continue
            thing = getattr(self, name)
            try:
                thing.load_state_dict(value)
            except (AttributeError, ValueError, KeyError, RuntimeError) as error:
                raise UsageError(
                    f"the state.{name} of this worker is not like the job's: {error}"
                ) from error
            if isinstance(thing, torch.optim.Optimizer):
                lay_out_state(thing)

    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        used = 0

        def leaf(value: Any, where: str) -> Any:
            nonlocal used
            if not isinstance(value, torch.Tensor):
                return _clone(value, where)
            kept = self._kept[used] if used < len(self._kept) else None
            if kept is None or not _alike(kept, value):
                kept = torch.empty_like(value, requires_grad=False)
                self._kept[used : used + 1] = [kept]
            used += 1
            return kept.copy_(value.detach())

        copied: dict[str, Any] = map_leaves(values, leaf)
        return copied

    def _exchanged(self, ring: Ring, root: int, values: dict[str, Any] | None, keep: bool) -> Any:
        return exchange(ring, root, values, keep, cloudpickle.dumps)

    def on_reset(self) -> None:
        """Divide each DistributedSampler of ``hvd.size()`` replicas anew, then do the callbacks."""
        divide_among_ring()
        super().on_reset()

    def renew(self) -> None:
        """Divide the untrained samples among the workers of a new ring, then save the state.

        The samples are those of the current epoch of each :class:`ElasticSampler` in the state. The
        state is saved in memory, and is restored when another worker dies.
        """
        for name in self._names:
            if isinstance(thing := getattr(self, name), ElasticSampler):
                thing.reset()
        super().renew()


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function(state, ...)`` wrapped, so that it trains while workers join and leave.

    The function may be interrupted at any collective and at any commit. It is then called again:
    after the death of a worker with the state of the last commit, otherwise with the present state.
    It returns on all workers after the same commit. A worker whose last steps are interrupted by
    the death of another worker returns with the state of a worker that has finished. When the
    function has returned, the job is over.

    Args:
        function: the training function of the script; its first argument is a :class:`TorchState`.

    Returns:
        The wrapper, which takes the arguments of ``function``. It returns what ``function``
        returns, or None on a worker that was interrupted in its last steps.

    Raises:
        UsageError: the wrapper was called with a state that is not edl's, or after another wrapped
            function had ended the job; or Horovod refuses a collective, and would refuse it again.
        WorkerEvicted: this worker was removed from the job.
        JobFailed: the job cannot go on.
    """
    return elastic.run(function, (HorovodInternalError,), str, "TorchState")


def _parameters(thing: Any) -> Iterator[torch.Tensor]:
    """Yield the parameters of `thing`, a model or an optimizer; nothing for any other object."""
    if isinstance(thing, torch.nn.Module):
        yield from thing.parameters()
    elif isinstance(thing, torch.optim.Optimizer):
        for group in thing.param_groups:
            yield from group["params"]


def _clone(value: Any, _where: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent(__name__)
