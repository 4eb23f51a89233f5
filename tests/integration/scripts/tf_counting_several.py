"""The counting model of two optimizers in TensorFlow: a loop, eager or with tf.function, or fit.

As in a GAN: the gradients of the second are computed after the update of the first ("alternating"),
or all before the first update, as in TensorFlow's own tutorial. See tally.py.
"""

import os

import numpy as np
from tally import Diary, parser
from tf_model import CountingModel, tf

import edl.tensorflow as edl

options = parser()
options.add_argument("--mode", default=os.environ.get("EDL_TEST_MODE", "function"))
args = options.parse_args()
diary = Diary(args)


edl.init()
dataset = edl.Dataset(np.arange(args.samples), args.batch_size, shuffle=True, seed=7)
first, second = CountingModel(args.samples), CountingModel(args.samples)
models = (first, second)
optimizers = [edl.Optimizer(tf.keras.optimizers.SGD(1.0), model) for model in models]
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)


def gradients(model, indices):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(indices))
    if args.mode == "tape":
        tape = edl.DistributedGradientTape(tape)
    return tape.gradient(loss, model.trainable_variables)


def apply(number, computed):
    optimizers[number].apply_gradients(
        zip(computed, models[number].trainable_variables, strict=True)
    )


def step(indices):
    if args.mode in ("eager", "tape"):
        for number, model in enumerate(models):
            apply(number, gradients(model, indices))
    else:
        computed = [gradients(model, indices) for model in models]
        for number, each in enumerate(computed):
            apply(number, each)


def tally():
    """Who has missed a step may have received what another one had not counted yet."""
    return [problem for model in models if (problem := model.tally())]


def count():
    """Return the counts of both models: one array, or both where they differ and must not."""
    both = [model.count.numpy() for model in models]
    return both[0] if (both[0] == both[1]).all() else np.concatenate(both)


class Gan(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = models

    def train_step(self, indices):
        step(indices)
        return {"loss": tf.constant(0.0)}


class Tally(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        diary.begin_step(edl.step())
        diary.in_step()

    def on_train_batch_end(self, batch, logs=None):
        diary.end_step(edl.step(), "; ".join(tally()) or None)

    def on_epoch_end(self, epoch, logs=None):
        diary.end_epoch(epoch, count())


def loop():
    train = step if args.mode in ("eager", "tape") else tf.function(step)
    for epoch in dataset.epochs(args.epochs):
        for indices in dataset:
            diary.begin_step(edl.step())
            diary.in_step()
            train(indices)
            if not edl.is_warming_up():
                edl.notify_batch_end()
                diary.end_step(edl.step(), "; ".join(tally()) or None)
                if args.exchange:
                    diary.exchange(edl.step())
        if not edl.is_warming_up():
            diary.end_epoch(epoch, count())


if args.mode == "fit":
    gan = Gan()
    gan.compile()
    gan.fit(dataset, epochs=args.epochs, callbacks=[edl.KerasCallback(), Tally()], verbose=0)
else:
    loop()
diary.report(np.concatenate([model.w.numpy() for model in models]), count(), edl.step())
