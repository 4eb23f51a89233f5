"""Train with Lightning on workers that come and go: :class:`ElasticStrategy`."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import torch
from lightning.fabric.plugins import ClusterEnvironment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import Accelerator, CUDAAccelerator
from lightning.pytorch.plugins import CheckpointIO, Precision
from lightning.pytorch.strategies import ParallelStrategy
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus
from lightning.pytorch.utilities.data import _update_dataloader as _rebuilt
from lightning.pytorch.utilities.model_helpers import is_overridden

import edl.torch as edl
from edl.binding.process import current_worker
from edl.errors import UsageError
from edl.lightning.checks import check_own_steps, why_refused
from edl.lightning.collectives import StrategyCollectives
from edl.lightning.loaders import LoaderView, PreparationLock, shared, training_loader
from edl.lightning.loop import ElasticLoop, TrainerState
from edl.torch.api import is_metric
from edl.torch.collectives import gpu_of_slot

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Tell Lightning rank and size of this worker: `ElasticEnvironment`.


class ElasticEnvironment(ClusterEnvironment):
    """The cluster environment of a worker, whose answers are those of the job's present ring.

    The launcher has started the process, and edl connects it: there is no main process, and
    Lightning starts none.
    """

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher of edl starts all processes."""
        return True

    @property
    def main_address(self) -> str:
        """An address that nobody connects to; Lightning requires one."""
        return "127.0.0.1"

    @property
    def main_port(self) -> int:
        """A port that nobody connects to; Lightning requires one."""
        return 0

    @staticmethod
    def detect() -> bool:
        """Return False: the environment is made by :class:`~edl.lightning.ElasticStrategy` only."""
        return False

    def world_size(self) -> int:
        """Return the number of workers in the ring."""
        return edl.size()

    def set_world_size(self, size: int) -> None:
        """Ignore ``size``, because the ring decides it."""

    def global_rank(self) -> int:
        """Return this worker's rank in the ring; never 0 while the worker warms up."""
        return edl.rank()

    def set_global_rank(self, rank: int) -> None:
        """Ignore ``rank``, because the ring decides it."""

    def local_rank(self) -> int:
        """Return this worker's slot on its host, which never changes."""
        return edl.local_rank()

    def node_rank(self) -> int:
        """Return the index of this worker's host among the hosts of the ring."""
        return edl.cross_rank()


class ElasticStrategy(ParallelStrategy):
    """A strategy of Lightning for workers that join, leave and die during the training.

    The number of workers is that of the job (``edl run -np 4``), whatever ``devices`` and
    ``num_nodes`` say. The training data are divided by edl's ledger, so each sample is trained once
    an epoch. A Trainer trains once in a job.

    Args:
        seed: the seed of the order of the samples; the same on all workers. None: that of the
            training loader's ``generator``, or 0 if it has none.
        global_batch: the samples of all workers together in a step, in place of the loader's
            ``batch_size``, as for :class:`edl.torch.DataLoader`; None: the loader's ``batch_size``
            is that of each worker.
        max_global_batch: the largest global batch; None: no limit.
        accelerator: the accelerator, if it is not given to the Trainer.
        checkpoint_io: the reader and writer of Lightning's checkpoints, if not the Trainer's.
        precision_plugin: the precision, if it is not given to the Trainer.

    Raises:
        UsageError: ``edl.init()`` was not called.
    """

    strategy_name = "edl"

    def __init__(
        self,
        *,
        seed: int | None = None,
        global_batch: int | tuple[int, int] | None = None,
        max_global_batch: int | None = None,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision_plugin: Precision | None = None,
    ) -> None:
        current_worker()
        super().__init__(
            accelerator=accelerator,
            cluster_environment=ElasticEnvironment(),
            checkpoint_io=checkpoint_io,
            precision_plugin=precision_plugin,
        )
        self._batching = {
            "seed": seed,
            "global_batch": global_batch,
            "max_global_batch": max_global_batch,
        }
        self._loader: edl.DataLoader | None = None
        self._loop: ElasticLoop | None = None
        self._divides: bool | None = None  # whether the workers share validation data
        self._in_evaluation_step = False
        self._leave: Any = None  # edl's handler of SIGTERM
        self._preparing = PreparationLock(sys.argv[0])
        self._collectives = StrategyCollectives(
            self._is_local,
            edl.batch_weight,
            lambda: current_worker().loader.open,
            lambda: bool(self.lightning_module.trainer.training),
        )
        rank_zero_only.rank = edl.rank()

    # --- who and where

    @property
    def root_device(self) -> torch.device:
        """The device of this worker: on GPUs that of its slot, else the first of the Trainer's."""
        if isinstance(self.accelerator, CUDAAccelerator):
            return gpu_of_slot()
        return self.parallel_devices[0] if self.parallel_devices else torch.device("cpu")

    @property
    def local_rank(self) -> int:
        """This worker's slot on its host; 0 while it prepares data, which each worker does."""
        return 0 if self._preparing.is_held else edl.local_rank()

    @property
    def node_rank(self) -> int:
        """The index of this worker's host; 0 while it prepares data, which each worker does."""
        return 0 if self._preparing.is_held else super().node_rank

    @property
    def is_distributed(self) -> bool:
        """True: Lightning then calls :meth:`reduce` for values logged with ``sync_dist=True``."""
        return True

    # --- set-up

    def setup_environment(self) -> None:
        """Set up the device, and let the workers of this host call ``prepare_data`` in turn.

        :meth:`barrier` ends a worker's turn. One that takes longer than an hour is a UsageError.
        """
        super().setup_environment()
        connector = self.lightning_module.trainer._accelerator_connector
        # Lightning shall put no DistributedSampler into loaders, because edl divides the data.
        if self._divides is None:
            self._divides = connector.use_distributed_sampler
        connector.use_distributed_sampler = False
        self._leave = signal.getsignal(signal.SIGTERM)
        self._preparing.acquire()

    def setup(self, trainer: Trainer) -> None:
        """Move the model to the device, and make its optimizer and the Trainer follow the job.

        What edl cannot follow raises UsageError.
        """
        module = self.lightning_module
        if trainer.state.fn == TrainerFn.FITTING:
            if why := why_refused(trainer, module):
                raise UsageError(f"with ElasticStrategy {why}")
            current_worker().check_trains()
            # It exists when the training begins.
            self._loop = ElasticLoop(trainer, lambda: cast(edl.DataLoader, self._loader))
        super().setup(trainer)
        if any(map(is_metric, module.modules())):
            edl.sync_metrics(module)
        if self._loop is not None and trainer.state.fn == TrainerFn.FITTING:
            check_own_steps(trainer, is_overridden("lr_scheduler_step", module))
            for optimizer in self.optimizers:
                edl.Optimizer(optimizer, module)
            state = TrainerState(trainer, lambda: self.loop.has_begun, self.loop.counts)
            edl.track(lightning=state)

    def _setup_model(self, model: torch.nn.Module) -> torch.nn.Module:
        return model if self._layer_sync is None else self._layer_sync.apply(model)

    def model_to_device(self) -> None:
        """Move the module to the device of this worker."""
        if self.root_device.type == "cuda":
            torch.cuda.set_device(self.root_device)
        self.model.to(self.root_device)

    def process_dataloader(self, dataloader: object) -> object:
        """Divide the data of a loader; a second training loader raises UsageError."""
        trainer = self.lightning_module.trainer
        if not trainer.training:
            return shared(dataloader, self._place, _rebuilt) if self._divides else dataloader
        if self._loader is not None:
            raise UsageError(
                "the script has two training loaders, and a job has one; join the data sets, such "
                "as by torch.utils.data.StackDataset"
            )
        # So the leases of the first step already suffice for all its batches.
        current_worker().loader.progress.step_batches = trainer.accumulate_grad_batches
        self._loader = training_loader(dataloader, **self._batching)
        return LoaderView(cast(torch.utils.data.DataLoader[Any], dataloader), self._loader)

    @property
    def loop(self) -> ElasticLoop:
        """The link to edl's loader; it exists in ``fit`` only."""
        assert self._loop is not None
        return self._loop

    # --- the training

    def on_train_start(self) -> None:
        """Enter the job's training."""
        signal.signal(signal.SIGTERM, self._leave)  # Lightning's ends the loop inside an epoch
        self.loop.begin()

    def on_train_end(self) -> None:
        """End the job's training together with all other workers."""
        self.loop.end()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Let means over an epoch count this batch with its samples, 0 for padding."""
        self.lightning_module.trainer.fit_loop._results.batch_size = edl.batch_weight()

    def block_backward_sync(self) -> AbstractContextManager[None]:
        """Add up the gradients of a batch that is not the last one of its step.

        Lightning decides which one is the last. At the end of the samples edl fills the group of
        ``accumulate_grad_batches`` with padding batches.
        """
        return edl.no_sync()

    def optimizer_step(
        self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **kwargs: Any
    ) -> Any:
        """Train the last batch of a step, and make the update with the job's mean gradient.

        The arguments are those of Lightning's method; the result is that of ``closure``.
        """
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        self.loop.end_update()
        return output

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's ``validation_step``, in which no values are exchanged."""
        return self._evaluate(super().validation_step, *args, **kwargs)

    def test_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's ``test_step``, in which no values are exchanged."""
        return self._evaluate(super().test_step, *args, **kwargs)

    def _evaluate(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._in_evaluation_step = True
        try:
            return step(*args, **kwargs)
        finally:
            self._in_evaluation_step = False

    # --- exchanges

    def _is_local(self) -> bool:
        if not self._is_shared():
            return True
        if self._in_evaluation_step:
            raise UsageError(
                "the workers have different numbers of validation batches, so they exchange "
                "nothing in one: log with on_step=False, on_epoch=True, sync_dist=True, and gather "
                "in on_validation_epoch_end"
            )
        return False

    def _is_shared(self) -> bool:
        if self._loop is None or not self._loop.is_training:
            return False
        status = self.lightning_module.trainer.state.status
        return status == TrainerStatus.RUNNING and edl.size() > 1

    def _place(self) -> tuple[int, int]:
        return (edl.rank(), edl.size()) if self._is_shared() else (0, 1)

    def barrier(self, name: str | None = None) -> None:
        """Go on at once: the workers wait for each other in each step, and at the end of ``fit``.

        At the place ``pre_setup`` of Lightning's code the data are prepared.
        """
        if name == "pre_setup":
            self._preparing.release()

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Return the object of rank ``src``; before and after the training, this worker's own."""
        answers = self._collectives.gather(obj, "broadcast()")
        return answers[src] if len(answers) > 1 else obj

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return ``tensor`` reduced over all workers; what is no tensor stays as it is.

        ``reduce_op`` is "mean", "sum", "min", "max" or "product"; ``group`` is not used.
        """
        if not isinstance(tensor, torch.Tensor):
            return tensor
        return self._collectives.reduce(tensor, reduce_op)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all workers, or with ``all=False`` any of them, have decided so."""
        decisions = self._collectives.gather(bool(decision), f"reduce_boolean_decision(all={all})")
        return False not in decisions if all else True in decisions

    def all_gather(
        self, tensor: torch.Tensor, group: Any = None, sync_grads: bool = False
    ) -> torch.Tensor:
        """Return the tensors of all workers, one row for each in rank order; ``group`` is not used.

        Raises:
            UsageError: gradients are to flow back to the other workers, or shapes differ.
        """
        if sync_grads and self._is_shared():
            raise UsageError(
                "all_gather(sync_grads=True) would send gradients to the workers that gave the "
                "tensors, which edl cannot; leave out sync_grads"
            )
        rows = self._collectives.gather(tensor.detach().cpu(), "all_gather()")
        if len({tuple(each.shape) for each in rows}) > 1:
            shapes = ", ".join(str(tuple(each.shape)) for each in rows)
            raise UsageError(f"all_gather() of the shapes {shapes}; edl.gather takes such tensors")
        return torch.stack([each.to(tensor.device) for each in rows])

    def teardown(self) -> None:
        """Move model and optimizer to the CPU, and let go of what was set up."""
        self._preparing.release()
        super().teardown()
