"""Run Lightning's training loop on the batches and epochs of the job: :class:`ElasticLoop`.

Lightning's loops stay in charge. Where they ask for a batch, edl's loader gives one, and workers
join and leave there; after each update Lightning is told whether the epoch is over, which nobody
knows before. A newcomer trains one batch by these loops to warm up, and then takes over the
Trainer's counters from the job.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.loggers import CSVLogger

import edl.torch as edl
from edl.binding.loop import average_buffers
from edl.binding.process import current_worker
from edl.errors import UsageError
from edl.lightning.epoch_counts import EpochCounts, InBatches, accumulated_batches, old_counts
from edl.lightning.loaders import limited_batches
from edl.step.source import UNREACHED_STEPS, UpdateInterval
from edl.torch.api import end_batch, is_metric

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Send the state of a Trainer to newcomers and into checkpoints: `TrainerState`.


PLAIN_VERSION = (int, str)


class TrainerState:
    """The state of a Trainer beside model and optimizer, as an object that `edl.track` takes."""

    edl_compared = False  # it is not looked at in each step

    def __init__(
        self, trainer: Trainer, has_begun: Callable[[], bool], counts: EpochCounts
    ) -> None:
        self._trainer = trainer
        # Before the first batch the workers of a new job take over the folders only: all have
        # loaded the same checkpoint of Lightning, if any.
        self._has_begun = has_begun
        self._counts = counts

    def state_dict(self) -> dict[str, Any]:
        trainer = self._trainer
        # Each worker looks for the next free version of a folder; all have to write into one.
        folders = {
            "versions": [getattr(each, "_version", None) for each in trainer.loggers],
            "checkpoints": [str(each.dirpath) for each in self._model_checkpoints()],
        }
        state: dict[str, Any] = {"folders": folders, "begun": self._has_begun()}
        if not state["begun"]:
            return state
        return {
            **state,
            "loops": copy.deepcopy(trainer.fit_loop.state_dict()),
            "callbacks": {each.state_key: each.state_dict() for each in trainer.callbacks},
            "datamodule": {} if trainer.datamodule is None else trainer.datamodule.state_dict(),
            "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
            "should_stop": trainer.should_stop,
            "counts": self._counts.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        trainer = self._trainer
        versions, paths = state["folders"]["versions"], state["folders"]["checkpoints"]
        for logger, version in zip(trainer.loggers, versions, strict=True):
            if isinstance(version, PLAIN_VERSION) and hasattr(logger, "_version"):
                logger._version = version
        for callback, path in zip(self._model_checkpoints(), paths, strict=True):
            callback.dirpath = path
        if not state["begun"]:
            return
        trainer.fit_loop.load_state_dict(state["loops"])
        # Batches trained of the epoch are counted when the loop gets its next one.
        stand_before_epoch(trainer, trainer.fit_loop.epoch_progress.current.processed)
        for each in trainer.callbacks:
            if (theirs := state["callbacks"].get(each.state_key)) is not None:
                each.load_state_dict(copy.deepcopy(theirs))
        if trainer.datamodule is not None and state["datamodule"]:
            trainer.datamodule.load_state_dict(state["datamodule"])
        trainer.callback_metrics.update(
            {name: torch.tensor(value) for name, value in state["metrics"].items()}
        )
        trainer.should_stop = state["should_stop"]
        self._counts.load_state_dict(state.get("counts") or old_counts(state))

    def _model_checkpoints(self) -> list[ModelCheckpoint]:
        return [one for one in self._trainer.callbacks if isinstance(one, ModelCheckpoint)]


def stand_before_epoch(trainer: Trainer, epoch: int) -> None:
    """Set the loops of `trainer` as if `epoch` epochs were trained and no other was begun."""
    fit = trainer.fit_loop
    for progress in (fit.epoch_progress.current, fit.epoch_progress.total):
        progress.ready = progress.started = progress.processed = progress.completed = epoch
    fit.epoch_loop.batch_progress.is_last_batch = False
    for loop in (fit, fit.epoch_loop, fit.epoch_loop.val_loop):
        loop.on_iteration_done()  # forgets a restart inside an epoch


LONGER = (
    "Lightning goes on, and the job ends after {} epochs, as trainer.fit() has asked for: give the "
    "Trainer its max_epochs or max_steps, and do not change them during the training"
)
NO_UPDATE = (
    "the training was stopped before its first update, and a job ends after an update: set "
    "trainer.should_stop after the first accumulate_grad_batches batches"
)
UNKNOWN_EPOCH = (
    "a GradientAccumulationScheduler changes how many batches make an update, and nobody knows how "
    "many samples an epoch has, so an LR scheduler cannot count its steps: let it count epochs, "
    '"interval": "epoch", or give the Trainer max_steps'
)
Profile = Callable[[], None]


class ElasticLoop:
    """The link between the loops of one Trainer and edl's loader: Lightning's data fetcher."""

    def __init__(self, trainer: Trainer, loader: Callable[[], edl.DataLoader]) -> None:
        # The job trains, from the time when this worker has its state to the end of `fit`; and the
        # first batch was asked for.
        self.is_training = self.has_begun = False
        self.counts = EpochCounts()
        # Lightning's: batches handed out, to which it adds; and whether the present one is the
        # epoch's last, as far as is known before its update (`trainer.is_last_batch`).
        self.fetched, self.done = 0, False
        self._trainer = trainer
        self._loader_of = loader  # it exists when the training begins
        self._epochs: Iterator[int] = iter(())
        self._batches: Iterator[Any] = iter(())
        self._epoch = 0
        self._writes = False
        self._schedulers: list[InBatches] = []
        self._first_of_update = self._batches_of_update = 0
        self._expected: int | None = None  # batches until the epoch's end, as the update began
        self._start_profiler: Profile = _nothing
        self._stop_profiler: Profile = _nothing

    # --- the life of a training

    def begin(self) -> None:
        """Enter the job's training: wait for its state; a newcomer warms up and joins."""
        trainer, fit = self._trainer, self._trainer.fit_loop
        stand_before_epoch(trainer, self._epochs_trained())
        fit._data_fetcher = self
        batches = fit.epoch_loop.batch_progress
        fit.epoch_loop._num_ready_batches_reached = lambda: batches.is_last_batch
        self._set_limits()
        self._count_samples()
        left = None if fit.max_epochs == -1 else max(0, fit.max_epochs - trainer.current_epoch)
        steps = math.inf if trainer.max_steps == -1 else trainer.max_steps - trainer.global_step
        endless = UNREACHED_STEPS if left is None else None
        limit = max(1, int(steps)) if steps != math.inf else endless
        self._epochs = self._loader.epochs(left, max_steps=limit)
        self._next_epoch()
        if edl.is_warming_up():
            self._warm_up()
            self._next_epoch()
        self.is_training = True
        self.counts.enter()
        if self._loader.epoch_is_over or self.counts.is_at_limit:  # resumed where an epoch ended
            self._next_epoch()
        self.counts.first_epoch = trainer.current_epoch - self._epoch
        self._follow_rank(starts=True)

    def end(self) -> None:
        """End the training together with all other workers, also inside an epoch."""
        if self.is_training:
            self._loader.stop()
            for _ in self._epochs:
                if edl.step() == 0:
                    raise UsageError(NO_UPDATE)
                raise AssertionError("the training has gone on after its end")
            self.is_training = False

    def _next_epoch(self) -> bool:
        self._batches = iter(())
        epoch = next(self._epochs, None)
        if epoch is not None:
            self._epoch = epoch
        return epoch is not None

    def _epochs_trained(self) -> int:
        """Return how many epochs the Trainer has trained, by a checkpoint that it has loaded."""
        epoch = self._trainer.fit_loop.epoch_progress.current
        batch = self._trainer.fit_loop.epoch_loop.batch_progress
        if batch.is_last_batch or epoch.processed == epoch.ready:
            return int(epoch.ready)
        if batch.current.ready == 0:
            return int(epoch.processed)
        raise UsageError(
            f"the checkpoint of ckpt_path was saved after batch {batch.current.ready} of an epoch, "
            "and edl begins with a whole one: give a checkpoint from the end of an epoch, or let "
            "edl.checkpoint save the job, which `edl run --resume` continues at the exact sample"
        )

    def _set_limits(self) -> None:
        """Let an epoch end where its samples end, or earlier by `limit_train_batches`."""
        trainer, expected = self._trainer, self._trainer.fit_loop.max_batches
        limit, epoch_loop = trainer.limit_train_batches, trainer.fit_loop.epoch_loop
        if trainer.val_check_batch == expected:  # validate where the epoch ends, not by the number
            ends = partial(self._validates_at_end, epoch_loop._should_check_val_fx)
            epoch_loop._should_check_val_fx = ends
        if not isinstance(limit, int):
            limit = None if limit == 1.0 or math.isinf(expected) else int(expected)
        self.counts.limit = self.counts.first_limit = limit

    def _validates_at_end(self, of_lightning: Callable[[Any], bool], fetcher: Any) -> bool:
        """Stand in for Lightning's decision to validate: without a number it waits for the end."""
        expected, self._trainer.val_check_batch = self._trainer.val_check_batch, math.inf
        try:
            return of_lightning(fetcher)
        finally:
            self._trainer.val_check_batch = expected

    def _count_samples(self) -> None:
        """Let LR schedulers that Lightning steps after each update count samples instead."""
        # They then end with the last epoch, whatever the number of workers; Lightning's
        # `estimated_stepping_batches` is for the workers with which the job began.
        trainer = self._trainer
        if trainer.max_steps != -1:  # the training counts updates, so do they
            return
        samples: Any = self._loader.dataset
        counts, accumulated = self.counts, accumulated_batches(trainer)
        counts.samples = len(samples) if hasattr(samples, "__len__") else None
        counts.first_batch = current_worker().loader.first_global_batch
        for config in trainer.lr_scheduler_configs:
            if config.interval == "step" and not config.reduce_on_plateau:
                interval = UpdateInterval(
                    config.frequency, accumulated, counts.samples, counts.limit
                )
                if not interval.is_known:
                    raise UsageError(UNKNOWN_EPOCH)
                self._schedulers.append(InBatches(config.scheduler, interval, counts))
        if self._schedulers:
            loop = trainer.fit_loop.epoch_loop
            loop.update_lr_schedulers = partial(self._update_rates, loop.update_lr_schedulers)

    def _update_rates(
        self, others: Callable[[str, bool], None], interval: str, update_plateau_schedulers: bool
    ) -> None:
        if interval != "step" or update_plateau_schedulers:
            others(interval, update_plateau_schedulers)
        else:
            for scheduler in self._schedulers:
                scheduler.step()

    def _warm_up(self) -> None:
        """Train one batch by Lightning's loops; what the job's state does not replace is reset."""
        trainer, fit = self._trainer, self._trainer.fit_loop
        fit.on_advance_start()
        fit.advance()
        trainer._logger_connector.reset_results()
        trainer._logger_connector.reset_metrics()
        for module in trainer.lightning_module.modules():
            if is_metric(module):
                module.reset()

    # --- the data fetcher of Lightning's epoch loop

    def __iter__(self) -> ElasticLoop:
        return self

    def __next__(self) -> tuple[Any, int, int]:
        self._start_profiler()
        try:
            batch = self._next_batch()
        finally:
            self._stop_profiler()
        self.fetched += 1
        index = self._begin_batch()
        current = self._trainer.fit_loop.epoch_loop.batch_progress.current
        current.ready = current.started = current.processed = current.completed = index
        self._follow_rank()
        self._limit_validation()
        return batch, index, 0  # 0: the number of the loader

    def teardown(self) -> None:
        self._batches = iter(())

    def _next_batch(self) -> Any:
        if not edl.is_warming_up():
            self.has_begun = True
            while self._epoch < self._trainer.current_epoch - self.counts.first_epoch:
                if not self._next_epoch():
                    raise UsageError(LONGER.format(self._trainer.current_epoch))
        try:
            return next(self._batches)
        except StopIteration:
            if self._loader.epoch_is_over:
                raise
        self._batches = iter(self._loader)
        return next(self._batches)

    def _begin_batch(self) -> int:
        """Return the index of the batch that was handed out; decide whether it is the last one."""
        group = self._trainer.accumulate_grad_batches
        if not self._batches_of_update:
            # All go on with the same index if a crash has let some make the update before earlier.
            self._first_of_update = -(-self.counts.batch // group) * group
            self._expected = self._batches_left()
        index = self._first_of_update + self._batches_of_update
        self._batches_of_update += 1
        is_last = index + 1 == self.counts.limit or self._batches_of_update == self._expected
        self.done = is_last and not edl.is_warming_up()
        return index

    def _batches_left(self) -> int | None:
        progress = current_worker().loader.progress
        if progress.ledger.free or not progress.source.known_total:
            return None
        members, batching = progress.members, progress.source.batching
        return max(
            -(-progress.ledger.held_samples(worker) // batching.of_one(rank, len(members)))
            for rank, worker in enumerate(members)
        )

    # --- after an update

    def end_update(self) -> None:
        if current_worker().loader.open:  # a GradScaler has skipped the update
            end_batch()
        self._batches_of_update = 0
        if not edl.is_warming_up():  # else a validation would follow
            batch_progress = self._trainer.fit_loop.epoch_loop.batch_progress
            is_trained = current_worker().loader.ledger.finished
            batch_progress.is_last_batch = is_trained or self.counts.is_at_limit
            if batch_progress.is_last_batch or self._loader.epoch_is_over:
                average_buffers(current_worker())  # before the validation
            self.counts.end_update()
            self._follow_rank()
            self._limit_validation()

    def _limit_validation(self) -> None:
        """Let a fraction in `limit_val_batches` be one of this worker's part of the data."""
        # Lightning has counted before the training, when each worker had all the data.
        limit, loop = self._trainer.limit_val_batches, self._trainer.fit_loop.epoch_loop.val_loop
        loader = loop._combined_loader
        if loader is not None and isinstance(limit, float) and 0.0 < limit < 1.0:
            loop._max_batches = limited_batches(loader.flattened, limit, loop._max_batches)

    def _follow_rank(self, starts: bool = False) -> None:
        rank_zero_only.rank = edl.rank()
        before, self._writes = self._writes, edl.rank() == 0
        if starts or before or not self._writes:  # at the start Lightning has set up both
            return
        for each in self._trainer.loggers:
            if isinstance(each, CSVLogger):
                keep_metrics_file(Path(each.log_dir) / "metrics.csv", edl.step())
        bar = self._trainer.progress_bar_callback
        if isinstance(bar, ProgressBar):
            bar.enable()
            bar.on_train_start(self._trainer, self._trainer.lightning_module)
            bar.on_train_epoch_start(self._trainer, self._trainer.lightning_module)

    @property
    def _loader(self) -> edl.DataLoader:
        return self._loader_of()


def keep_metrics_file(path: Path, step: int) -> None:
    """Rename the file of an earlier rank 0's CSVLogger, which that of the new one would delete."""
    if path.exists():
        kept = path.with_name(f"metrics-until-step-{step}.csv")
        path.rename(kept)
        logger.info("rank 0 has changed: its metrics until now are in %s", kept)


def _nothing() -> None:
    pass
