"""Checks what other processes do with a callback that only rank 0 of a Keras script has."""

import pickle
import re
import sys
from types import SimpleNamespace

import keras
import pytest

from edl.errors import UsageError
from edl.tensorflow.keras_callbacks import Gated, GatedCSV, standing_in
from edl.transparent import tensorflow_loop

tensorflow_loop.KerasCallback = keras.callbacks.Callback  # it needs a job
WORKER = SimpleNamespace(rank=1, warming_up=False, fits=SimpleNamespace(has_trained=True))


class Diary(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.told = []

    def on_train_begin(self, logs=None):
        self.told.append("begin")

    def on_epoch_end(self, epoch, logs=None):
        self.told.append(epoch)


class Plot(Diary):
    def __init__(self):
        super().__init__()
        self.too_large = bytes(tensorflow_loop.MAX_CALLBACK_BYTES)


class Archive(keras.callbacks.CSVLogger):
    def __init__(self, path):
        super().__init__(path)
        self.too_large = bytes(tensorflow_loop.MAX_CALLBACK_BYTES)


class Stopping(keras.callbacks.EarlyStopping):
    pass


def received(*sent, own=()):
    """Return the callbacks of a process whose rank 0 has sent its own to all."""
    message = pickle.dumps((0, [tensorflow_loop._packed(each) for each in sent]))
    script = tensorflow_loop.KerasScript()
    script.exchanges = SimpleNamespace(known=lambda _: [message, b""])
    return script._agreed(list(own), 0)[0][:-1]


def only_rank_0_calls_a_callback_of_the_script():
    (sent,) = received(Diary())
    writer = standing_in(sent, WORKER)
    assert type(writer) is Gated
    assert writer.remembers, "newcomers get what it remembers"
    writer.on_train_begin()
    writer.on_epoch_end(0, {})
    writer.met(written=True)
    writer.on_epoch_end(1, {})
    assert sent.told == []
    WORKER.rank = 0  # the one before has died at the end of the epoch
    writer.met(written=False)
    writer.on_epoch_end(2, {})
    assert sent.told == ["begin", 1, 2]


def functions_are_those_of_the_script_too():
    (sent,) = received(keras.callbacks.LambdaCallback())
    assert type(standing_in(sent, WORKER)) is Gated


def what_each_process_has_runs_in_each():
    own = Diary()
    (found,) = received(Diary(), own=[own])
    assert found is own
    assert standing_in(own, WORKER) is None


def what_keras_has_does_its_usual_work():
    early, log = received(Stopping("val_loss"), keras.callbacks.CSVLogger("log.csv"))
    assert standing_in(early, WORKER) is None
    assert type(standing_in(log, WORKER)) is GatedCSV


def what_cannot_be_sent_is_refused_in_true_words():
    calls_each = "edl calls it on each of them, so let it ask hvd.rank() == 0 before it writes"
    for sent, advice in (
        (Plot(), calls_each),
        (Archive("log.csv"), "edl lets one of them write"),
    ):
        name = type(sent).__name__
        sentence = f"^the callback {name} is on rank 0 only, .* bytes.; make it on all ranks: "
        with pytest.raises(UsageError, match=f"{sentence}{re.escape(advice)}$"):
            received(sent)
        assert received(sent, own=[sent]) == [sent]


def fits(*given, others=()):
    """Return the callbacks of a process in each fit, and its script; rank 0 gives ``given``."""
    first, other = tensorflow_loop.KerasScript(), tensorflow_loop.KerasScript()
    sent, found = [], []
    first.exchanges = SimpleNamespace(known=lambda own: [sent.append(own) or own])
    other.exchanges = SimpleNamespace(known=lambda _: [sent[-1]])
    for callbacks in given:
        first._agreed(callbacks, 0)
        found.append(other._agreed([*others], 0)[0][:-1])
        for callback in callbacks:
            callback.of_model = bytes(
                tensorflow_loop.MAX_CALLBACK_BYTES
            )  # set by fit, and too large to be sent
    return found, other


def a_further_fit_has_the_callbacks_that_rank_0_gives_to_it():
    model_files = ["head.keras", "full.keras", "full.keras"]
    head, full = (keras.callbacks.ModelCheckpoint(path) for path in model_files[:2])
    log = keras.callbacks.CSVLogger("log.csv")
    found, _ = fits([head, log], [full, log], [full, log])
    assert [saver.filepath for saver, _ in found] == model_files
    assert [type(second) for _, second in found] == [keras.callbacks.CSVLogger] * 3


def a_loop_of_fits_sends_its_callbacks_once():
    """All messages of a job have 256 KiB."""
    script, sent = tensorflow_loop.KerasScript(), []
    script.exchanges = SimpleNamespace(known=lambda own: [sent.append(own) or own])
    same, paths = Diary(), ["a.keras", "a.keras", "a.keras", "b.keras", "b.keras"]
    for path in paths:
        script._agreed([same, keras.callbacks.ModelCheckpoint(path)], 0)
        same.of_model = bytes(tensorflow_loop.MAX_CALLBACK_BYTES)  # set by fit
    assert [bool(one) for one in sent] == [True, False, False, True, False]


def the_callbacks_of_rank_0_outlive_its_process():
    """Check a next rank 0 whose script has asked for its rank at its beginning only."""
    saver = keras.callbacks.ModelCheckpoint("model.keras")
    _, successor = fits([saver, Diary()], others=[Diary()])
    successor.exchanges = SimpleNamespace(known=lambda own: [own])
    again = Diary()
    taken, own, _ = successor._agreed([again], 0)[0]
    assert (taken.filepath, own) == ("model.keras", again)


globals()[sys.argv[1]]()
