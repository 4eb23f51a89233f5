"""Checks which lines Keras' CSVLogger has in its file when rank 0 dies, and in a further fit."""

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import keras

from edl.tensorflow.keras_callbacks import GatedCSV

FILE = Path(tempfile.mkdtemp(), "log.csv")
OLD = "epoch,loss\n0,9.0\n"


def begun(rank, append=False, has_trained=False):
    """Return the writer of a worker whose fit begins."""
    fits = SimpleNamespace(has_trained=has_trained)
    worker = SimpleNamespace(rank=rank, warming_up=False, fits=fits)
    writer = GatedCSV(keras.callbacks.CSVLogger(FILE, append=append), worker)
    writer.set_model(None)
    writer.on_train_begin()
    return writer


def trains(*writers, epoch=0, **logs):
    """Train an epoch on the workers of ``writers``; a rank 0 among them writes its line."""
    for writer in writers:
        writer.on_epoch_begin(epoch)
    for writer in writers:
        writer._worker.fits.has_trained = True
    for writer in writers:
        writer.on_epoch_end(epoch, logs)


def lines():
    return FILE.read_text().split()


def a_further_fit_has_the_file_that_the_script_says():
    FILE.write_text(OLD)
    trains(begun(0), accuracy=0.5)
    assert lines() == ["epoch,accuracy,val_accuracy", "0,0.5,NA"]
    FILE.write_text(OLD)
    trains(begun(0, append=True), loss=8.0)
    assert lines() == [*OLD.split(), "0,8.0,NA"]


def a_successor_appends_within_a_fit():
    FILE.write_text(OLD + "1,8.")  # rank 0 was killed
    writer = begun(0, has_trained=True)
    trains(writer, epoch=1, loss=7.0)
    assert lines() == [*OLD.split(), "1,7.0,NA"]
    writer.on_train_end()
    again = GatedCSV(writer.callback, begun(0)._worker)
    again.set_model(None)
    again.on_train_begin()
    trains(again, accuracy=0.5)
    assert lines() == ["epoch,accuracy,val_accuracy", "0,0.5,NA"], "of a further fit"


def no_epoch_is_lost_or_written_twice():
    for append in (False, True):
        FILE.write_text(OLD)
        successor = begun(1, append)
        if not append:
            FILE.write_text("")  # rank 0 has opened it
        trains(successor, loss=8.0)  # and rank 0 dies before its line is written
        successor._worker.rank = 0
        successor.met(written=False)
        written = lines()
        assert written[-1] == "0,8.0,NA", "the line before is not of this fit"
        third = begun(1, append, has_trained=True)
        trains(successor, third, epoch=1, loss=7.0)  # and the successor dies after its line
        third._worker.rank = 0
        third.met(written=False)
        assert lines() == [*written, "1,7.0,NA"]


globals()[sys.argv[1]]()
