"""Provide ``edl.torch.DataLoader``: PyTorch's loader, with batches from a worker's leases."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sized
from functools import partial
from typing import Any, cast

import torch.utils.data

from edl.core.step.batch import Batch
from edl.core.step.seeds import derived_seed
from edl.core.step.shuffle import SampleOrder
from edl.data.dataset import Dataset
from edl.data.stateful_stream import StatefulStream
from edl.data.stream import Stream
from edl.errors import DataError, UsageError
from edl.framework.batch_number import batch_in_epoch
from edl.framework.data_check import DataCheck, held
from edl.framework.process import current_worker
from edl.framework.random_numbers import RandomNumbers
from edl.framework.source import (
    asked_batching,
    attach_source,
    attach_stream,
    is_numbered,
    stream_of,
)
from edl.framework.steps import BatchSteps, asked_length
from edl.torch.api import begin_loop, begin_piece, end_batch, track, unfinished
from edl.torch.batch_source import Leases, LoaderBatchSource
from edl.torch.loader_options import seed_of_order
from edl.torch.loader_process import LoaderProcessInit
from edl.torch.lr_schedule import check_schedulers
from edl.torch.schedulers import warn_of_a_changed_batch, warn_of_counted_steps
from edl.torch.seeding import (
    Items,
    Seeded,
    SeededCollate,
    TorchGenerators,
    draws_nothing,
    read_seeded,
)
from edl.torch.tensor_rows import TensorRows, as_read, is_of_tensors
from edl.worker.worker import Worker


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
        seed = seed_of_order(seed, generator, shuffle and order is None)
        how = batches, shuffle, seed, ahead
        loaded: Any = dataset
        if is_numbered(dataset):
            total = len(cast(Sized, dataset)) if order is None else order.total
            if total < 1:
                raise DataError("the dataset has 0 samples; at least one is needed")
            self._source = attach_source(self._worker, dataset, total, *how, order)
            self._worker.loader.sampler.rereads = True
            self._compare_samples(dataset, num_workers)
        else:
            stream = stream_of(dataset)
            self._source = attach_stream(self._worker, stream, *how)
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
            return Items.of(pack(batch.items), epoch_seed, batch.keys)

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
        self._steps = BatchSteps(self._worker, self._feed, unfinished, end_batch, self._numbers)
        self.dataset = dataset
        self._length = total if is_numbered(dataset) and order is None else None
        self.batch_size = self._source.batch_size

    def _compare_samples(self, dataset: Any, num_workers: int) -> None:
        reads_here = num_workers == 0 or draws_nothing(dataset)
        read = read_seeded if reads_here else lambda data, index, _: held(data, index)
        if not isinstance(dataset, Dataset):  # files of edl's cannot change
            check = DataCheck(lambda: len(dataset), partial(read, dataset))
            self._worker.loader.compare_data(check)

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
        """Yield the numbers of the job's epochs for as long as the script asks for a further one.

        It is for scripts that do not say how long they train. When such a script has ended, the job
        has finished. A newcomer first warms up, as with :meth:`epochs`.
        """
        return self._epochs(None, None)

    def _epochs(self, count: int | None, max_steps: int | None) -> Iterator[int]:
        self._worker.on_resize(self._resized)
        self._worker.loader.progress.on_choice = self._batch_changed
        begin_loop()
        for epoch in self._steps.epochs(count, max_steps):
            self._check_length()
            check_schedulers()
            may_grow = self._worker.is_shared and not self._worker.logical  # the number of steps
            if may_grow and self._worker.rank == 0 and count is not None:
                warn_of_counted_steps(count)
            yield epoch

    def _check_length(self) -> None:
        """Raise a UsageError if the data set has another length than when the loader was made."""
        length = self._length and len(cast(Sized, self.dataset))
        if length != self._length:
            raise UsageError(
                f"the data set has {length} samples now, and had {self._length} when "
                "edl.DataLoader was made: a job trains the same ones in each epoch. Build the "
                "whole data set before the loop, or start another job with it, from saved weights"
            )

    def steps(self, count: int) -> Iterator[Any]:
        """Yield batches until the job has made ``count`` updates, over as many epochs as needed.

        The updates are those that :func:`edl.step` counts: all updates of the model since the job
        began, also before it was resumed or this worker joined. So all workers end with the same
        update, and end the job together. If the job has made them already, there is no batch. A
        newcomer first gets one batch to warm up.

        Raises:
            UsageError: ``count`` is no whole number above 0.
        """
        asked_length("loader.steps()", None, count)
        return self._all_batches(count)

    def _all_batches(self, count: int) -> Iterator[Any]:
        for _ in self._epochs(None, count):
            yield from self

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
                begin_piece(self._numbers)
                yield self._feed.data

    @property
    def epoch_is_over(self) -> bool:
        """Whether all samples of the epoch are trained, as known after ``optimizer.step()``.

        It is the same on all workers. Then the iterator has no further batch. It is also True after
        the one batch of a warm-up, and when the job has made all its updates.
        """
        return self._steps.is_over

    def stop(self) -> None:
        """End the training with the update that was made last; all workers call it after that one.

        The loop over :meth:`epochs` or :meth:`steps` then ends instead of going on to its next
        epoch, and all workers end the job together. It is for scripts that decide during the
        training how long they train, such as by early stopping. Call it in such a loop, between two
        steps. Before the job's first update, and in a warm-up, nothing happens.
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

        Each microbatch counts as one. Before this worker's first step in the job's ring the number
        is computed for the number of workers with which the job began, so that a schedule over
        ``epochs * len(loader)`` steps is the same on newcomers. After it the number is computed for
        the present number of workers and the present global batch.

        Raises:
            TypeError: the data set is a stream, whose length is unknown before its end.
        """
        if not self._source.known_total:
            raise TypeError("a DataLoader of a stream has no length: it shows at its end")
        return self._worker.loader.iterations_of_epoch


class _Parsed(torch.utils.data.Dataset[Any]):
    """A data set for PyTorch's loader whose "indices" are samples that the worker has read."""

    def __init__(self, parse: Callable[[Any], Any] | None, is_packed: bool) -> None:
        self._parse = parse
        self.is_packed = is_packed

    def pack(self, read: list[Any]) -> list[Any]:
        """Return the samples `read` of one batch in the form in which the loader gets them."""
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
    """Refuse arguments of PyTorch's loader that would change which samples a worker trains."""
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
