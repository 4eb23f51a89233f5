"""A `fit` with many callbacks, which something happens to; who ends reports what it has.

--fault JSON, once the file is there: {"file": path, "rank": 0, "what": ..., "do": "kill" | "stop"}:
the worker of that rank is killed, or its script wants to stop training, at the end of its third
batch ("batch"), in the step after that ("next"), as it sends the metrics of an epoch ("metrics"),
among the callbacks at the end of the epoch ("hook"), as it meets the others after them ("end").
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import hashlib
import json
import signal
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl
from edl.testing import throttle

keras = tf.keras
options = argparse.ArgumentParser()
options.add_argument("--out", type=Path, required=True)
options.add_argument("--epochs", type=int, default=20)
options.add_argument("--patience", type=int, default=9)
options.add_argument("--checkpoint", type=Path)
options.add_argument("--fault", type=json.loads, action="append", default=[])
options.add_argument("--only-rank-0", action="store_true", help="the habit")
options.add_argument("--synchronized", action="store_true", help="batch normalisation")
args = options.parse_args()


def strike(what):
    for fault in args.fault:
        if fault["what"] == what and fault["rank"] == edl.rank() and not edl.is_warming_up():
            try:
                os.unlink(fault["file"])  # one of them
            except FileNotFoundError:
                continue
            if fault["do"] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            return True
    return False


class Faults(keras.callbacks.Callback):
    """Also a user's own callback with a memory of many kinds."""

    def __init__(self):
        super().__init__()
        self.seen = {"batches": 0, "epochs": set()}
        self.begun = 0
        self.losses = np.zeros(0)
        self.mean = tf.Variable(0.0, dtype=tf.float64)
        self.lock = None

    def on_train_begin(self, logs=None):
        self.clock = time.monotonic
        self.lock = object()
        worker = edl.current_worker()
        plain = worker.exchange

        def exchange(values):
            strike("end" if len(values) == 3 else "metrics")
            return plain(values)

        worker.exchange = exchange

    def on_epoch_begin(self, epoch, logs=None):
        self.begun += 1
        if epoch == 0 or not hasattr(self, "late"):
            self.late = tf.Variable(0)

    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3:
            strike("next")

    def on_train_batch_end(self, batch, logs=None):
        self.seen["batches"] += 1
        self.late.assign(edl.step())
        throttle.throttle_step()
        if batch == 2 and strike("batch"):
            self.model.stop_training = True

    def on_epoch_end(self, epoch, logs=None):
        self.seen["epochs"].add(epoch)
        self.losses = np.append(self.losses, logs["loss"])
        self.mean.assign(self.losses.mean())
        if strike("hook"):
            self.model.stop_training = True

    def on_train_end(self, logs=None):
        self.ended = True


edl.init()
keras.utils.set_random_seed(1 + edl.rank())
data = np.linspace(-1, 1, 96, dtype=np.float32)[:, None]
dataset = edl.Dataset((data, 3 * data + 1), 4, shuffle=True)
norms = [keras.layers.BatchNormalization(synchronized=True)] if args.synchronized else []
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(4), *norms, keras.layers.Dense(1)])
sgd = keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9)
model.compile(edl.Optimizer(sgd), "mse", metrics=["mae"])
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=2.0)

files = args.out / "files"
never = 1e9  # an improvement that no epoch makes, so that the memories count epochs
stopping = keras.callbacks.EarlyStopping(
    "loss", never, args.patience, restore_best_weights=True, verbose=1
)
plateau = keras.callbacks.ReduceLROnPlateau("loss", 0.5, patience=2, min_delta=never)
faults = Faults()
writing = [
    keras.callbacks.CSVLogger(files / "log.csv"),
    keras.callbacks.ModelCheckpoint(files / "{epoch:02d}" / "model.keras"),
    keras.callbacks.ModelCheckpoint(files / "best" / "b.weights.h5", "loss", 0, True, True),
    keras.callbacks.TensorBoard(files / "board", write_graph=False),
]
files.mkdir(parents=True, exist_ok=True)
if args.only_rank_0:
    writing = writing[1:2] if edl.rank() == 0 else []
callbacks = [
    keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
    plateau,
    keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    faults,
    stopping,
    edl.KerasCallback(),
    *writing,
]
history = model.fit(
    dataset, epochs=args.epochs, callbacks=callbacks, verbose=2 if edl.rank() == 0 else 0
)
end = {
    "rank": edl.rank(),
    "steps": edl.step(),
    "rate": float(model.optimizer.learning_rate),
    "weights": hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest(),
    "history": {k: list(map(float, v)) for k, v in history.history.items()},
    "epochs": history.epoch,
    "wait": [stopping.wait, stopping.stopped_epoch, stopping.min_delta, plateau.wait],
    "best": [stopping.best, stopping.best_epoch, plateau.best, plateau.min_delta],
    "own": [faults.begun, sorted(faults.seen["epochs"]), faults.losses.tolist()],
    "mean": [float(faults.mean.numpy()), int(faults.late.numpy())],
    "ended": faults.ended,
}
(args.out / f"{os.getpid()}.json").write_text(json.dumps(end))
