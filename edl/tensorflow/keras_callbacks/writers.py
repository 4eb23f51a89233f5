"""Let callbacks that write files, to the terminal or to a server write on rank 0 only.

The script gives the callbacks on all workers. The worker that is rank 0 at the time of a write
makes it, so when rank 0 dies, its successor continues. Until all workers have exchanged rows at the
end of an epoch (:meth:`Writer.met`), each worker keeps the numbers that are to be written, so that
it can write them if rank 0 dies before it does.
"""

from __future__ import annotations

import contextlib
import os
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
    """The base class of callbacks that stand in for one that writes, and let rank 0 alone write."""

    remembers = False  # what the callback remembers follows the job

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__()
        self.callback = callback
        self._worker = worker

    @property
    def writes(self) -> bool:
        """Whether this worker is rank 0 at the moment, and so writes."""
        return self._worker.rank == 0 and not self._worker.warming_up

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.callback.set_params(params)

    def met(self, written: bool) -> None:
        """Write the files of the epoch that has ended if its rank 0 has died before it did so."""
        raise NotImplementedError


class Gated(Writer):
    """A writer that calls the hooks of its callback on rank 0 only."""

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
        """Do nothing: a newcomer has no rank yet, so `_begin` calls it before the first hook."""

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
        """Return whether the callback's file shows that another worker has written the epoch."""
        return False

    def _begin(self) -> None:
        """Begin the training and the epoch for the callback of a new rank 0."""
        if self._begun:
            return
        self._begun = True
        if self._worker.fits.has_trained:
            self.resume()
        self.callback.set_model(self.model)
        self.callback.on_train_begin()
        self.began()
        if self._epoch is not None:
            self.callback.on_epoch_begin(self._epoch)

    def resume(self) -> None:
        """Prepare the callback to append to files of other workers or runs; here do nothing."""

    def began(self) -> None:
        """Adjust the callback after its `on_train_begin`, in a subclass; here do nothing."""

    def flush(self) -> None:
        """Write the callback's buffered output to its files, in a subclass; here do nothing."""


def _forwarding(name: str) -> Callable[..., None]:

    def on(self: Gated, *arguments: Any, **named: Any) -> None:
        self.hook(name, *arguments, **named)

    return on


for _name in _HOOKS:
    if _name not in vars(Gated):
        setattr(Gated, _name, _forwarding(_name))


class GatedCSV(Gated):
    """A writer for `CSVLogger`, whose file gets one line for each epoch, even if rank 0 dies."""

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._appends = callback.append  # as the script says
        self._length = 0  # bytes that the file had before this fit
        callback.append_header = True  # of a new file; Keras sets it in the constructor only

    def on_train_begin(self, logs: Any = None) -> None:
        super().on_train_begin(logs)
        if self._appends:
            with contextlib.suppress(OSError):
                self._length = os.path.getsize(self.callback.filename)

    def resume(self) -> None:
        """Let the callback append to its file, from which an incomplete last line is removed."""
        self.callback.append = True
        path = self.callback.filename
        with contextlib.suppress(OSError), open(path, "rb+") as file:
            text = file.read()
            file.truncate(text.rfind(b"\n") + 1)  # half a line of one that was killed

    def began(self) -> None:
        """Let a further fit of the same callback append only if the script says so."""
        self.callback.append = self._appends

    def _has_written(self) -> bool:
        """Return whether the last whole line of the file, in this fit, is about the last epoch."""
        assert self._unwritten is not None
        try:
            with open(self.callback.filename, "rb") as file:
                text = file.read()
        except OSError:
            return False
        if len(text) <= self._length:
            return False
        last = text.rpartition(b"\n")[0].rpartition(b"\n")[2]
        return last.split(self.callback.sep.encode())[0] == str(self._unwritten[0]).encode()


class GatedTensorBoard(Gated):
    """A writer for `TensorBoard`: each rank 0 writes its own event files to one directory."""

    def began(self) -> None:
        self.callback._global_train_batch = self._worker.step  # by which it numbers its records

    def flush(self) -> None:
        for writer in self.callback._writers.values():
            writer.flush()


class GatedProgress(Gated):
    """A writer for Keras' progress bar."""

    callback: ProgbarLogger

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._generation = 0

    def set_params(self, params: Any) -> None:
        # The number of steps would be wrong when workers join or leave; the bar learns it from the
        # epoch before.
        super().set_params({**params, "steps": None})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._generation != self._worker.generation:
            self._generation, self.callback.target = self._worker.generation, None
        super().on_epoch_begin(epoch, logs)


_REPLACED = "_edl_replaced"  # an attribute of a function that replaces a method: the method


class Saver(Writer):
    """A writer for `ModelCheckpoint`: all workers track the best value, and rank 0 alone saves."""

    remembers = True

    def __init__(self, callback: Any, worker: Worker) -> None:
        super().__init__(callback, worker)
        self._unsaved: Callable[[], None] | None = None
        if hasattr(callback, "_should_save_model"):
            # The callback's own method, also if an earlier fit with this callback has replaced it.
            plain = getattr(callback._should_save_model, _REPLACED, callback._should_save_model)

            def should_save(epoch: int, batch: int | None, logs: Any, filepath: str) -> bool:
                if self.writes:
                    return bool(plain(epoch, batch, logs, filepath))
                verbose, callback.verbose = callback.verbose, 0
                due = plain(epoch, batch, logs, filepath)
                callback.verbose = verbose
                if due and batch is None:
                    self._unsaved = lambda: self._save(epoch, batch, logs)
                return False

            setattr(should_save, _REPLACED, plain)
            callback._should_save_model = should_save

    def _save(self, epoch: int, batch: int | None, logs: Any) -> None:
        """Let the callback save the model now; it has decided to."""
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
    """A wrapper of the model whose save methods save on rank 0 only."""

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


_SENT = "_edl_sent"  # an attribute of a callback
_BASES = (object, keras.callbacks.Callback, keras.callbacks.LambdaCallback)

WRITERS: list[tuple[type, type[Writer]]] = [
    (keras.callbacks.ModelCheckpoint, Saver),
    (keras.callbacks.CSVLogger, GatedCSV),
    (keras.callbacks.TensorBoard, GatedTensorBoard),
    (keras.callbacks.RemoteMonitor, Gated),
    (ProgbarLogger, GatedProgress),
]


def standing_in(callback: Any, worker: Worker) -> Writer | None:
    """Return a new writer for `callback`; None: it is called on all workers."""
    for kind, writer in WRITERS:
        if isinstance(callback, kind):
            return writer(callback, worker)
    if not getattr(callback, _SENT, False) or _acts_on_training(callback):
        return None
    gated = Gated(callback, worker)
    gated.remembers = True
    return gated


def has_writer(callback: Any) -> bool:
    """Return whether `callback`, given to all workers, is let write on rank 0 only."""
    return isinstance(callback, tuple(kind for kind, _ in WRITERS))


def mark_as_sent(callback: Any) -> Any:
    """Mark a callback as a copy of one that the script gives to rank 0 only, and return it."""
    setattr(callback, _SENT, True)
    return callback


def _acts_on_training(callback: Any) -> bool:
    # Those of Keras and edl, such as EarlyStopping, change the training, as all workers must, or
    # write nothing.
    packages = {
        kind.__module__.partition(".")[0] for kind in type(callback).__mro__ if kind not in _BASES
    }
    return not packages.isdisjoint(("keras", "edl"))
