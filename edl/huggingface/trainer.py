"""Provide ``edl.huggingface.Trainer``: Hugging Face's ``Trainer``, with workers that come and go.

:class:`ElasticTrainerMixin` overrides methods of ``transformers.Trainer`` (tried with release
5.24). It changes where batches come from, when an epoch and the training end, which worker saves
and logs, and what a newcomer does before it joins.
"""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
import transformers

import edl.binding.needs_horovod
import edl.torch
from edl.binding import process
from edl.binding.loop import refuse_logical
from edl.binding.process import current_worker
from edl.errors import UsageError
from edl.huggingface.evaluation import can_share, evaluate_shared
from edl.huggingface.job_state import TrainerJobState
from edl.huggingface.label_weights import LabelWeights, MeanLoss, divisor
from edl.huggingface.process_state import follow_rank, use_one_device, without_wrapper
from edl.huggingface.refused import (
    ONE_TRAINING,
    from_all,
    from_rank_0,
    option_text,
    refused_model,
    refused_option,
)
from edl.step.source import steps_left
from edl.torch.api import end_batch
from edl.torch.lr_schedules import InSamples

# What the mixin overrides is of the class that follows it in the bases of a subclass.
Base: Any = transformers.Trainer if TYPE_CHECKING else object
logger = logging.getLogger(__name__)
MANY = sys.maxsize  # steps of an epoch, whose true number is known at its end
NO_RESUME = (
    "trainer.train(resume_from_checkpoint=...) would train samples of the interrupted epoch twice; "
    "call edl.checkpoint(directory) before train(), and continue with `edl run --resume`, which "
    "goes on at the exact sample; or begin a new training with the weights, "
    "from_pretrained(checkpoint)"
)
IGNORED = (
    "trainer.train(resume_from_checkpoint=...) is ignored: this script calls edl.checkpoint, which "
    "continues at the exact sample when the job is started with `edl run --resume`"
)
OWN_SAMPLER = (
    "{kind} overrides _get_train_sampler(), and the job's ledger decides which worker trains what; "
    "leave the method out, and order or repeat the samples in the data set"
)


class ElasticTrainerMixin(Base):
    """A mixin that makes a subclass of ``transformers.Trainer`` train in an elastic job.

    Write it before the class: ``class MyTrainer(ElasticTrainerMixin, SFTTrainer)``. The constructor
    calls ``edl.init()`` if the script has not.

    Raises:
        UsageError: from the constructor, for options that cannot work in an elastic job; from
            :meth:`train`, for a second training and for ``resume_from_checkpoint``.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        if not edl.torch.is_initialized():
            edl.torch.init()
        args = named.get("args", arguments[1] if len(arguments) > 1 else None)
        if args is not None:
            self._check(args, named.get("model", arguments[0] if arguments else None))
        super().__init__(*arguments, **named)
        self._check(self.args, self.model)
        follow_rank()
        edl.torch.on_resize(lambda *_: follow_rank())
        self._job_state = TrainerJobState(self)
        self._job_callback = _JobCallback(self)
        self.callback_handler.callbacks.insert(0, self._job_callback)
        self._loader: edl.torch.DataLoader | None = None
        self._epochs: Iterator[int] = iter(())
        self._epoch: int | None = None  # the job's, while this worker trains
        self._joined = False  # this worker has joined a job that trained
        self._in_epoch = False
        self._label_weights = LabelWeights()
        self._mean_loss = MeanLoss()
        self._steps_per_epoch = 0  # of Trainer's schedule, once the training begins
        self.current_flos: float = 0

    @staticmethod
    def _check(args: Any, model: Any) -> None:
        why = refused_option(args) or refused_model(model)
        if why is not None:
            raise UsageError(why)
        use_one_device(args)
        follow_rank()

    # --- the beginning

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **named: Any) -> Any:
        """Train as ``transformers.Trainer.train`` does, while workers come and go.

        Args:
            resume_from_checkpoint: None or False. A newcomer ignores a value, because it gets the
                job's state; so does a job with ``edl.checkpoint``, which resumes by that.
            arguments: further arguments of ``transformers.Trainer.train``.
            named: the same, by name.

        Raises:
            UsageError: the job has trained before, or is to resume from a checkpoint of Hugging
                Face's.
        """
        if self._loader is not None:
            raise UsageError(f"trainer.train() was called before: {ONE_TRAINING}")
        if resume_from_checkpoint and not edl.torch.is_warming_up():
            if not process.current_worker().checkpointing.saves:
                raise UsageError(NO_RESUME)
            logger.warning("%s", IGNORED)
        return super().train(None, *arguments, **named)

    def hyperparameter_search(self, *_: Any, **__: Any) -> Any:
        """Refuse a search, which trains several times, by a UsageError."""
        raise UsageError(f"edl.huggingface.Trainer has no hyperparameter_search(): {ONE_TRAINING}")

    def create_accelerator_and_postprocess(self) -> None:
        """Create the accelerator, whose ``backward`` weights a loss that is a mean over labels."""
        super().create_accelerator_and_postprocess()
        backward = self.accelerator.backward

        def weighted(loss: Any, **named: Any) -> None:
            factor = self._label_weights.loss_factor
            backward(loss if factor == 1.0 else loss * factor, **named)

        self.accelerator.backward = weighted

    def get_train_dataloader(self) -> Any:
        """Return edl's loader of the training data set, made as the script's options say."""
        if self.train_dataset is None:
            return super().get_train_dataloader()  # which raises its error
        if type(self)._get_train_sampler is not transformers.Trainer._get_train_sampler:
            raise UsageError(OWN_SAMPLER.format(kind=type(self).__name__))
        dataset, collate = self.train_dataset, self.data_collator
        has_length = hasattr(dataset, "__len__")
        if has_length and hasattr(dataset, "remove_columns"):  # of the library datasets
            dataset = self._remove_unused_columns(dataset, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        refuse_logical(current_worker(), "Hugging Face's Trainer counts batches, so it trains")
        args = self.args
        options: dict[str, Any] = {}
        if args.dataloader_num_workers > 0:
            options = {
                "prefetch_factor": args.dataloader_prefetch_factor,
                "multiprocessing_context": args.dataloader_multiprocessing_context,
                "persistent_workers": args.dataloader_persistent_workers,
            }
        return edl.torch.DataLoader(
            dataset,
            batch_size=self._train_batch_size,
            shuffle=has_length and option_text(args.train_sampling_strategy) == "random",
            seed=args.seed if args.data_seed is None else args.data_seed,
            num_workers=args.dataloader_num_workers,
            collate_fn=collate,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
            **options,
        )

    def set_initial_training_values(self, args: Any, dataloader: Any) -> tuple[Any, ...]:
        """Return the numbers of the training, without a limit to the number of epochs.

        ``max_steps`` is an estimate for the first number of workers, unless the script gives it.
        """
        values = super().set_initial_training_values(args, dataloader)
        self._steps_per_epoch = values[1]
        return MANY, *values[1:]

    def create_optimizer(self, *arguments: Any, **named: Any) -> Any:
        """Create the optimizer, which applies the mean gradient of all workers."""
        optimizer = super().create_optimizer(*arguments, **named)
        raw = without_wrapper(optimizer)
        if not hasattr(raw, "synchronize"):
            passes = self.args.gradient_accumulation_steps
            edl.torch.Optimizer(raw, self.model, backward_passes_per_step=passes)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Create the LR scheduler, which counts samples if the script trains by epochs.

        So warm-up and decay keep their places in the data when the number of workers changes.
        """
        raw = without_wrapper(self.optimizer if optimizer is None else optimizer)
        scheduler = super().create_scheduler(num_training_steps, raw)
        by_epochs = self.args.max_steps <= 0 and self._steps_per_epoch
        kinds = torch.optim.lr_scheduler
        counts = isinstance(scheduler, kinds.LRScheduler) and not isinstance(
            scheduler, kinds.ReduceLROnPlateau
        )
        if self._created_lr_scheduler and by_epochs and counts:
            samples = len(self.train_dataset)
            batch = math.ceil(samples / self._steps_per_epoch)
            self.lr_scheduler = InSamples(scheduler, batch, samples)
        return self.lr_scheduler

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any
    ) -> tuple[Any, Any]:
        """Prepare model and optimizer; bring this worker to the job's state."""
        if not isinstance(train_dataloader, edl.torch.DataLoader):
            raise UsageError(
                "get_train_dataloader() of this trainer returns a "
                f"{type(train_dataloader).__name__}; let it return edl.DataLoader(dataset, "
                "batch_size=..., shuffle=...), which divides the samples among the workers"
            )
        model, _ = super()._prepare_for_training(max_steps, train_dataloader, None)
        self._loader = train_dataloader
        edl.torch.track(**{"edl.huggingface.Trainer": self._job_state})
        args = self.args
        by_steps = args.max_steps > 0
        self.state.num_train_epochs = math.ceil(args.num_train_epochs)
        self._epochs = train_dataloader.epochs(
            None if by_steps else math.ceil(args.num_train_epochs),
            max_steps=args.max_steps if by_steps else None,
        )
        self._joined = edl.torch.is_warming_up()
        self._epoch = next(self._epochs, None)
        if edl.torch.is_warming_up():  # before callbacks see anything
            self._warm_up(model, train_dataloader)
            self._epoch = next(self._epochs, None)
        limit = current_worker().loader.progress.length.max_steps
        if by_steps and limit is not None:
            self.state.max_steps = limit  # a newcomer's script may ask for another number
        follow_rank()
        return model, train_dataloader

    def _warm_up(self, model: Any, loader: Any) -> None:
        """Train the newcomer's warm-up step, without callbacks; its result is discarded."""
        passes = self.current_gradient_accumulation_steps = self.args.gradient_accumulation_steps
        for number, inputs in enumerate(loader, start=1):
            last = number % passes == 0
            self.accelerator.gradient_state._set_sync_gradients(last)
            self.training_step(model, inputs)
            if last:
                if self.args.max_grad_norm > 0:
                    self._clip_grad_norm(model)
                self.optimizer.step()
                model.zero_grad()
        self._mean_loss.begin()

    # --- the loop

    def _run_epoch(self, **arguments: Any) -> None:
        if self._epoch is None:
            self.control.should_training_stop = True
            return
        self._job_state.put_totals()
        arguments |= {
            "epoch": self._epoch,
            "steps_in_epoch": MANY,
            "num_update_steps_per_epoch": MANY,
            "resume_from_checkpoint": None,
        }
        self._in_epoch = True
        super()._run_epoch(**arguments)
        assert self._loader is not None
        if self.control.should_training_stop:
            self._loader.stop()
            self._share_mean_loss(self._tr_loss)
            self.store_flos()
        self._in_epoch = False
        self._epoch = next(self._epochs, None)
        if self._epoch is None:
            self.control.should_training_stop = True

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[Any, None]:
        """Return the batches of one step, none at the end of the epoch.

        Loading the first one begins the step, and workers come and go before it.
        """
        first = next(epoch_iterator, None)
        if first is None:
            self.control.should_epoch_stop = True
            return [], None
        self._label_weights.begin_step()
        return _BatchGroup(first, epoch_iterator, num_batches), None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Train one batch with its weight in the step; return its mean loss over the passes."""
        passes = self.args.gradient_accumulation_steps
        self.current_gradient_accumulation_steps = passes
        samples = edl.torch.batch_weight()
        labels = self._get_num_items_in_batch([inputs], torch.device("cpu"))
        scaled, weights = self._is_scaled(labels), self._label_weights
        weight = samples
        if scaled and labels is not None:
            is_last = self.accelerator.gradient_state.sync_gradients
            weight = weights.begin_batch(samples, int(labels), passes, is_last)
        elif scaled:
            weights.loss_factor = 1.0 / passes
        given = None if labels is None else divisor(labels).to(self.args.device)
        try:
            loss = super().training_step(model, inputs, given)
        finally:
            weights.end_batch()
        weights.scale_gradients(self.optimizer)
        mean = loss if scaled else loss * passes
        self._mean_loss.add(mean, weight, self.args.logging_nan_inf_filter)
        return mean / passes

    def _is_scaled(self, labels: Any) -> bool:
        """Return whether `Trainer.training_step` leaves the loss undivided by `passes`."""
        if self.loss_is_scaled_for_ga is not None:
            return bool(self.loss_is_scaled_for_ga)
        counts = self.model_accepts_loss_kwargs and labels is not None
        return counts or self.compute_loss_func is not None

    # --- evaluation, logs, checkpoints

    @property
    def _shares(self) -> bool:
        # Between two steps: there the workers can send messages.
        return self._in_epoch and not process.current_worker().loader.open

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count the input tokens of this worker, which are added up when the loss is logged."""
        before = self.state.num_input_tokens_seen
        super()._track_num_input_tokens(inputs)
        if edl.torch.batch_weight():
            self._mean_loss.tokens += self.state.num_input_tokens_seen - before
        self.state.num_input_tokens_seen = before

    def _share_mean_loss(self, tr_loss: torch.Tensor) -> None:
        """Set `tr_loss` to the sum over the steps since the last log of the job's mean loss."""
        mean, tokens = self._mean_loss.of_all()
        self.state.num_input_tokens_seen += tokens
        tr_loss.fill_(mean * (self.state.global_step - self._globalstep_last_logged))

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *rest: Any, **named: Any) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._share_mean_loss(tr_loss)
            self._job_callback.follow_rank(self.args, self.state, self.control)
        super()._maybe_log_save_evaluate(tr_loss, *rest, **named)

    def store_flos(self) -> None:
        """Add the floating-point operations of all workers to the state."""
        if self._shares:
            self.current_flos = sum(from_all("store_flos()", self.current_flos))
        super().store_flos()

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate during the training a part of the data on each worker; return the job's result.

        The metrics are those of all samples, on all workers the numbers of rank 0. So early
        stopping, the best model and ``ReduceLROnPlateau`` decide alike. Before and after the
        training, and where the data cannot be shared, each worker evaluates all of them. The
        arguments are those of ``transformers.Trainer.evaluation_loop``.
        """
        base = super().evaluation_loop

        def loop(loader: Any) -> Any:
            return base(loader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

        if not self._shares:
            return loop(dataloader)
        if can_share(self, dataloader):
            output = evaluate_shared(self, loop, dataloader, metric_key_prefix)
        else:
            output = loop(dataloader)
        numbers = {k: v for k, v in output.metrics.items() if isinstance(v, int | float)}
        output.metrics.update(from_rank_0("evaluate()", numbers))
        return output

    def _evaluate(self, *arguments: Any, **named: Any) -> Any:
        """Evaluate, but not at the start of a newcomer, for which the others would wait."""
        if self._joined and not self._in_epoch:
            return {}
        return super()._evaluate(*arguments, **named)

    def _save_checkpoint(self, *arguments: Any, **named: Any) -> None:
        """Save a checkpoint of Hugging Face's on rank 0, while the others wait."""
        self.store_flos()
        saved = False
        while True:  # again if rank 0 has died: the next one saves
            if self.args.should_save and not saved:
                self._in_epoch = False  # rank 0 alone stores its operations again
                super()._save_checkpoint(*arguments, **named)
                self._in_epoch = saved = True
            state = [saved, self.state.best_model_checkpoint]
            answer = from_rank_0("save_checkpoint()", state)
            if answer[0]:
                self.state.best_model_checkpoint = answer[1]
                return


class _JobCallback(transformers.TrainerCallback):
    """A callback that writes the job's values into the `Trainer`'s state, before all others."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._was_rank_0 = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._write_rank(state)  # before progress bars and writers are made
        self._was_rank_0 = state.is_world_process_zero

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.follow_rank(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.follow_rank(args, state, control)
        end_batch()
        progress = current_worker().loader.progress
        ledger, source = progress.ledger, progress.source
        if not source.known_total:  # a stream
            state.epoch = float(ledger.epoch)
            return
        state.epoch = ledger.epoch + ledger.done / ledger.total
        if args.max_steps > 0:
            return
        batch = source.batching.of_all(process.size()) * args.gradient_accumulation_steps
        left = steps_left(args.num_train_epochs, ledger.epoch, ledger.done, ledger.total, batch)
        # At the end it is the last step, where other callbacks evaluate and save.
        state.max_steps = state.global_step + left
        for one in self._trainer.callback_handler.callbacks:
            bar = getattr(one, "training_bar", None)
            if bar is not None:
                bar.total = state.max_steps

    @staticmethod
    def _write_rank(state: Any) -> None:
        state.is_world_process_zero = state.is_local_process_zero = process.rank() == 0

    def follow_rank(self, args: Any, state: Any, control: Any) -> None:
        """Write this worker's rank into `state`; a new rank 0 begins to show progress and log."""
        self._write_rank(state)
        if self._was_rank_0 or not state.is_world_process_zero:
            return
        self._was_rank_0 = True
        handler = self._trainer.callback_handler
        every = handler.callbacks
        reporting = ("transformers.trainer_callback", "transformers.integrations")
        handler.callbacks = [one for one in every if type(one).__module__.startswith(reporting)]
        try:
            handler.call_event("on_train_begin", args, state, control)
        finally:
            handler.callbacks = every


class _BatchGroup:
    """The batches of one step, each loaded when the one before has been trained."""

    def __init__(self, first: Any, rest: Iterator[Any], count: int) -> None:
        self._first = first
        self._rest = rest
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        yield self._first
        yield from itertools.islice(self._rest, self._count - 1)


class Trainer(ElasticTrainerMixin, transformers.Trainer):
    """Hugging Face's ``Trainer`` in an elastic job; it takes the same arguments."""


class Seq2SeqTrainer(ElasticTrainerMixin, transformers.Seq2SeqTrainer):
    """Hugging Face's ``Seq2SeqTrainer`` in an elastic job; it takes the same arguments."""
