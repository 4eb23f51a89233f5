"""Provide ``edl.huggingface.Accelerator``: Accelerate's loop, with workers that come and go.

:class:`Accelerator` overrides methods of ``accelerate.Accelerator`` (tried with release 1.15). For
Accelerate each worker is a single process; edl divides the data and averages the gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import accelerate
import torch
from accelerate.utils import DistributedType, send_to_device
from accelerate.utils.operations import recursively_apply

import edl.binding.needs_horovod
import edl.torch
from edl.errors import UsageError
from edl.huggingface.loaders import TrainingDataLoader
from edl.huggingface.process_state import follow_rank, goes_first, use_one_gpu, without_wrapper
from edl.huggingface.refused import refused_plugin
from edl.torch.api import exchange, reduced, tensors_of_all
from edl.torch.loader import is_shuffled, training_options

PREPARE_FIRST = (
    "accelerator.prepare() got an optimizer whose model it does not know; give it the model in the "
    "same call, or before"
)
TWO_LOADERS = (
    "accelerator.prepare() got a loader with shuffle=True after another one, which it took for the "
    "training data; prepare the training loader first, and the loaders for evaluation after it"
)
NO_SKIP = (
    "accelerator.skip_first_batches() would leave out batches of this worker only; call "
    "edl.checkpoint(directory) before the loop, and continue with `edl run --resume`, which goes "
    "on at the exact sample"
)


class Accelerator(accelerate.Accelerator):
    """Accelerate's ``Accelerator`` in an elastic job; it takes the same arguments.

    The constructor calls ``edl.init()`` if the script has not. A script changes the line of its
    loop: ``for epoch in train_dataloader.epochs(n):``.

    Raises:
        UsageError: a plugin for DeepSpeed, FSDP, Megatron-LM or model parallelism is given, or
            batches are to be split or dispatched, or the script was started by another launcher.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        if not edl.torch.is_initialized():
            edl.torch.init()
        why = refused_plugin(named)
        if why is not None:
            raise UsageError(why)
        super().__init__(*arguments, **named)
        use_one_gpu()
        if self.distributed_type != DistributedType.NO:
            raise UsageError(
                f"Accelerate is set up for {self.distributed_type.value}, and edl averages the "
                "gradients; start the script with `edl run`, not with `accelerate launch`"
            )
        follow_rank()
        edl.torch.on_resize(lambda *_: follow_rank())
        self._training: TrainingDataLoader | None = None
        self._declared: Any = None  # PyTorch's loader of the training data
        self._tracked = 0
        self._first_calls = 0
        self._asked_trackers: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    # --- the objects of the script

    def prepare(self, *args: Any, device_placement: Any = None) -> Any:
        """Prepare models, optimizers, loaders and LR schedulers, in any order; return them.

        An optimizer then applies the mean gradient of all workers. The first loader (or the one
        with ``shuffle=True``) becomes the training loader of the job. Other loaders are for
        evaluation, and each worker reads all of their data.

        Args:
            args: the objects.
            device_placement: for each object, whether it is put on the device; None: all are.

        Raises:
            UsageError: the model of an optimizer is unknown, or the training loader cannot be used.
        """
        models = [each for each in args if isinstance(each, torch.nn.Module)]
        if self.device_placement:
            for model in models:  # before edl.Optimizer looks at the parameters
                if not self.verify_device_map(model):
                    model.to(self.device)
        for each in args:
            raw = without_wrapper(each)
            if isinstance(raw, torch.optim.Optimizer) and not hasattr(raw, "synchronize"):
                edl.torch.Optimizer(raw, self._model_of(raw, models))
        loaders = [each for each in args if isinstance(each, torch.utils.data.DataLoader)]
        if self._training is None and loaders:
            self._declared = next(filter(is_shuffled, loaders), loaders[0])
        return super().prepare(*args, device_placement=device_placement)

    def _model_of(self, optimizer: torch.optim.Optimizer, models: Iterable[Any]) -> Any:
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for model in (*models, *self._models):
            if any(id(one) in own for one in model.parameters()):
                return model
        raise UsageError(PREPARE_FIRST)

    def prepare_data_loader(self, data_loader: Any, *arguments: Any, **named: Any) -> Any:
        """Return the job's loader of the training data, or a loader for evaluation.

        Raises:
            UsageError: a second loader has ``shuffle=True``, or the first has a sampler of its own.
        """
        if isinstance(data_loader, edl.torch.DataLoader):
            return data_loader
        declared = data_loader if self._declared is None else self._declared
        if self._training is None and declared is data_loader:
            put = functools.partial(
                send_to_device, device=self.device, non_blocking=self.non_blocking
            )
            self._training = TrainingDataLoader(
                put if self.device_placement else None, **training_options(data_loader)
            )
            return self._training
        if self._training is not None and is_shuffled(data_loader):
            raise UsageError(TWO_LOADERS)
        return super().prepare_data_loader(data_loader, *arguments, **named)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Return an LR scheduler that counts the samples of the job, or its updates.

        It makes a step for as many samples as a batch (or the accumulated batches) of one worker
        has, so it keeps its place in the data when workers come and go. In a loop over
        ``epochs(max_steps=n)`` or ``steps(n)`` of the training loader it makes one step for each
        update.
        """
        prepared = super().prepare_scheduler(scheduler)
        loader = self._training
        plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
        if loader is None or plateau or not self.step_scheduler_with_optimizer:
            return prepared
        loader.count_samples(prepared, loader.batch_size * self.gradient_accumulation_steps)
        return prepared

    def register_for_checkpointing(self, *objects: Any) -> None:
        """Save the state of ``objects`` with ``save_state``; newcomers of the job get it, too."""
        super().register_for_checkpointing(*objects)
        for each in objects:
            edl.torch.track(**{f"accelerate.{self._tracked}": each})
            self._tracked += 1

    # --- a step

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Accumulate gradients on this worker, as ``edl.no_sync()`` does, for any ``model``."""
        return edl.torch.no_sync()

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """Return ``dataloader``, unless it is the training loader, without its first batches."""
        if isinstance(dataloader, edl.torch.DataLoader):
            raise UsageError(NO_SKIP)
        return super().skip_first_batches(dataloader, num_batches)

    # --- values of all workers

    def gather(self, tensor: Any) -> Any:
        """Return the tensors of all workers, one after the other along the first dimension.

        All workers call it at the same point: before ``backward()``, or after the update; in
        between it raises UsageError. In a loop over a loader for evaluation, and outside of the
        training, the result is this worker's own tensor, since each worker evaluates all of the
        data. ``tensor`` may be nested containers of tensors.
        """

        def gathered(one: torch.Tensor) -> torch.Tensor:
            rows = one.reshape(1) if one.ndim == 0 else one
            return torch.cat(self._each(rows))

        return recursively_apply(gathered, tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Return what :meth:`gather` does, without the values of padding batches.

        A worker that has no samples left in an epoch before the others do gets a padding batch,
        whose samples another worker may have trained.
        """
        if (loader := self._training_now) is not None and loader.has_padding:
            input_data = recursively_apply(_no_rows, input_data)
        return super().gather_for_metrics(input_data, use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Return the sum or the mean of the tensors of all workers; where: see :meth:`gather`.

        Args:
            tensor: a tensor, or nested containers of tensors, of one shape on all workers.
            reduction: "sum", "mean" or "none"; else UsageError is raised.
            scale: the result is multiplied by it.
        """
        if reduction not in ("sum", "mean", "none"):
            raise UsageError(
                f"accelerator.reduce(): the reduction is {reduction!r}; take sum or mean"
            )
        if reduction == "none":
            return tensor

        def of_all(one: torch.Tensor) -> torch.Tensor:
            total = reduced(self._each(one), reduction)
            return total * scale if scale != 1.0 else total

        return recursively_apply(of_all, tensor)

    def _each(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        return [tensor] if self._training_now is None else tensors_of_all(tensor, exchange)

    @property
    def _training_now(self) -> TrainingDataLoader | None:
        """The training loader in its loop; None outside of it, or in a loop for evaluation."""
        loader = self._training
        if loader is None or not loader.is_training or self.gradient_state.in_dataloader:
            return None
        return loader

    # --- the parts and the order of the workers

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """Give each worker a part of ``inputs``, as Accelerate does with as many processes.

        With ``apply_padding`` the last element is repeated until all parts are equally long.
        """
        size, rank = edl.torch.size(), edl.torch.rank()
        yield _part(inputs, min(rank, size - 1), size, apply_padding)

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Let rank 0 run the body before the others; with several hosts, the first of each host.

        If it takes longer than an hour, UsageError is raised.
        """
        self._first_calls += 1
        with goes_first(self._first_calls):
            yield

    local_main_process_first = main_process_first

    # --- what one worker does for all

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Any:
        """Return ``function`` wrapped, so that a call does something on rank 0 only."""
        return self.on_process(function, 0)

    on_local_main_process = on_main_process

    @property
    def is_last_process(self) -> bool:
        """Whether this worker has the last rank."""
        return bool(self.process_index == edl.torch.size() - 1)

    def on_last_process(self, function: Callable[..., Any]) -> Any:
        """Return ``function`` wrapped, so that a call does something on the last rank only."""
        return self.on_process(function, -1)

    def on_process(
        self, function: Callable[..., Any] | None = None, process_index: int | None = None
    ) -> Any:
        """Return ``function`` wrapped, so that a call does something on one rank; -1: the last.

        Without a function the result is a decorator.
        """
        if function is None:
            return functools.partial(self.on_process, process_index=process_index)

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            last = edl.torch.size() - 1
            own = last if process_index == -1 else process_index
            return function(*arguments, **named) if self.process_index == own else None

        return called

    def on_local_process(
        self, function: Callable[..., Any] | None = None, local_process_index: int | None = None
    ) -> Any:
        """Return what :meth:`on_process` does, as ranks on a host are ranks of the job here."""
        return self.on_process(function, local_process_index)

    def init_trackers(self, *arguments: Any, **named: Any) -> None:
        """Start the trackers on rank 0; a later rank 0 starts its own when it logs."""
        self._asked_trackers = arguments, named
        self._start_trackers()

    def _start_trackers(self) -> None:
        if self._asked_trackers is not None and self.is_main_process:
            (arguments, named), self._asked_trackers = self._asked_trackers, None
            super().init_trackers(*arguments, **named)

    def log(self, values: Any, *arguments: Any, **named: Any) -> None:
        """Log ``values``, numbers and texts by name, to the trackers, on rank 0 only."""
        if self.is_main_process:
            self._start_trackers()
            super().log(values, *arguments, **named)

    def save_state(self, *arguments: Any, **named: Any) -> Any:
        """Save the state without the place in the data, on rank 0; return the folder there."""
        return super().save_state(*arguments, **named) if self.is_main_process else None


def _part(inputs: Any, rank: int, size: int, pads: bool) -> Any:
    """Return one worker's part of the inputs; the first ones have one element more."""
    if isinstance(inputs, Mapping):
        lengths = {name: len(values) for name, values in inputs.items()}
        if len({*lengths.values()}) > 1:
            raise UsageError(f"split_between_processes() got values of other lengths: {lengths}")
        return {name: _part(values, rank, size, pads) for name, values in inputs.items()}
    total = len(inputs)
    each, more = divmod(total, size)
    start = rank * each + min(rank, more)
    indices = [*range(start, start + each + (rank < more))]
    if pads and total:
        indices += [total - 1] * (each + (more > 0) - len(indices))
    if isinstance(inputs, torch.Tensor):
        return inputs[indices]
    if hasattr(inputs, "select"):  # a Dataset of the library datasets
        return inputs.select(indices)
    return type(inputs)(inputs[index] for index in indices)


def _no_rows(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.reshape(1) if tensor.ndim == 0 else tensor)[:0]
