"""Keep a ``Trainer``'s state at the position of the job, by a callback that runs before others."""

from __future__ import annotations

from typing import Any

import transformers

import edl.torch.api
from edl.binding import process
from edl.step.source import steps_left


class JobCallback(transformers.TrainerCallback):
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
        edl.torch.api.end_batch()
        progress = process.current_worker().loader.progress
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
