"""The counting model in TensorFlow: a loop, eager or with tf.function, Keras' fit, or a graph.

See tally.py. The report also says how often the training function was traced.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from tally import Diary, counted, parser

import edl.tensorflow as edl

options = parser()
options.add_argument("--mode", default=os.environ.get("EDL_TEST_MODE", "function"))
args = options.parse_args()
diary = Diary(args)
traces = 0


def save():
    if args.checkpoint:
        edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)


def sleep():
    diary.in_step()
    return np.float64(0.0)


class Counting(tf.keras.Model):
    """`w` is trained; the others are what was counted."""

    def __init__(self):
        super().__init__(dtype="float64")
        size = (args.samples,)
        self.w = self.add_weight(name="w", shape=size, initializer="zeros")
        self.before = self.weight("before", size, "float64")
        self.count = self.weight("count", size, "int64")
        self.steps = self.weight("steps", (), "int64")

    def weight(self, name, shape, dtype):
        return self.add_weight(
            name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
        )

    def call(self, indices):
        global traces
        traces += 1
        return tf.gather(self.w.value, indices)

    def tally(self):
        now, before = self.w.numpy(), self.before.numpy()
        if (now == before).all():
            return None
        times, problem = counted(before, now)
        self.before.assign(now)
        self.count.assign_add(times)
        self.steps.assign_add(1)
        return problem

    def report(self):
        steps = int(self.steps.numpy())
        diary.report(self.w.numpy(), self.count.numpy(), steps, traces=traces)


def data():
    return edl.Dataset(np.arange(args.samples), args.batch_size, shuffle=True, seed=7)


def loop():
    dataset = data()
    model = Counting()
    optimizer = edl.Optimizer(tf.keras.optimizers.SGD(1.0), model)
    save()

    def step(indices):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(indices))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    if args.mode == "function":
        step = tf.function(step)
    for epoch in dataset.epochs(args.epochs):
        for indices in dataset:
            diary.begin_step(int(model.steps.numpy()))
            diary.in_step()
            step(indices)
            if not edl.is_rehearsing():
                diary.end_step(int(model.steps.numpy()), model.tally())
        if not edl.is_rehearsing():
            diary.end_epoch(epoch, model.count.numpy())
    model.report()


class Tally(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        diary.begin_step(int(self.model.steps.numpy()))
        diary.in_step()

    def on_train_batch_end(self, batch, logs=None):
        diary.end_step(int(self.model.steps.numpy()), self.model.tally())

    def on_epoch_end(self, epoch, logs=None):
        diary.end_epoch(epoch, self.model.count.numpy(), loss=logs["loss"])


def fit():
    tf.keras.config.set_floatx("float64")
    dataset = data().map(lambda indices: (indices, tf.zeros_like(indices, tf.float64)))
    model = Counting()
    save()
    model.compile(
        edl.Optimizer(tf.keras.optimizers.SGD(1.0)), loss=lambda _, predicted: predicted[:, None]
    )
    callbacks = [edl.KerasCallback(), Tally()]
    model.fit(dataset, epochs=args.epochs, callbacks=callbacks, verbose=0)
    model.report()


def graph():
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    zeros, integer = tf.zeros(args.samples, tf.float64), tf.zeros(args.samples, tf.int64)
    batches = edl.elastic_shard_generator(
        np.arange(args.samples), args.batch_size, epochs=args.epochs, shuffle=True, seed=7
    )
    signature = tf.TensorSpec((None,), tf.int64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2)
    indices = v1.data.make_one_shot_iterator(dataset).get_next()
    w = v1.get_variable("w", initializer=zeros)
    before = v1.get_variable("before", initializer=zeros, trainable=False)
    count = v1.get_variable("count", initializer=integer, trainable=False)
    steps = v1.get_variable("steps", initializer=tf.zeros((), tf.int64), trainable=False)
    optimizer = edl.Optimizer(v1.train.GradientDescentOptimizer(1.0))
    train = optimizer.minimize(tf.reduce_mean(tf.gather(w, indices)), var_list=[w])
    times = v1.placeholder(tf.int64, (args.samples,))
    with tf.control_dependencies([before.assign(w)]):
        note = tf.group(count.assign_add(times), steps.assign_add(1))
    save()
    with edl.Session() as s:
        epoch = None
        while not s.Done():
            s.run(train)
            if edl.is_rehearsing():
                continue
            diary.begin_step(int(s.run(steps)))
            diary.in_step()
            values = s.run([before, w])
            problem = None
            if (values[0] != values[1]).any():
                found, problem = counted(*values)
                s.run(note, {times: found})
            diary.end_step(int(s.run(steps)), problem)
            epoch = edl.current_worker().epoch
            edl.notify_batch_end()
            if edl.current_worker().epoch_over:
                diary.end_epoch(epoch, s.run(count))
        diary.report(*s.run([w, count]), int(s.run(steps)))


edl.init()
{"eager": loop, "function": loop, "fit": fit, "graph": graph}[args.mode]()
