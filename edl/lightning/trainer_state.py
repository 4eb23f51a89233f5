"""Send the state of a Trainer to newcomers and into checkpoints: :class:`TrainerState`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from edl.lightning.epoch_counts import EpochCounts, old_counts

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
        state: dict[str, Any] = {"folders": self._folders(), "begun": self._has_begun()}
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
        self._load_folders(state["folders"])
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

    def _folders(self) -> dict[str, Any]:
        # Each worker looks for the next free version of a folder; all have to write into one.
        return {
            "versions": [getattr(each, "_version", None) for each in self._trainer.loggers],
            "checkpoints": [str(each.dirpath) for each in self._model_checkpoints()],
        }

    def _load_folders(self, folders: dict[str, Any]) -> None:
        for logger, version in zip(self._trainer.loggers, folders["versions"], strict=True):
            if isinstance(version, PLAIN_VERSION) and hasattr(logger, "_version"):
                logger._version = version
        paths = folders["checkpoints"]
        for callback, path in zip(self._model_checkpoints(), paths, strict=True):
            callback.dirpath = path

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
