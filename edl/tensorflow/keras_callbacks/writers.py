"""Callbacks that write files or to the terminal: given on all workers, they write on rank 0 only.

Whoever is rank 0 when something is to be written does it, so a successor goes on where rank 0
died. Until the workers have met at the end of an epoch (:meth:`Writer.met`), each keeps what it
would have written there: the successor of one that died on the way makes up for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
from keras.src.callbacks.progbar_logger import ProgbarLogger

from edl.worker.worker import Worker

_HOOKS = [
    f"on_{what}_{when}"
    for what in ("epoch", "train", "test", "predict", "train_batch", "test_batch", "predict_batch")
    for when in ("begin", "end")
]


class Writer(keras.callbacks.Callback):
    """Stands in the list of a ``fit`` for a callback that writes."""

    remembers = False  # what the callback remembers follows the job

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__()
        self.callback = callback
        self._worker = worker

    @property
    def writes(self) -> bool:
        """This worker is rank 0 now."""
        return self._worker.rank == 0 and not self._worker.warming_up

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def met(self, written: bool) -> None:
        """All workers have met at the end of the epoch.

        ``written``: its rank 0 had written what there was to write. If not, this worker does so,
        if it is rank 0 now.
        """
        raise NotImplementedError


class Gated(Writer):
    """No hook of the callback is called, but on rank 0. It begins there when it is first needed."""

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._begun = False
        self._epoch: int | None = None  # that has begun
        self._unwritten: tuple[int, dict[str, Any]] | None = None  # an epoch's end

    def hook(self, name: str, *arguments: Any, **named: Any) -> None:
        if not self.writes or (name == "on_train_end" and not self._begun):
            return
        self._begin()
        getattr(self.callback, name)(*arguments, **named)

    def on_train_begin(self, logs: Any = None) -> None:
        """Not yet: this worker may be a newcomer, and the job may be resumed."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = None
        self.hook("on_epoch_begin", epoch, logs)
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._unwritten = (epoch, dict(logs or {}))
        self._end_epoch()

    def met(self, written: bool) -> None:
        if not written and self._unwritten is not None and not self._has_written():
            self._end_epoch()
        self._epoch = self._unwritten = None

    def _end_epoch(self) -> None:
        assert self._unwritten is not None
        epoch, logs = self._unwritten
        if self.writes:
            self._begin()
            self.callback.on_epoch_end(epoch, logs)
            self.flush()

    def _has_written(self) -> bool:
        """The end of the epoch, before it died: somebody else."""
        return False

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        if self._worker.step > 0:
            self.resume()
        self.callback.set_model(self.model)
        self.callback.on_train_begin()
        self.began()
        if self._epoch is not None:
            self.callback.on_epoch_begin(self._epoch)

    def resume(self) -> None:
        """Others have written before: go on with what is there."""

    def began(self) -> None:
        """``on_train_begin`` was called."""

    def flush(self) -> None:
        """What was written at the end of an epoch is to outlive this process."""


def _forwarding(name: str) -> Callable[..., None]:
    def on(self: Gated, *arguments: Any, **named: Any) -> None:
        self.hook(name, *arguments, **named)

    return on


for _name in _HOOKS:
    if _name not in vars(Gated):
        setattr(Gated, _name, _forwarding(_name))


class GatedCSV(Gated):
    """One line an epoch, also across the death of who has begun the file."""

    def resume(self) -> None:
        self.callback.append = True
        path = self.callback.filename
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            text = file.read()
            file.truncate(text.rfind(b"\n") + 1)  # half a line of one that was killed

    def _has_written(self) -> bool:
        assert self._unwritten is not None
        try:
            with open(self.callback.filename, "rb") as file:
                last = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        except OSError:
            return False
        return last.split(self.callback.sep.encode())[0] == str(self._unwritten[0]).encode()


class GatedTensorBoard(Gated):
    """Each rank 0 writes event files of its own, in the same directory."""

    def began(self) -> None:
        self.callback._global_train_batch = self._worker.step

    def flush(self) -> None:
        for writer in self.callback._writers.values():
            writer.flush()


class GatedProgress(Gated):
    """The progress bar. How many steps an epoch has is not known beforehand."""

    callback: ProgbarLogger

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._generation = 0

    def set_params(self, params: Any) -> None:
        super().set_params({**params, "steps": None})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._generation != self._worker.generation:
            self._generation, self.callback.target = self._worker.generation, None
        super().on_epoch_begin(epoch, logs)


class Saver(Writer):
    """``ModelCheckpoint``: all workers remember what was best, and rank 0 saves."""

    remembers = True

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._unsaved: Callable[[], None] | None = None
        if hasattr(callback, "_should_save_model"):
            plain = callback._should_save_model

            def should_save(epoch: int, batch: int | None, logs: Any, filepath: str) -> bool:
                if self.writes:
                    return bool(plain(epoch, batch, logs, filepath))
                verbose, callback.verbose = callback.verbose, 0
                due = plain(epoch, batch, logs, filepath)
                callback.verbose = verbose
                if due and batch is None:
                    self._unsaved = lambda: self._save(epoch, batch, logs)
                return False

            callback._should_save_model = should_save

    def _save(self, epoch: int, batch: int | None, logs: Any) -> None:
        decides = self.callback._should_save_model
        self.callback._should_save_model = lambda *_: True
        try:
            self.callback._save_model(epoch, batch, logs)
        finally:
            self.callback._should_save_model = decides

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self.callback.set_model(_Unsaved(model, self))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._unsaved = None
        self.callback.on_epoch_end(epoch, logs)

    def met(self, written: bool) -> None:
        unsaved, self._unsaved = self._unsaved, None
        if unsaved is not None and not written and self.writes:
            unsaved()


def _passing(name: str) -> Callable[..., None]:
    def on(self: Saver, *arguments: Any, **named: Any) -> None:
        getattr(self.callback, name)(*arguments, **named)

    return on


for _name in _HOOKS:
    if _name not in vars(Saver):
        setattr(Saver, _name, _passing(_name))


class _Unsaved:
    """The model, as a ``Saver`` sees it: saved by rank 0 only."""

    _SAVES = ("save", "save_weights", "export")

    def __init__(self, model: Any, saver: Saver) -> None:
        object.__setattr__(self, "_parts", (model, saver))

    def __getattribute__(self, name: str) -> Any:
        model, saver = object.__getattribute__(self, "_parts")
        if name in _Unsaved._SAVES and not saver.writes:
            return lambda *_arguments, **_named: None
        return getattr(model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(object.__getattribute__(self, "_parts")[0], name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_parts")[0](*arguments, **named)


WRITERS: list[tuple[type, type[Writer]]] = [
    (keras.callbacks.ModelCheckpoint, Saver),
    (keras.callbacks.CSVLogger, GatedCSV),
    (keras.callbacks.TensorBoard, GatedTensorBoard),
    (keras.callbacks.RemoteMonitor, Gated),
    (ProgbarLogger, GatedProgress),
]


def standing_in(callback: Any, worker: Worker) -> Writer | None:
    """What stands for ``callback`` in the list, if it writes."""
    for kind, writer in WRITERS:
        if isinstance(callback, kind):
            return writer(callback, worker)
    return None
