"""Provide ``hvd.elastic`` for a PyTorch script that imports ``edl.torch`` as ``hvd``.

It has :class:`TorchState`, :func:`run` and ``ElasticSampler``. :mod:`edl.binding.elastic` has
what is the same in every framework.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np
import torch
import torch.utils.data
from torch.utils.data import DistributedSampler

from edl.binding import elastic, process
from edl.binding.api import absent
from edl.binding.elastic import HorovodInternalError, Plain, State
from edl.binding.replica import ByteRange, Trackable, map_leaves
from edl.errors import UsageError
from edl.ring.ring import Ring
from edl.step.source import EpochOrder
from edl.text import workers
from edl.torch.optimizer_state import lay_out_state
from edl.torch.replica import digests, exchange, rates_of, size_of

# ------------------------------------------------------------
# Divide an epoch among workers that join and leave, and keep PyTorch's sampler from leaving samples
# out.

_allows_logical = False
_of_ring: weakref.WeakSet[DistributedSampler[Any]] = weakref.WeakSet()


def watch_samplers() -> None:
    """Let PyTorch's DistributedSampler refuse the number of logical workers for processes."""
    make = DistributedSampler.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def checked(self: DistributedSampler[Any], *given: Any, **named: Any) -> None:
        if _allows_logical and process.is_initialized():
            asked = signature.bind(self, *given, **named)
            logical, rank = process.current_worker().logical, asked.arguments.get("rank")
            if rank is not None and asked.arguments.get("num_replicas") == logical:
                asked.arguments["rank"] = min(rank, logical - 1)  # a newcomer may expect `logical`
            make(*asked.args, **asked.kwargs)
            return
        make(self, *given, **named)
        if not process.is_initialized():
            return
        worker = process.current_worker()
        if self.num_replicas == worker.logical and worker.logical != worker.size:
            raise UsageError(
                f"a DistributedSampler for {worker.logical} replicas, the number of logical "
                f"workers, would leave samples out: {workers(worker.size)} share them now; give it "
                "num_replicas=edl.num_processes(), and make it anew for each evaluation"
            )
        # A derived class may have computed more from the share.
        if type(self) is DistributedSampler and (
            (self.num_replicas, self.rank) == (process.num_processes(), process.rank())
        ):
            _of_ring.add(self)

    DistributedSampler.__init__ = checked  # type: ignore[method-assign]


def allow_logical_samplers() -> None:
    """Let scripts make a DistributedSampler for the number of logical workers, from now on."""
    global _allows_logical
    _allows_logical = True


class ElasticSampler(torch.utils.data.Sampler[int]):
    """A sampler of this worker's share of an epoch, divided evenly among the workers of the ring.

    It yields the indices of this worker's share of the samples that were untrained when the share
    was made. Make it an attribute of the elastic state, call :meth:`record_batch` after each batch
    and :meth:`set_epoch` with the next number at the end of each epoch. The order of an epoch is a
    function of (``seed``, epoch) alone, and the trained samples are the first ones of it, so no
    sample is left out or taken twice when the ring changes.

    As in Horovod, all workers get equally many samples. Where the untrained samples of an epoch
    cannot be divided evenly, the first of them are repeated at the end; fewer samples are repeated
    than there are workers.

    Args:
        dataset: the data set, whose length is the number of samples in an epoch.
        shuffle: whether the order of the samples is random.
        seed: the seed of that order.

    Attributes:
        epoch: the number of the current epoch.
        processed_num: how many samples of this epoch all workers together have trained.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_num = 0  # of this epoch, by all workers together
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin the epoch with the number ``epoch``, of which no sample is trained yet."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each worker of the ring has trained a batch of ``batch_size`` samples.

        This worker's present share stays as it is; the record counts at the next :meth:`reset`.
        ``batch_idx`` is not used; Horovod's sampler has it.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes ``epoch`` and ``processed_num``, for :meth:`load_state_dict`."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load ``state_dict``, a result of :meth:`state_dict`, and call :meth:`reset`."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the untrained samples among the present ring's workers, without a message.

        Iterators made before go on with the old share.
        """
        self.rank, self.num_replicas = process.rank(), process.num_processes()
        order = EpochOrder(len(self.dataset), self.seed, self.epoch, self.shuffle)
        self.remaining_indices = order.at(self.processed_num, len(order))
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        padded = np.resize(self.remaining_indices, self.total_size)
        mine: list[int] = padded[self.rank :: self.num_replicas].tolist()
        return iter(mine)

    def __len__(self) -> int:
        return self.num_samples


class TorchState(State):
    """Horovod's elastic state of a script: a model, an optimizer and further attributes.

    The script gives it to the function that :func:`run` has wrapped, which calls its ``commit()``.
    Each commit saves it in memory; it is restored when another worker dies, and sent to newcomers.
    An attribute with ``state_dict()`` and ``load_state_dict()`` (a sampler, an LR scheduler) stays
    the same object when the state is restored or received; any other is replaced by a copy. A
    restore undoes what has changed since the last commit, also inside of lists and dicts.

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

        They belong to batches that the script trains again.
        """
        super().restore()
        for name in self._names:
            for parameter in _parameters(getattr(self, name)):
                parameter.grad = None

    def learning_rates(self) -> dict[str, float]:
        """Return the optimizers' rates by texts such as ``learning rate of optimizer 1``."""
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
            form = value.shape, value.dtype, value.device
            if kept is None or (kept.shape, kept.dtype, kept.device) != form:
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
        for sampler in list(_of_ring):
            epoch = sampler.epoch
            DistributedSampler.__init__(
                sampler,
                sampler.dataset,
                process.num_processes(),
                process.rank(),
                sampler.shuffle,
                sampler.seed,
                sampler.drop_last,
            )
            sampler.epoch = epoch
        super().on_reset()

    def renew(self) -> None:
        """Let each :class:`ElasticSampler` divide its samples anew, then save the state."""
        for name in self._names:
            if isinstance(thing := getattr(self, name), ElasticSampler):
                thing.reset()
        super().renew()


def run(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function(state, ...)`` wrapped, so that it trains while workers join and leave.

    The function may be interrupted at any collective and at any commit. It is then called again:
    after the death of a worker with the state of the last commit, otherwise with the present state.
    It returns on all workers after the same commit, and then the job is over. A worker whose last
    steps are interrupted by the death of another takes the state of one that has finished.

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
    if isinstance(thing, torch.nn.Module):
        yield from thing.parameters()
    elif isinstance(thing, torch.optim.Optimizer):
        for group in thing.param_groups:
            yield from group["params"]


def _clone(value: Any, _where: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value)


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent(__name__)
__all__ = ["ElasticSampler", "TorchState", "run"]
