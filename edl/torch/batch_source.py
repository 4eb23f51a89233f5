"""Form this worker's batches from its leases, and have PyTorch's loader load them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from edl.core.step.batch import Batch
from edl.errors import DataError, UsageError
from edl.framework.first_batch import FirstBatch
from edl.framework.forks import holding_sigterm
from edl.torch.loader_process import forks, make_directory_of_sockets
from edl.torch.padding import PaddingData
from edl.torch.seeding import Items
from edl.worker.worker import Worker

_NONE = object()  # stands for "no batch"; None may be the result of a collate_fn


class LoaderBatchSource:
    """A source of this worker's batches: formed from its leases, loaded by PyTorch's loader."""

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
        if fresh is _NONE and self._first is None and self._has_more():
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
        """Return a padding batch for the open step, and put its data into `data`."""
        self.data = self._padding.take()
        return self._worker.loader.sampler.warm_up()

    def _take(self, waits: bool) -> Any:
        """Return the data of the next batch; `_NONE` if the loader has none, or none yet."""
        if self._first is None:
            return next(self._arriving, _NONE)
        if not (waits or self._first.has_come):
            return _NONE
        first, self._first = self._first, None
        return first.take()

    def _has_more(self) -> bool:
        worker = self._worker
        return worker.warming_up or worker.loader.sampler.has_more(worker.loader.ledger)

    def _open(self) -> Iterator[Any]:
        """Start PyTorch's loader with its processes, and return its iterator over batches."""
        # Those of this epoch are used again: the loader is started whenever new leases have come.
        if not self._keeps_processes and self._opened_in != self._worker.loader.epoch:
            self._end_processes()
        self._opened_in = self._worker.loader.epoch
        if self._loader.num_workers > 0:
            make_directory_of_sockets()
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
        """Form the next batch to load, from the leases; for a newcomer, the one of its warm-up."""
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
        """Load a batch of the epoch's first samples, for padding where no data are kept."""
        items = self._as_sent(self._worker.loader.sampler.warm_up())
        dataset: Any = self._loader.dataset
        collate = self._loader.collate_fn
        assert collate is not None
        if hasattr(dataset, "__getitems__"):
            return collate(dataset.__getitems__(items))
        return collate([dataset[item] for item in items])


class Leases(torch.utils.data.Sampler[list[Any]]):
    """The batch sampler of PyTorch's loader, which yields batches while the leases have samples."""

    def __init__(self, form: Callable[[], Batch | None], as_sent: Callable[[Batch], Items]) -> None:
        self._form = form
        self._as_sent = as_sent

    def __iter__(self) -> Iterator[list[Any]]:
        while (batch := self._form()) is not None:
            yield self._as_sent(batch)
