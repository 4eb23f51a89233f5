"""The counting model in TensorFlow: a loop, eager or with tf.function, Keras' fit, or a graph.

In "fits" there is a fit for two epochs each, and before each the model is compiled with a new
optimizer. A graph's session is edl's, fed or with a generator, or one of TensorFlow's own: plain,
or monitored with a hook. See tally.py. The report also says how often the training function was
traced.

EDL_TEST_CLIP: the norm of a step's mean gradient is clipped to that by the script.
EDL_TEST_AVERAGES: it keeps an average of its weights, in the model but not trained; where it clips,
also one of the norms of its gradients.
EDL_TEST_SYNC: beside the counted weights the model has two layers of synchronized batch
normalisation, and their moving statistics are reported. A loop or Keras' fit only.
"""

import os

import numpy as np
from tally import Diary, Late, counted, parser
from tf_model import CountingModel, tf

import edl.tensorflow as edl

options = parser()
options.add_argument("--stream", choices=["shards"])
options.add_argument("--global-batch", type=int)
options.add_argument("--mode", default=os.environ.get("EDL_TEST_MODE", "function"))
args = options.parse_args()
sizes = {"batch_size": args.batch_size}
if args.global_batch:
    sizes = {"global_batch": args.global_batch}
diary = Diary(args)
traces = 0
optimizer = None
clips = "EDL_TEST_CLIP" in os.environ
SHARD = 47  # samples
CLIP = float(os.environ["EDL_TEST_CLIP"]) if clips else float("inf")
averages = "EDL_TEST_AVERAGES" in os.environ
normalises = "EDL_TEST_SYNC" in os.environ


def save():
    if args.checkpoint:
        edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep, sharded=args.sharded)


def sleep():
    diary.in_step()
    return np.float64(0.0)


class Counting(CountingModel):
    def __init__(self):
        super().__init__(args.samples)
        if averages:
            self.target = self.weight("target", (args.samples,), "float64")
            self.norm = tf.Variable(tf.zeros((), tf.float64), trainable=False)
            edl.track(norm=[self.norm])
        if normalises:
            self.features = tf.constant(np.random.default_rng(0).normal(size=(args.samples, 3)))
            self.kernel = self.add_weight(name="kernel", shape=(3, 2), initializer="ones")
            kinds = tf.keras.layers.BatchNormalization, edl.SyncBatchNormalization
            self.norms = [
                kind(synchronized=True, dtype="float64", momentum=0.9, name=f"norm{number}")
                for number, kind in enumerate(kinds)
            ]
            for layer in self.norms:
                layer.build((None, 2))

    def average(self):
        if averages:
            self.target.assign(0.9 * self.target + 0.1 * self.w)

    def call(self, indices):
        global traces
        traces += 1
        return super().call(indices) + self.normalised(indices)

    def normalised(self, indices):
        """Zeros, whose gradients flow through the layers of batch normalisation."""
        if not normalises:
            return 0.0
        found = tf.gather(self.features, indices) @ self.kernel.value
        for layer in self.norms:
            found = tf.tanh(layer(found, training=True))
        found = 0.01 * tf.reduce_sum(found, -1)
        return found - tf.stop_gradient(found)

    def moved(self):
        """`w`, and what Keras has accumulated of its next update: each batch moves it."""
        if args.accumulate == 1:
            return super().moved()
        moved = args.accumulate * super().moved() - optimizer._accumulated_gradients[0].numpy()
        return moved.round(12)  # an update rounds, and a change of 1e-17 is none

    def report(self):
        steps = int(self.steps.numpy())
        more = {"averages": [float(self.norm), float(sum(self.target.numpy()))]} if averages else {}
        if normalises:
            more = {"averages": [v.numpy().tolist() for n in self.norms for v in n.variables]}
        diary.report(self.w.numpy(), self.count.numpy(), steps, traces=traces, **more)

    def update(self, tape, loss, optimizer):
        """Apply the gradients, clipped if that is asked for."""
        if clips:
            tape = edl.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self.trainable_variables)
        if clips:
            gradients, norm = tf.clip_by_global_norm(gradients, CLIP)
            if averages:
                self.norm.assign(0.9 * self.norm + 0.1 * norm)
        optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))


class ClippingInFit(Counting):
    def train_step(self, batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(batch[0]))
        self.update(tape, loss, self.optimizer)
        return {"loss": loss}


def sgd():
    """Keras' own accumulation, where it is asked for: each batch is a step of the job."""
    many = args.accumulate if args.accumulate > 1 else None
    return tf.keras.optimizers.SGD(1.0, gradient_accumulation_steps=many)


def data():
    source = np.arange(args.samples)
    if args.stream:
        source = edl.data.stream(range(0, args.samples, SHARD), numbers, parse=np.int64)
    batches = edl.Dataset(source, **sizes, shuffle=True, seed=7)
    return batches.map(held_up) if args.late and edl.is_warming_up() else batches


def held_up(indices):
    """Return the indices of a batch; in a newcomer, return those after its warm-up late."""
    late = Late(args, after=1)
    return tf.ensure_shape(tf.numpy_function(late.load, [indices], tf.int64), indices.shape)


def numbers(first, offset):
    """Those of one shard."""
    yield from range(first + offset, min(first + SHARD, args.samples))


def loop():
    global optimizer
    dataset = data()
    model = Counting()
    optimizer = edl.Optimizer(sgd(), model)
    save()

    def step(indices):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(indices))
        model.update(tape, loss, optimizer)

    if args.mode == "function":
        step = tf.function(step)
    for epoch in dataset.epochs(args.epochs):
        for indices in dataset:
            diary.begin_step(int(model.steps.numpy()))
            diary.in_step()
            step(indices)
            model.average()
            if not edl.is_warming_up():
                diary.end_step(int(model.steps.numpy()), model.tally(CLIP))
                if args.exchange:
                    edl.notify_batch_end()
                    diary.exchange(int(model.steps.numpy()))
        if not edl.is_warming_up():
            diary.end_epoch(epoch, model.count.numpy())
    model.report()


class Tally(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        diary.begin_step(int(self.model.steps.numpy()))
        diary.in_step()

    def on_train_batch_end(self, batch, logs=None):
        self.model.average()
        diary.end_step(int(self.model.steps.numpy()), self.model.tally(CLIP))
        diary.exchange(int(self.model.steps.numpy()))

    def on_epoch_end(self, epoch, logs=None):
        diary.end_epoch(epoch, self.model.count.numpy(), loss=logs["loss"])


def fit():
    global optimizer
    tf.keras.config.set_floatx("float64")
    dataset = data().map(lambda indices: (indices, tf.zeros_like(indices, tf.float64)))
    model = ClippingInFit() if clips else Counting()
    save()
    in_one = 2 if args.mode == "fits" else args.epochs
    for first in range(0, args.epochs, in_one):
        optimizer = edl.Optimizer(sgd())
        model.compile(optimizer, loss=lambda _, predicted: predicted[:, None])
        callbacks = [edl.KerasCallback(), Tally()]
        last = min(first + in_one, args.epochs)
        history = model.fit(
            dataset, epochs=last, initial_epoch=first, callbacks=callbacks, verbose=0
        )
        assert history.epoch == [*range(first, last)], history.epoch
        assert len(history.history["loss"]) == last - first, history.history
    if not edl.is_warming_up():  # a newcomer that comes after the last fit has trained nothing
        model.report()


class Graph:
    """The counting model for TensorFlow 1; its batches are fed, or come from a generator."""

    def __init__(self, fed):
        v1 = tf.compat.v1
        v1.disable_eager_execution()
        zeros, integer = tf.zeros(args.samples, tf.float64), tf.zeros(args.samples, tf.int64)
        batches = edl.elastic_shard_generator(
            np.arange(args.samples), **sizes, epochs=args.epochs, shuffle=True, seed=7
        )
        signature = tf.TensorSpec((None,), tf.int64)
        if fed:
            self.indices = v1.placeholder(signature.dtype, signature.shape)
        else:
            ready = tf.data.Dataset.from_generator(batches, output_signature=signature).prefetch(2)
            self.indices = v1.data.make_one_shot_iterator(ready).get_next()
        self.w = v1.get_variable("w", initializer=zeros)
        self.before = v1.get_variable("before", initializer=zeros, trainable=False)
        self.count = v1.get_variable("count", initializer=integer, trainable=False)
        self.steps = v1.get_variable("steps", initializer=tf.zeros((), tf.int64), trainable=False)
        self.target = v1.get_variable("target", initializer=zeros, trainable=False)
        self._average = self.target.assign(0.9 * self.target + 0.1 * self.w)
        optimizer = edl.Optimizer(v1.train.GradientDescentOptimizer(1.0))
        loss = tf.reduce_mean(tf.gather(self.w, self.indices))
        if clips:
            pairs = optimizer.compute_gradients(loss, [self.w])
            (mean,), _ = tf.clip_by_global_norm([mean for mean, _ in pairs], CLIP)
            self.train = optimizer.apply_gradients([(mean, self.w)])
        else:
            self.train = optimizer.minimize(loss, var_list=[self.w])
        self._times = v1.placeholder(tf.int64, (args.samples,))
        with tf.control_dependencies([self.before.assign(self.w)]):
            self._note = tf.group(self.count.assign_add(self._times), self.steps.assign_add(1))
        self._epoch = -1
        save()

    def after_step(self, run):
        """Count what the step did; ``run`` is that of a session."""
        if averages:
            run(self._average)
        steps, before, now = run([self.steps, self.before, self.w])
        diary.begin_step(int(steps))
        diary.in_step()
        problem = None
        if (before != now).any():
            times, problem = counted(before, now, CLIP)
            run(self._note, {self._times: times})
        diary.end_step(int(steps), problem)
        self._epoch = edl.current_worker().loader.epoch

    def after_batch_end(self, run):
        """Note an epoch that has ended; in a plain session, the next one may have begun."""
        worker = edl.current_worker()
        if self._epoch >= 0 and (
            worker.loader.ledger.finished or worker.loader.epoch > self._epoch
        ):
            self.end_epoch(run)

    def end_epoch(self, run):
        diary.end_epoch(self._epoch, run(self.count))
        self._epoch = -1

    def report(self, run):
        more = {"averages": float(sum(run(self.target)))} if averages else {}
        diary.report(*run([self.w, self.count]), int(run(self.steps)), **more)


def graph():
    model = Graph(fed=args.mode == "feed")
    with edl.Session() as s:
        while not s.Done():
            s.run(model.train, {model.indices: edl.next_batch()} if args.mode == "feed" else None)
            if not edl.is_warming_up():
                model.after_step(s.run)
                edl.notify_batch_end()
                diary.exchange(int(s.run(model.steps)))
                model.after_batch_end(s.run)
        model.report(s.run)


def threads():
    """EDL_TEST_THREADS: how many operations a session of TensorFlow's own runs at a time."""
    number = int(os.environ.get("EDL_TEST_THREADS", "0"))
    return tf.compat.v1.ConfigProto(inter_op_parallelism_threads=number)


def plain():
    model = Graph(fed=False)
    with tf.compat.v1.Session(config=threads()) as s:
        s.run(tf.compat.v1.global_variables_initializer())
        trial = True
        try:
            while True:
                s.run(model.train)
                if not trial:
                    model.after_step(s.run)
                trial = False
                edl.notify_batch_end()
                model.after_batch_end(s.run)
        except tf.errors.OutOfRangeError:
            pass
        model.report(s.run)


class GraphTally(tf.compat.v1.train.SessionRunHook):
    """A hook of the user's own, after edl's."""

    def __init__(self, model):
        self._model = model

    def after_run(self, run_context, run_values):
        run = run_context.session.run
        if not edl.is_warming_up():
            self._model.after_step(run)
            self._model.after_batch_end(run)

    def end(self, session):
        self._model.report(session.run)


def hook():
    model = Graph(fed=False)
    hooks = [edl.SessionHook(), GraphTally(model)]
    with tf.compat.v1.train.MonitoredTrainingSession(hooks=hooks, config=threads()) as s:
        while not s.should_stop():
            s.run(model.train)


WAYS = {
    "eager": loop,
    "function": loop,
    "fit": fit,
    "fits": fit,
    "graph": graph,
    "feed": graph,
    "plain": plain,
    "hook": hook,
}
edl.init()
WAYS[args.mode]()
