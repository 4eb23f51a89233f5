"""Provide ``edl.torch.DataLoader``: PyTorch's loader, with batches from a worker's leases."""

from __future__ import annotations

import copy
import ctypes
import multiprocessing
import multiprocessing.util
import os
import pickle
import random
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import numpy as np
import torch
import torch.utils.data
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import (
    BatchSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from edl.binding.loop import (
    BatchSteps,
    DataCheck,
    FirstBatch,
    RandomNumbers,
    asked_batching,
    asked_length,
    attach_source,
    attach_stream,
    batch_in_epoch,
    held,
    is_numbered,
    seed_python,
    stream_of,
)
from edl.binding.process import NOTICES, current_worker, holding_sigterm, let_go_of_the_network
from edl.data.dataset import Dataset
from edl.data.stream import StatefulStream, Stream
from edl.errors import DataError, UsageError
from edl.step.engine import Batch
from edl.step.source import SampleOrder, derived_seed
from edl.torch.api import begin_loop, track, unfinished
from edl.torch.lr_schedules import check_schedulers, warn_of_a_changed_batch, warn_of_counted_steps
from edl.torch.replica import TorchGenerators, torch_generators
from edl.worker.worker import Worker

# ------------------------------------------------------------
# Seed the random generators by (seed, epoch, sample) while a sample is loaded.
#
# So the augmentation of a sample is the same whichever worker and loader process loads it, and it
# differs between epochs. Each sample seeds the global generators of Python, NumPy and PyTorch (6
# µs, measured with Python 3.11 and torch 2.13), and so does the collate function's call. Without
# loader processes the generators of the training thread are saved while a batch is loaded, and
# restored after it (15 µs). A data set that draws no random numbers is loaded without seeding, if
# the script gives no collate function.

DRAWS_NOTHING = (TensorDataset, torch.Tensor, np.ndarray, list, tuple, range)
_global: Any = np.random  # its functions for the global generator are not in its stubs
_aside = np.random.MT19937()  # NumPy's generator while a batch is loaded in the training thread


class Items(list[Any]):
    """A list of the indices of a batch's samples, with the seeds to load them with."""

    def __init__(
        self, items: Iterable[Any], epoch_seed: int = -1, keys: Sequence[int] = ()
    ) -> None:
        super().__init__(items)
        self.epoch_seed = epoch_seed  # -1: the samples are loaded without seeds
        self.keys = keys  # the position of each sample in the epoch


def seed_all(seed: int) -> None:
    seed_python(seed)
    for generator in torch_generators():
        generator.manual_seed(seed)


@contextmanager
def generators_aside() -> Iterator[None]:
    python, numpy_ = random.getstate(), _global.get_bit_generator()
    before = [(generator, generator.get_state()) for generator in torch_generators()]
    _global.set_bit_generator(_aside)
    try:
        yield
    finally:
        random.setstate(python)
        _global.set_bit_generator(numpy_)
        for generator, state in before:
            generator.set_state(state)


def read_seeded(dataset: Any, index: int, seed: int) -> Any:
    with generators_aside():
        seed_all(seed)
        return dataset[index]


def draws_nothing(dataset: Any) -> bool:
    """Return whether it is certain that `dataset` draws no random numbers when a sample is read."""
    if isinstance(dataset, Subset):
        return draws_nothing(dataset.dataset)
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        return all(map(draws_nothing, dataset.datasets))
    return type(dataset) in DRAWS_NOTHING  # derived classes may draw


def reads_batches(dataset: Any) -> bool:
    if isinstance(dataset, Subset) and type(dataset).__getitems__ is Subset.__getitems__:
        return reads_batches(dataset.dataset)  # a Subset has that method for any data set
    return hasattr(dataset, "__getitems__")


class Seeded(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: Any, in_thread: bool) -> None:
        vars(self).update(dataset=dataset, in_thread=in_thread)

    def __getattr__(self, name: str) -> Any:  # what worker_init_fn finds in get_worker_info()
        if name.startswith("__") or "dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __getitem__(self, item: Any) -> Any:
        return self.dataset[item]

    def __getitems__(self, items: list[Any]) -> list[Any]:
        if not isinstance(items, Items) or items.epoch_seed < 0:
            return self._read(items)
        if not self.in_thread:
            return self._read_seeded(items)
        with generators_aside():  # the training thread's own random numbers must not change
            return self._read_seeded(items)

    def _read_seeded(self, items: Items) -> list[Any]:
        epoch, keys = items.epoch_seed, items.keys
        _LastSeed.batch = derived_seed("batch", epoch, keys[0])
        if reads_batches(self.dataset):
            seed_all(derived_seed("samples", epoch, keys[0]))
            return self._read(items)
        if draws_nothing(self.dataset):
            return self._read(items)
        samples: list[Any] = []
        for item, key in zip(items, keys, strict=True):
            seed_all(derived_seed(epoch, key))
            samples += self._read([item])
        return samples

    def _read(self, items: list[Any]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(items))
        return [self.dataset[item] for item in items]


class _LastSeed:
    """The seed of the batch that this process has read last, for its collate function."""

    batch = 0


class SeededCollate:
    """A collate function with seeded generators: it may draw, for mixup or MLM masks."""

    def __init__(self, collate: Callable[[list[Any]], Any], in_thread: bool) -> None:
        self._collate, self._in_thread = collate, in_thread

    def __call__(self, samples: list[Any]) -> Any:
        if not self._in_thread:
            seed_all(_LastSeed.batch)
            return self._collate(samples)
        with generators_aside():
            seed_all(_LastSeed.batch)
            return self._collate(samples)


# ------------------------------------------------------------
# Keep the data of the last batch for padding batches, however the script changes what it gets.

PLAIN = (torch.Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None))


class PaddingData:
    """The data of padding batches: those of the batch before, as they were loaded."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load, self._kept = load, None
        self._tensors: list[tuple[torch.Tensor, object]] | None = None  # None: no data are kept

    def keep(self, data: Any) -> None:
        self._tensors = []
        self._kept = self._copied(data, self._tensors)

    def take(self) -> Any:
        kept = self._tensors
        if kept is None or any(_state(tensor) != state for tensor, state in kept):
            self.keep(self._load())
        return self._copied(self._kept, [])  # the script may change the containers

    def _copied(self, data: Any, tensors: list[tuple[torch.Tensor, object]]) -> Any:
        """Return `data` with new containers; append its tensors with their states to a list."""
        if isinstance(data, torch.Tensor):
            tensors.append((data, _state(data)))
        if isinstance(data, PLAIN):
            return data
        if type(data) is dict:
            return {name: self._copied(value, tensors) for name, value in data.items()}
        if type(data) in (list, tuple):
            return type(data)(self._copied(value, tensors) for value in data)
        try:
            return copy.copy(data)
        except Exception:  # noqa: BLE001 - an object of the script's, which then is shared
            return data


def _state(tensor: torch.Tensor) -> object:
    writes = 0 if tensor.is_inference() else tensor._version
    return writes, tensor.shape


# ------------------------------------------------------------
# Turn a training loader of PyTorch, as scripts make one, into options of edl's loader.
#
# The adapters of trainers use it (`lightning`, `huggingface`): their users write PyTorch's loader.

INSTEAD = (
    "edl decides which worker trains which sample: give the loader batch_size and shuffle only, or "
    "a data set that has what your sampler would choose (docs/guides/pytorch.md)"
)
PASSED_ON = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")


def is_shuffled(loader: TorchDataLoader[Any]) -> bool:
    return isinstance(loader.sampler, RandomSampler)


def training_options(loader: TorchDataLoader[Any]) -> dict[str, Any]:
    if type(loader.batch_sampler) is not BatchSampler:
        reason = "a batch sampler of its own" if loader.batch_sampler else "no batch_size"
        raise UsageError(f"the training loader has {reason}; {INSTEAD}")
    if loader.drop_last:
        raise UsageError(
            "the training loader has drop_last=True, and edl trains every sample; leave it out"
        )
    sampler: Any = loader.sampler
    if not isinstance(loader.dataset, IterableDataset) and type(sampler) is not SequentialSampler:
        plain = type(sampler) is RandomSampler and not sampler.replacement
        if not plain or sampler.num_samples != len(sampler.data_source):
            raise UsageError(f"the training loader has a {type(sampler).__name__}; {INSTEAD}")
    options: dict[str, Any] = {name: getattr(loader, name) for name in PASSED_ON}
    options |= {
        "persistent_workers": loader.persistent_workers,
        "dataset": loader.dataset,
        "batch_size": loader.batch_size,
        "shuffle": is_shuffled(loader),
        "generator": loader.generator,
        "order_generator": getattr(loader.sampler, "generator", None),
    }
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
    if loader.collate_fn is not default_collate:
        options["collate_fn"] = loader.collate_fn
    return options


# ------------------------------------------------------------
# Send small tensors from a loader process by value.
#
# PyTorch sends each tensor of a batch as a piece of shared memory: the training process connects to
# the loader process, is asked for its key, and receives a file descriptor. For the labels of a
# batch, or for batches of small samples, this takes longer than the copies that it saves.

MAX_BYTES = 131_072  # of a tensor that is sent by value: 128 KiB
Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


def send_small_tensors_by_value() -> None:
    # The receiver's memory is its own, shared neither with the sender nor with another tensor.
    ForkingPickler.register(torch.Tensor, _reduced)


def _reduced(tensor: torch.Tensor) -> Reduced:
    if not (_is_plain(tensor) and 0 < tensor.nbytes <= MAX_BYTES):
        reduced: Reduced = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return reduced
    return _rebuilt, (_memory(tensor).tobytes(), tensor.dtype, tensor.shape, tensor.stride())


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
        and not (tensor.is_conj() or tensor.is_neg())  # its memory has other numbers
    )


def _rebuilt(
    data: bytes, dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]
) -> torch.Tensor:
    # In PyTorch's own memory, which is aligned: the bits of a product of matrices may depend on
    # that, and those of a convolution on the strides of dimensions of one element.
    tensor = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    _memory(tensor)[:] = np.frombuffer(data, np.uint8)
    return tensor


def _memory(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    found: np.ndarray[Any, np.dtype[np.uint8]] = tensor.reshape(-1).view(torch.uint8).numpy()
    return found


# ------------------------------------------------------------
# Read the samples of a `TensorDataset` a batch at once: the same bits in less time.

_TYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64),
}


class TensorRows(torch.utils.data.Dataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, items: list[int]) -> Any:
        dataset: Any = self._dataset
        rows: Sequence[Any] = items
        if isinstance(dataset, Subset):
            dataset, rows = dataset.dataset, [dataset.indices[item] for item in items]
        tensors, total = dataset.tensors, len(dataset)
        # The script may have registered its own function for tensors or tuples.
        registered = default_collate_fn_map
        plain = registered.get(torch.Tensor) is collate_tensor_fn and not any(
            issubclass(tuple, kind) for kind in registered
        )
        whole = all(type(row) is int or isinstance(row, np.integer) for row in rows)
        if not (
            (plain and all(map(_is_contiguous, tensors)))
            and (whole and 0 <= min(rows) <= max(rows) < total)
        ):
            return default_collate([self._dataset[item] for item in items])
        at = torch.as_tensor(rows, dtype=torch.int64, device="cpu")
        return [tensor.index_select(0, at.to(tensor.device)) for tensor in tensors]


def is_of_tensors(dataset: Any) -> bool:
    if type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset


def as_read(batch: Any) -> Any:
    return batch


def _is_contiguous(tensor: torch.Tensor) -> bool:
    # Others have other strides than what PyTorch's loader stacks, or no `index_select`.
    dense = tensor.layout == torch.strided and not tensor.is_nested and tensor.dtype in _TYPES
    return type(tensor) is torch.Tensor and dense and tensor.is_contiguous()


# ------------------------------------------------------------
# Prepare the processes of PyTorch's loader for a worker that may leave or die.

PR_SET_PDEATHSIG = 1  # prctl(2): have the kernel signal this process when its parent dies


def forks(loader: torch.utils.data.DataLoader[Any]) -> bool:
    context = loader.multiprocessing_context or multiprocessing
    return loader.num_workers > 0 and context.get_start_method() == "fork"


class LoaderProcessInit:
    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, number: int) -> None:
        parent = os.getppid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        worker = multiprocessing.parent_process()  # the trainer; getppid() may be a fork server
        assert worker is not None
        if os.getppid() != parent or not worker.is_alive():  # it died before prctl()
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
        threading.Thread(target=_obey, args=(worker.pid,), daemon=True).start()
        let_go_of_the_network()  # else the other workers cannot see that this one is gone
        send_small_tensors_by_value()
        if self._then is not None:
            self._then(number)


def _obey(worker: int | None) -> None:
    """Wait for a SIGTERM from the worker's process, and then end this loader process (code 0)."""
    # One that goes to every process is ignored: the worker needs its loader until it has left.
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != worker:
        pass
    os._exit(0)


# ------------------------------------------------------------
# Form this worker's batches from its leases, and have PyTorch's loader load them.

_NONE = object()  # stands for "no batch"; None may be the result of a collate_fn


class LoaderBatchSource:
    def __init__(
        self,
        worker: Worker,
        as_sent: Callable[[Batch], Items],
        loader: Callable[..., Any],
        keeps_processes: bool = True,  # else each epoch has new ones, with the data set as it is
    ) -> None:
        self._worker = worker
        self._as_sent = as_sent
        self._make_loader, self._keeps_processes = loader, keeps_processes
        self._opened_in: int | None = None  # the epoch in which loader processes have started
        self._formed: deque[Batch] = deque()
        try:
            self._loader = loader(self._form)
        except (TypeError, ValueError) as error:  # an option is unknown, or has a wrong value
            raise UsageError(f"edl.DataLoader: {error}") from error
        self._arriving: Iterator[Any] = iter(())
        self._first: FirstBatch | None = None  # a newcomer's, loaded while the others train
        self._padding = PaddingData(self._any_data)
        self.data: Any = None  # of the batch that `next` or `pad` has returned last

    def restart(self) -> None:
        """Drop all batches that are formed and not handed out: the leases have changed."""
        if self._first is not None:
            self._first.discard()
            self._first = None
        self._arriving = iter(())
        self._formed.clear()
        if self._worker.warming_up and not self._keeps_processes:
            self._end_processes()  # after the join other workers would wait for that

    def form_lost_again(self) -> None:
        """Do nothing, because PyTorch's loader never loses a batch that it was given."""

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Return the next batch and whether it is a padding batch; put its data into `data`."""
        fresh = self._take(waits)
        worker = self._worker
        if (
            fresh is _NONE
            and self._first is None
            and (worker.warming_up or worker.loader.sampler.has_more(worker.loader.ledger))
        ):
            # At the start, and when leases came after the loader had read the last one.
            self._arriving = self._loaded(self._open())
            if not waits and self._loader.num_workers > 0:
                self._first = FirstBatch(self._arriving, _NONE)  # padding is trained meanwhile
            fresh = self._take(waits)
        if fresh is not _NONE:
            self.data = fresh
            self._padding.keep(fresh)
            return self._formed.popleft(), False
        return self.pad(), True

    def pad(self) -> Batch:
        self.data = self._padding.take()
        return self._worker.loader.sampler.warm_up()

    def _take(self, waits: bool) -> Any:
        if self._first is None:
            return next(self._arriving, _NONE)
        if not (waits or self._first.has_come):
            return _NONE
        first, self._first = self._first, None
        return first.take()

    def _open(self) -> Iterator[Any]:
        # Those of this epoch are used again: the loader is started whenever new leases have come.
        if not self._keeps_processes and self._opened_in != self._worker.loader.epoch:
            self._end_processes()
        self._opened_in = self._worker.loader.epoch
        if self._loader.num_workers > 0:
            # Of the sockets of all its processes: else each would make its own (`pymp-*`), and
            # leave it, since it is ended by a signal.
            multiprocessing.util.get_temp_dir()
        # In this thread: they end with it (prctl), and a fork may never get a lock that another
        # thread holds.
        if not forks(self._loader):  # others may keep a blocked signal blocked for good
            return iter(self._loader)
        with holding_sigterm():  # until LoaderProcessInit blocks it
            return iter(self._loader)

    def _end_processes(self) -> None:
        if self._opened_in is not None:
            self._loader, self._opened_in = self._make_loader(self._form), None

    @staticmethod
    def _loaded(batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of `batches`; shorten the text of a DataError from a loader process."""
        try:
            yield from batches
        except DataError as error:
            sentence = str(error).rpartition(f"{DataError.__module__}.{DataError.__name__}: ")[2]
            raise DataError(sentence.strip()) from error

    def _form(self) -> Batch | None:
        if self._first is not None and not self._first.may_form():
            return None
        worker = self._worker
        if worker.warming_up:
            batch = None if self._formed else worker.loader.sampler.warm_up()
        else:
            batch = worker.loader.sampler.form(worker.loader.ledger)
        if batch is not None:
            self._formed.append(batch)
        return batch

    def _any_data(self) -> Any:
        items = self._as_sent(self._worker.loader.sampler.warm_up())
        dataset: Any = self._loader.dataset
        collate = self._loader.collate_fn
        assert collate is not None
        if hasattr(dataset, "__getitems__"):
            return collate(dataset.__getitems__(items))
        return collate([dataset[item] for item in items])


class Leases(torch.utils.data.Sampler[list[Any]]):
    def __init__(self, form: Callable[[], Batch | None], as_sent: Callable[[Batch], Items]) -> None:
        self._form = form
        self._as_sent = as_sent

    def __iter__(self) -> Iterator[list[Any]]:
        while (batch := self._form()) is not None:
            yield self._as_sent(batch)


class DataLoader:
    """A loader of batches of a dataset, whose samples are divided among the workers of the job.

    Every sample of an epoch is trained exactly once, whichever workers join or leave meanwhile.
    Iterate over the loader inside ``for epoch in loader.epochs(n)``; all workers leave an epoch
    after the same step. When this worker has no samples left before the others do, it gets one of
    its batches again, as a padding batch with weight 0.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__``; ``edl.data.stream(shards, open)``;
            or an iterable data set with ``state_dict`` and ``load_state_dict``. It is the same on
            all workers.
        batch_size: samples that one worker trains in a step. The global batch is this number times
            the number of workers.
        shuffle: whether the order of the samples is random. The order of an epoch is a function of
            (seed, epoch) alone.
        seed: the seed of that order, and of the random numbers drawn while samples are loaded; the
            same on all workers. None: that of the option ``generator``, or 0 if there is none or
            nothing is shuffled.
        num_workers: how many processes load samples, as in ``torch.utils.data.DataLoader``; 0: the
            training thread loads them.
        max_global_batch: the largest global batch, in samples; None: no limit. Where all workers
            together would train more, each of them trains fewer than ``batch_size``.
        global_batch: in place of ``batch_size``, the samples of all workers together in a step,
            whatever the number of workers. With two numbers, the smallest and the largest, the job
            chooses the size between them with the best goodput (training progress per second).
            None: ``batch_size`` is used.
        micro_batch: the most samples in one forward and backward pass of this worker. A larger
            batch is split into microbatches, each an item of the loop, whose gradients are added
            up; the last microbatch makes the update. None: batches are not split.
        prefetch_factor: how many batches each loader process loads ahead; None: 2.
        worker_init_fn: a function that each loader process calls at its start, with its number
            from 0; None: there is none.
        order: which sample is at each position of an epoch, in place of ``shuffle`` and ``seed``;
            the same on all workers. None: they decide.
        worker: the :class:`~edl.worker.worker.Worker` to load for; None: that of this process.
        options: all other arguments of ``torch.utils.data.DataLoader``. ``persistent_workers`` is
            True if it is not given and there are loader processes; with False, new ones start in
            each epoch. ``order_generator``, which PyTorch does not have, is the generator of the
            order; if it is not given, that is ``generator``.

    Raises:
        DataError: the dataset is empty.
        UsageError: an argument cannot work here (``sampler``, ``drop_last``, ...), or PyTorch
            refuses it, or an iterable data set lacks ``state_dict`` and ``load_state_dict``.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Any] | Dataset[Any] | Stream,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int | None = None,
        num_workers: int = 0,
        *,
        max_global_batch: int | None = None,
        global_batch: int | tuple[int, int] | None = None,
        micro_batch: int | None = None,
        prefetch_factor: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        order: SampleOrder | None = None,
        worker: Worker | None = None,
        **options: Any,
    ) -> None:
        self._worker = worker if worker is not None else current_worker()
        if isinstance(dataset, torch.utils.data.DataLoader):
            raise UsageError(
                "edl.DataLoader takes the place of PyTorch's, and was given one; give it the data "
                "set and the options, edl.DataLoader(dataset, batch_size=..., shuffle=...)"
            )
        batches = asked_batching(
            self._worker,
            "edl.DataLoader",
            batch_size,
            max_global_batch,
            global_batch,
            micro_batch,
        )
        _check(options)
        ahead = num_workers * (prefetch_factor or 2)
        generator = options.pop("order_generator", options.get("generator"))
        if seed is None:  # a generator that orders nothing may have the rank in its seed
            ordered = shuffle and order is None and isinstance(generator, torch.Generator)
            seed = generator.initial_seed() if ordered else 0
        order_options = batches, shuffle, seed, ahead
        loaded: Any = dataset
        if is_numbered(dataset):
            total = len(cast(Sized, dataset)) if order is None else order.total
            if total < 1:
                raise DataError("the dataset has 0 samples; at least one is needed")
            self._source = attach_source(self._worker, dataset, total, *order_options, order)
            self._worker.loader.sampler.rereads = True
            if not isinstance(dataset, Dataset):  # files of edl's cannot change
                reads_here = num_workers == 0 or draws_nothing(dataset)
                read = read_seeded if reads_here else lambda data, index, _: held(data, index)
                check = DataCheck(lambda: len(cast(Sized, dataset)), partial(read, dataset))
                self._worker.loader.compare_data(check)
        else:
            stream = stream_of(dataset)
            self._source = attach_stream(self._worker, stream, *order_options)
            if isinstance(stream, StatefulStream):
                track(**{"edl.DataLoader": stream})
            loaded = _Parsed(stream.parse, is_packed=num_workers > 0)
        keeps_processes = options.get("persistent_workers", True)
        if num_workers:
            options["persistent_workers"] = True  # an epoch has several iterators of the loader
        pack = loaded.pack if isinstance(loaded, _Parsed) else list
        collate = options.get("collate_fn")
        in_thread = num_workers == 0
        if in_thread and collate is None and is_of_tensors(loaded):
            loaded, options["collate_fn"] = TensorRows(loaded), as_read
        elif collate is not None or not draws_nothing(loaded):
            loaded = Seeded(loaded, in_thread)
        if collate is not None:
            options["collate_fn"] = SeededCollate(collate, in_thread)

        def as_sent(batch: Batch) -> Items:
            epoch_seed = derived_seed(self._source.seed, self._worker.loader.epoch)
            return Items(pack(batch.items), epoch_seed, batch.keys)

        self._feed = LoaderBatchSource(
            self._worker,
            as_sent,
            lambda form: torch.utils.data.DataLoader(
                loaded,
                batch_sampler=Leases(form, as_sent),
                num_workers=num_workers,
                prefetch_factor=prefetch_factor,
                worker_init_fn=LoaderProcessInit(worker_init_fn),
                **options,
            ),
            keeps_processes,
        )
        # PyTorch's RandomSampler draws its seed in each epoch, unless it has a generator.
        self._draws = self._source.shuffle and generator is None
        self._numbers = RandomNumbers(self._worker, TorchGenerators())
        self._steps = BatchSteps(self._worker, self._feed, unfinished, numbers=self._numbers)
        self.dataset = dataset
        self._length = total if is_numbered(dataset) and order is None else None
        self.batch_size = self._source.batch_size

    def epochs(self, count: int | None = None, *, max_steps: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs to train: from the job's current epoch to ``count - 1``.

        A newcomer first warms up: its first epoch has one batch, trained in a ring of one worker,
        and the result is discarded. Then it goes on with the job's current epoch. After the last
        epoch all workers end the job together: a last checkpoint is written, and no further
        training can begin in this job.

        Args:
            count: how many epochs the job trains; None: as many as ``max_steps`` updates take.
            max_steps: end the training when the job has made this many updates (``edl.step()``),
                also inside an epoch; None: no limit.

        Raises:
            UsageError: neither is given, or ``max_steps`` is no whole number above 0.
        """
        asked_length("loader.epochs()", count, max_steps)
        return self._epochs(count, max_steps)

    def endless_epochs(self) -> Iterator[int]:
        """Yield epochs as :meth:`epochs` does, for a script that does not say how many it trains.

        When such a script has ended, the job has finished.
        """
        return self._epochs(None, None)

    def _epochs(self, count: int | None, max_steps: int | None) -> Iterator[int]:
        self._worker.on_resize(self._resized)
        self._worker.loader.progress.on_choice = self._batch_changed
        begin_loop()
        for epoch in self._steps.epochs(count, max_steps):
            length = self._length and len(cast(Sized, self.dataset))
            if length != self._length:
                raise UsageError(
                    f"the data set has {length} samples now, and had {self._length} when "
                    "edl.DataLoader was made: a job trains the same ones in each epoch. Build the "
                    "whole data set before the loop, or start another job with it, from saved "
                    "weights"
                )
            check_schedulers()
            may_grow = self._worker.is_shared and not self._worker.logical  # the number of steps
            if may_grow and self._worker.rank == 0 and count is not None:
                warn_of_counted_steps(count)
            yield epoch

    def steps(self, count: int) -> Iterator[Any]:
        """Yield batches until the job has made ``count`` updates, over as many epochs as needed.

        :func:`edl.step` counts them, also those before the job was resumed or this worker joined,
        so all workers end the job together; if it has made them already, there is no batch. A
        newcomer first gets one batch to warm up.

        Raises:
            UsageError: ``count`` is no whole number above 0.
        """
        asked_length("loader.steps()", None, count)
        return (batch for _ in self._epochs(None, count) for batch in self)

    def _resized(self, before: int, now: int) -> None:
        batching = self._worker.loader.progress.source.batching
        self._batch_changed(batching.of_all(before), batching.of_all(now))

    def _batch_changed(self, before: int, now: int) -> None:
        if self._worker.rank == 0 and before != now:
            warn_of_a_changed_batch(before, now, self._worker.loader.epoch + 1)

    def __iter__(self) -> Iterator[Any]:
        self._steps.check_may_iterate(
            "iterate the loader inside `for epoch in loader.epochs(n):`, so that a newcomer can "
            "start in the job's current epoch; to look at one batch before, take PyTorch's loader: "
            "next(iter(torch.utils.data.DataLoader(dataset, batch_size)))"
        )
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        with self._steps.looping():
            if self._draws and not self._worker.logical:
                torch.empty((), dtype=torch.int64).random_()  # so a job of one draws as without edl
            while self._steps.begin():
                self._worker.loader.on_pass(self._numbers)
                yield self._feed.data

    @property
    def epoch_is_over(self) -> bool:
        """Whether the iterator has no further batch, as known after ``optimizer.step()``.

        It is the same on all workers, and also True after the one batch of a warm-up.
        """
        return self._steps.is_over

    def stop(self) -> None:
        """End the training with the update that was made last; all workers call it after that one.

        The loop over :meth:`epochs` or :meth:`steps` then ends, and all workers end the job
        together, such as by early stopping. Call it in such a loop, between two steps. Before the
        job's first update, and in a warm-up, nothing happens.
        """
        if self._worker.step > 0 and not self._worker.warming_up:
            self._steps.limit(self._worker.step)

    @property
    def batch_index(self) -> int:
        """The number of the current batch in its epoch, counted from 0; the same on all workers.

        After the epoch's last batch it is the number of the epoch's batches. In a job that was
        resumed within the epoch the count begins anew, except with logical workers.
        """
        return batch_in_epoch(self._worker)

    def __len__(self) -> int:
        """Return how many batches each worker's script gets in an epoch, rounded up.

        Each microbatch counts as one. Before this worker's first step it is computed for the number
        of workers with which the job began, so that a schedule over ``epochs * len(loader)`` steps
        is the same on newcomers; after it for the present workers and global batch.

        Raises:
            TypeError: the data set is a stream, whose length is unknown before its end.
        """
        if not self._source.known_total:
            raise TypeError("a DataLoader of a stream has no length: it shows at its end")
        return self._worker.loader.iterations_of_epoch


class _Parsed(torch.utils.data.Dataset[Any]):
    """A data set for PyTorch's loader whose "indices" are samples that the worker has read."""

    def __init__(self, parse: Callable[[Any], Any] | None, is_packed: bool) -> None:
        self._parse, self.is_packed = parse, is_packed

    def pack(self, read: list[Any]) -> list[Any]:
        if not self.is_packed:
            return read
        try:
            return [pickle.dumps(read)]  # here, so that an error is raised in the worker
        except Exception as error:
            raise UsageError(
                f"a sample of the stream cannot be sent to the loader's processes ({error}); let "
                "open() give what can be pickled, such as bytes, or give num_workers=0"
            ) from error

    def __getitem__(self, read: Any) -> Any:
        return read if self._parse is None else self._parse(read)

    def __getitems__(self, sent: list[Any]) -> list[Any]:
        return [self[each] for each in (pickle.loads(sent[0]) if self.is_packed else sent)]


def _check(options: dict[str, Any]) -> None:
    for name in ("sampler", "batch_sampler"):
        if options.get(name) is not None:
            raise UsageError(
                f"edl.DataLoader does not take a {name}: the job's ledger decides who trains "
                "what; use shuffle and seed, or order the dataset itself"
            )
        options.pop(name, None)
    if options.pop("drop_last", False):
        raise UsageError("edl.DataLoader trains every sample; it has no drop_last")
    if not options.get("in_order", True):
        raise UsageError(
            "edl.DataLoader does not take in_order=False: batches out of order would break the "
            "link between batches and leases, by which each sample is trained once"
        )
