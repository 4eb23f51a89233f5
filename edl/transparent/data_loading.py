"""Let the script's ``DataLoader`` train the parts of all ranks: :func:`replace_loading`.

A ``DataLoader`` with a ``DistributedSampler`` of ``hvd.size()`` replicas (also in its
``batch_sampler``), iterated in training mode, is the job's training loader: edl deals its samples
in the order in which Horovod's ranks would train them. In evaluation mode, or under
``torch.no_grad()``, it gives each process an equal share. Any other loader stays as it is.
"""

from __future__ import annotations

import copy
import functools
import gc
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from torch.utils.data._utils import collate

import edl.torch
from edl.binding import process
from edl.binding.replica import PLAIN_BYTES, ByteRange, places
from edl.errors import UsageError
from edl.step.source import Indices, by_steps, samples_of_replica
from edl.torch import api
from edl.torch.api import exchange_objects
from edl.torch.elastic import allow_logical_samplers
from edl.torch.optimizer_state import state_of
from edl.torch.replica import digests, size_of
from edl.transparent.script import Ranks, place_of_root, ranks
from edl.transparent.training import (
    EpochNumbers,
    ScriptAverages,
    ScriptEpochs,
    Training,
    watch_averages,
)

# ------------------------------------------------------------
# Find the modules of an unchanged PyTorch script, which edl is not given.


NO_MODEL = (
    "edl cannot find the module whose parameters the optimizer trains; give "
    "hvd.DistributedOptimizer named_parameters=model.named_parameters(), of a module that holds "
    "all of them"
)


class ModelGroup(torch.nn.ModuleList):
    """Several modules that one optimizer trains, in the order of its parameters."""


def is_training(model: torch.nn.Module) -> bool:
    if isinstance(model, ModelGroup):
        return any(one.training for one in model)
    return model.training


def model_with(optimizer: torch.optim.Optimizer, named_parameters: Any) -> torch.nn.Module:
    """Return the outermost module that has all parameters of `optimizer`, or a group of several."""
    trained = [id(each) for group in optimizer.param_groups for each in group["params"]]
    # Mostly the generator `model.named_parameters()`, which knows its module.
    frame = getattr(named_parameters, "gi_frame", None)
    given = None if frame is None else frame.f_locals.get("self")
    if isinstance(given, torch.nn.Module) and set(trained) <= _parameters(given):
        return given
    modules = _modules()
    if having := _outermost([one for one in modules if set(trained) <= _parameters(one)]):
        if len(having) > 1:
            raise UsageError(NO_MODEL)
        return having[0]
    # Such as an encoder and a decoder.
    parts = _outermost([one for one in modules if not _parameters(one).isdisjoint(trained)])
    found = [each for part in parts for each in _parameters(part).intersection(trained)]
    if sorted(found) != sorted(trained):  # some are of no module, or of several
        raise UsageError(NO_MODEL)
    first = {id(part): min(map(trained.index, _parameters(part) & set(trained))) for part in parts}
    return ModelGroup(sorted(parts, key=lambda part: first[id(part)]))


def modules_with(tensors: Iterable[torch.Tensor]) -> list[torch.nn.Module]:
    """Return the smallest module that holds all `tensors`, or the outermost ones that hold some."""
    # By memory, so that a tensor of a `state_dict()` counts as the parameter itself.
    wanted = [address for each in tensors if (address := _address(each))]
    modules = [(one, _addresses(one)) for one in _modules()]
    held = {each for each in wanted if any(each in addresses for _, addresses in modules)}
    if not held:
        return []
    if whole := [one for one, addresses in modules if held <= addresses]:
        # The same on all processes, for modules that share their weights.
        return [min(whole, key=lambda one: (len([*one.modules()]), sorted(one.state_dict())))]
    parts = _outermost([one for one, addresses in modules if not held.isdisjoint(addresses)])
    return sorted(parts, key=lambda part: min(map(wanted.index, _addresses(part) & held)))


def _addresses(module: torch.nn.Module) -> set[int]:
    return {_address(each) for each in chain(module.parameters(), module.buffers())}


def _address(tensor: torch.Tensor) -> int:
    """Return where `tensor` begins in memory; 0 if it has no memory of one piece."""
    if tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor):
        return 0
    return tensor.data_ptr()


def _parameters(module: torch.nn.Module) -> set[int]:
    return {id(each) for each in module.parameters()}


def _outermost(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    inner = {id(part) for one in modules for part in one.modules() if part is not one}
    return [one for one in modules if id(one) not in inner]


def _modules() -> list[torch.nn.Module]:
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    return [one for one in found if "_modules" in vars(one)]  # else it is not complete


# --- Compare the script's tensors before its training, and send them during it.


Exchange = Callable[[bytes], list[bytes]]
ALL_CALL = "all workers must make the same calls of hvd in the same order"
OTHER_FORM = (
    "hvd.broadcast_parameters: this worker has other tensors than rank {root} ({names}), by name "
    "or shape; all workers must give it the same model"
)
OTHER_OPTIMIZER = (
    "hvd.broadcast_optimizer_state: the workers' optimizers have different states, and with "
    "--transparent it sends none; load an optimizer's state during the training on all workers, "
    "not only on rank 0"
)


class BroadcastModules:
    """The modules that a script has given to `hvd.broadcast_parameters` before its training."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[torch.nn.Module]] = []

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        known = {id(one) for one in self._alive()}
        found = [one for one in modules_with(tensors) if id(one) not in known]
        self._modules += map(weakref.ref, found)

    def digest(self) -> int:
        """Return the CRC-32 of the states of the added modules that the script still has."""
        gc.collect()  # else a module in a cycle of references exists for longer on some workers
        return _digest(
            {
                f"{number} {name}": each
                for number, one in enumerate(self._alive())
                for name, each in comparable_tensors(one.state_dict().items()).items()
            }
        )

    def _alive(self) -> list[torch.nn.Module]:
        return [one for each in self._modules if (one := each()) is not None]


def comparable_tensors(named: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors among the values of `named`, without sparse and quantized ones."""
    tensors = {name: each for name, each in named if isinstance(each, torch.Tensor)}
    return {
        name: each
        for name, each in tensors.items()
        if each.layout is torch.strided and not (each.is_quantized or each.is_meta)
    }


def broadcast_tensors(
    tensors: Mapping[str, torch.Tensor], root_rank: int, exchange: Exchange
) -> None:
    """Overwrite `tensors` by those of the process `root_rank`, if they differ on any process."""
    if _are_alike(tensors, exchange):
        return
    sent = None
    while sent is None:  # if the root dies, the next process with its number is the root
        is_root = process.rank() == place_of_root(root_rank, process.num_processes())
        own = None
        if is_root:  # each in memory of its own, since all of a tensor's memory is sent
            own = {name: each.detach().cpu().clone() for name, each in tensors.items()}
        found = exchange_objects("hvd.broadcast_parameters", own, ALL_CALL, exchange)
        sent = found[place_of_root(root_rank, len(found))]
    shapes, theirs = ({name: each.shape for name, each in one.items()} for one in (tensors, sent))
    if odd := sorted({name for name, _ in shapes.items() ^ theirs.items()}):
        raise UsageError(OTHER_FORM.format(root=root_rank, names=", ".join(odd)))
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(sent[name])


def _are_alike(values: Mapping[str, Any], exchange: Exchange) -> bool:
    return len(set(exchange(str(_digest(values)).encode()))) == 1


def _digest(values: Mapping[str, Any]) -> int:
    found = digests(
        ByteRange(name, one, 0, size_of(one) or PLAIN_BYTES, True) for name, one in values.items()
    )
    return zlib.crc32(repr(sorted(found.items())).encode())


# Options of a DataLoader that are passed on as they are, if they differ from what it has without.
OPTIONS = (
    "pin_memory",
    "pin_memory_device",
    "timeout",
    "multiprocessing_context",
    "generator",
    "worker_init_fn",
    "prefetch_factor",
)
TWICE = (
    "this script trains on two data loaders, and edl follows one: put the data sets into one "
    "(torch.utils.data.ConcatDataset), or change the script to edl.torch"
)
NO_BATCHES = (
    "the loader of the training data makes no batches (batch_size=None), so edl cannot divide its "
    "samples among the ranks; give it the batch_size of one rank"
)
UNLIKE = (
    "the script evaluates before its training, and the workers have different weights: with "
    "--transparent those of rank 0 are sent when the training begins; seed all workers "
    "alike and load a checkpoint file on all of them, or evaluate after an epoch"
)
SUBCLASS = (
    "a {kind} chooses samples in a way of its own, which edl cannot divide among processes that "
    "come and go; give the loader a torch.utils.data.DistributedSampler as sampler"
)


class ReplicaOrder:
    """A `SampleOrder`: the samples of an epoch as a sampler's replicas train them."""

    def __init__(
        self,
        sampler: DistributedSampler[Any],
        batch_size: int,
        drop_last: bool,
        epochs: ScriptEpochs,
    ) -> None:
        self._sampler, self._batch_size, self._epochs = sampler, batch_size, epochs
        samples = len(sampler.dataset)  # type: ignore[arg-type]
        self._replicas = ranks()
        self._each = samples_of_replica(samples, self._replicas, sampler.drop_last)
        if drop_last:
            self._each -= self._each % batch_size
        self.total = self._each * self._replicas

    def __call__(self, epoch: int) -> Indices:
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank, whole.epoch = 1, 0, self._epochs.sampler_epoch(epoch)
        whole.num_samples = whole.total_size = len(whole.dataset)  # type: ignore[arg-type]
        shuffled = np.fromiter(whole, dtype=np.int64, count=whole.total_size)
        return by_steps(shuffled, self._replicas, self._each, self._batch_size)


class ScriptLoaders:
    """The data loaders of the script, of which one is that of the training."""

    def __init__(self) -> None:
        self.model: torch.nn.Module | None = None  # that the optimizer trains
        self.optimizer: torch.optim.Optimizer | None = None
        self._exchanges = 0  # that the script has made before its training
        self._loader: DataLoader[Any] | None = None
        self._training: Training | None = None
        self._numbers = EpochNumbers()
        self._broadcast = BroadcastModules()
        self._examples: weakref.WeakKeyDictionary[DataLoader[Any], list[Any]] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def has_begun(self) -> bool:
        return self._training is not None

    @property
    def passes_over(self) -> bool:
        return self._training is not None and self._training.passes_over

    def exchange(self) -> Callable[[bytes], list[bytes]] | None:
        if self._training is None:
            return self._exchange_early
        return api.exchange if api.exchanges() and not self.passes_over else None

    def _exchange_early(self, payload: bytes) -> list[bytes]:
        # All workers of the first ring call it at the same points, and a newcomer gets what they
        # have sent. So the calls are numbered.
        number, self._exchanges = self._exchanges, self._exchanges + 1
        return process.current_worker().exchange_before_training(number, payload) or [payload]

    def broadcast_parameters(self, named: Iterable[tuple[str, Any]], root_rank: int) -> None:
        tensors = comparable_tensors(named)
        if self._training is None:  # when it begins, all get those of rank 0
            self._broadcast.add(tensors.values())
        # A step ends with the same weights on all workers.
        elif not self._training.is_in_step and (exchange := self.exchange()) is not None:
            broadcast_tensors(tensors, root_rank, exchange)

    def compare_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if self._training is None or (exchange := self.exchange()) is None:
            return
        # Without the options of its groups, such as the learning rate.
        values = {name: inside[key] for name, inside, key in places(state_of(optimizer)["state"])}
        if not _are_alike(values, exchange):
            raise UsageError(OTHER_OPTIMIZER)

    def agree_on_shares(self) -> tuple[int, int]:
        """Return this process's share of an evaluation, and their number, the same on all."""
        digest = self._broadcast.digest() if self._training is None else 0
        exchange, own = self.exchange(), f"{process.current_worker().id} {digest}".encode()
        answers = [own] if exchange is None else exchange(own)
        if len({each.split()[1] for each in answers}) > 1:
            raise UsageError(UNLIKE)
        place = answers.index(own) if own in answers else 0  # a newcomer is not among them
        return place, len(answers)

    def examples(self, loader: DataLoader[Any]) -> list[Any]:
        if loader not in self._examples:
            self._examples[loader] = list(islice(plain_iterator(loader), 1))
        return self._examples[loader]

    def is_training(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loop over `loader` trains now, on the data of all ranks."""
        if self.model is None or not is_training(self.model) or not torch.is_grad_enabled():
            return False
        return _sampler_of_all_ranks(loader) is not None

    def note_step(self) -> None:
        if self._training is not None:
            self._training.note_step()

    def check_not_left_early(self) -> None:
        if self._training is not None:
            self._training.check_not_left_early()

    def numbers(self, loader: DataLoader[Any]) -> bool:
        """Return whether `loader` is that of the training, so that its steps have numbers."""
        return loader is self._loader or self.is_training(loader)

    @property
    def step_in_epoch(self) -> int:
        return 0 if self._training is None else self._training.step_in_epoch

    def train(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if self._loader not in (None, loader):
            raise UsageError(TWICE)
        sampler = _sampler_of_all_ranks(loader)
        assert sampler is not None
        number = self._numbers.next(sampler.epoch)
        _divide(sampler, ranks(), sampler.rank)
        if self._training is None:
            epochs = ScriptEpochs()
            epochs.name(0, number, sampler.epoch)
            self._loader, self._training = loader, self._begun(loader, epochs)
        shown.begin_epoch()
        yield from self._training.batches(number, sampler.epoch)

    def _begun(self, loader: DataLoader[Any], epochs: ScriptEpochs) -> Training:
        assert self.optimizer is not None
        seeds = [int(text) for text in self._exchange_early(str(torch.initial_seed()).encode())]
        if seeds[0] != torch.initial_seed():  # each rank may draw numbers of its own: edl does so
            torch.manual_seed(seeds[0])
        inner = _elastic(loader, epochs)
        edl.torch.track(**{"epochs of the script": epochs})
        edl.torch.track(**{"averages of the weights": averages})
        return Training(
            inner, self.optimizer, epochs, lambda: next(iter(self.examples(loader)), None)
        )


loaders = ScriptLoaders()
shown = Ranks(
    lambda: loaders.has_begun, lambda: loaders.passes_over, lambda: torch.cuda.device_count() > 0
)
averages = ScriptAverages(lambda: loaders.passes_over)
plain_iterator, plain_length = DataLoader.__iter__, DataLoader.__len__


def _elastic(loader: DataLoader[Any], epochs: ScriptEpochs) -> edl.torch.DataLoader:
    batches: Any = loader.batch_sampler
    if batches is None:
        raise UsageError(NO_BATCHES)
    if type(batches) is not BatchSampler:
        raise UsageError(SUBCLASS.format(kind=type(batches).__name__))
    sampler: Any = batches.sampler
    if type(sampler) is not DistributedSampler:
        raise UsageError(SUBCLASS.format(kind=type(sampler).__name__))
    given = {name: getattr(loader, name, None) for name in OPTIONS}
    options = {name: value for name, value in given.items() if value}
    if loader.collate_fn is not collate.default_collate:
        options["collate_fn"] = loader.collate_fn
    return edl.torch.DataLoader(
        loader.dataset,
        batches.batch_size,
        num_workers=loader.num_workers,
        persistent_workers=loader.persistent_workers,
        order=ReplicaOrder(sampler, batches.batch_size, batches.drop_last, epochs),
        **options,
    )


def _sampler_of_all_ranks(loader: DataLoader[Any]) -> DistributedSampler[Any] | None:
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    while sampler is not None and not isinstance(sampler, DistributedSampler):
        sampler = getattr(sampler, "sampler", None)
    if sampler is None or not process.is_initialized():
        return None
    replicas = getattr(sampler, "_edl_ranks", sampler.num_replicas)
    return sampler if replicas == ranks() else None


def _divide(sampler: DistributedSampler[Any], replicas: int, rank: int) -> None:
    sampler._edl_ranks = ranks()  # type: ignore[attr-defined]
    sampler.num_replicas, sampler.rank = replicas, rank
    samples = len(sampler.dataset)  # type: ignore[arg-type]
    sampler.num_samples = samples_of_replica(samples, replicas, sampler.drop_last)
    sampler.total_size = sampler.num_samples * replicas


def replace_loading() -> None:
    allow_logical_samplers()
    watch_averages(averages)
    loader: Any = DataLoader
    loader.__iter__, loader.__len__ = _iterate, _length
    loader.edl_numbers_steps = property(loaders.numbers)
    loader.edl_step_in_epoch = property(lambda _: loaders.step_in_epoch)


@functools.wraps(plain_iterator)
def _iterate(self: DataLoader[Any]) -> Iterator[Any]:
    loaders.check_not_left_early()
    if loaders.is_training(self):
        return loaders.train(self)
    if (sampler := _shared_sampler(self)) is not None:
        place, count = loaders.agree_on_shares()
        _divide(sampler, count, place)
    if loaders.passes_over:
        return iter(loaders.examples(self))
    return plain_iterator(self)


@functools.wraps(plain_length)
def _length(self: DataLoader[Any]) -> int:
    if loaders.numbers(self):
        sampler = _sampler_of_all_ranks(self)
        assert sampler is not None
        _divide(sampler, ranks(), sampler.rank)
    elif (sampler := _shared_sampler(self)) is not None:
        _divide(sampler, process.num_processes(), process.rank())
    return plain_length(self)


def _shared_sampler(loader: DataLoader[Any]) -> DistributedSampler[Any] | None:
    # Before the script's first optimizer it may be the loader of the training.
    may_train = loaders.model is None and torch.is_grad_enabled()
    return None if may_train else _sampler_of_all_ranks(loader)
