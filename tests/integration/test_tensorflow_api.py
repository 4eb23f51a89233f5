"""`edl.tensorflow`: wrong uses get a sentence, and the three ways train alone and in a ring."""

from __future__ import annotations

from pathlib import Path

import forked
import pytest
from wrong import answers_of, asked, assert_a_sentence

pytestmark = pytest.mark.integration

IMPORTS = """
import pathlib, tempfile, time, zipfile
import numpy as np
import tensorflow as tf
import edl.tensorflow as edl
"""
SGD = "sgd = keras.optimizers.SGD(0.1)\n"  # where it is used: it starts TensorFlow's own threads
SETUP = """
keras = tf.keras
data = np.arange(8, dtype=np.float32)[:, None], np.zeros((8, 1), np.float32)
def network(optimizer=None):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    if optimizer is not None:
        model.compile(optimizer, "mse")
    return model
def descend(loss_of, opt, weights):
    with tf.GradientTape() as tape: loss = loss_of()
    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
def loop(source=data, batch=4):  # its data set, model and optimizers are those that snippets use
    global ds, model, sgd, opt
    edl.init(); ds = edl.Dataset(source, batch); model = network()
    sgd = keras.optimizers.SGD(0.1); opt = edl.Optimizer(sgd, model)
def apply(): descend(lambda: tf.reduce_mean(model(data[0])), opt, model.trainable_variables)
def every_batch(act, epochs=1):
    for _ in ds.epochs(epochs):
        for _ in ds: act()
def compiled(source=data, batch=4):
    global ds, model
    edl.init(); ds = edl.Dataset(source, batch)
    model = network(edl.Optimizer(keras.optimizers.SGD(0.1)))
def fit(*callbacks, x=None, **more):
    callbacks = [*callbacks, edl.KerasCallback()]
    return model.fit(ds if x is None else x, callbacks=callbacks, shuffle=False, verbose=0, **more)
def two():
    global ds, models, opts
    edl.init(); ds = edl.Dataset(data, 4); models = [network(), network()]
    opts = [edl.Optimizer(keras.optimizers.SGD(0.1), model) for model in models]
def job_gradients(model):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(model(data[0]))
    return edl.DistributedGradientTape(tape).gradient(loss, model.trainable_variables)
def is_refused(kind, said, act):
    try: act()
    except kind as error: assert said in str(error), error
    else: raise AssertionError(f"not refused: {said}")
def sentences(of="edl"):  # what edl logs from now on
    import logging
    from types import SimpleNamespace
    heard = []
    logging.getLogger(of).addHandler(
        SimpleNamespace(level=0, handle=lambda record: heard.append(record.getMessage())))
    return heard
def steps_saved(folder):
    return sorted(int(one.stem.split("-")[1]) for one in pathlib.Path(folder).glob("step-*"))
def graph():
    tf.compat.v1.disable_eager_execution()
    edl.init()
    w = tf.compat.v1.get_variable("w", initializer=tf.zeros(()))
    return edl.Optimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0)), w
def pipeline():  # of three epochs with two batches each
    opt, w = graph()
    generator = edl.elastic_shard_generator(data[0], batch_size=4, epochs=3)
    ds = tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec((None, 1)))
    x = tf.compat.v1.data.make_one_shot_iterator(ds.prefetch(2)).get_next()
    step = tf.compat.v1.train.get_or_create_global_step()
    return opt.minimize(tf.reduce_mean(w * x), global_step=step), step
def run_to_the_end(train):
    with tf.compat.v1.Session() as session:
        session.run(tf.compat.v1.global_variables_initializer())
        try:
            while True:
                session.run(train)
                edl.notify_batch_end()
        except tf.errors.OutOfRangeError:
            pass
        return session.run(tf.compat.v1.trainable_variables()[0])
"""
DAMAGED = """
from edl.errors import DataError
class Damaged:
    def __len__(self): return 8
    def __getitem__(self, index):
        if index == 5:
            time.sleep(READS_S)
            raise DataError("record 5 is damaged")
        return data[0][index], data[1][index]
"""
PIPELINE = """
opt, w = graph()
generator = edl.elastic_shard_generator(Damaged(), batch_size=1)
two = tf.TensorSpec((None, 1), tf.float32)
ds = tf.data.Dataset.from_generator(generator, output_signature=(two, two))
train = opt.minimize(tf.reduce_mean(w * tf.compat.v1.data.make_one_shot_iterator(ds).get_next()[0]))
"""
FAST = DAMAGED + "READS_S = 0\n"  # found while earlier steps are trained, and raised in its own
SLOW = DAMAGED + "READS_S = 0.5\n"  # found while TensorFlow makes the training wait for it
BESIDE = """
edl.init(); ds = edl.Dataset(data, 4); model = network()
scale = tf.Variable([1.0], name="scale"); trained = [*model.trainable_variables, scale]
opt = edl.Optimizer(keras.optimizers.Adam(0.1), model)
def apply(): descend(lambda: tf.reduce_mean((model(data[0]) * scale - 1) ** 2), opt, trained)
"""
CLIP = """
def clipped(gradients): return tf.clip_by_global_norm(gradients, 0.1)[0]
def apply_clipped(make=lambda tape: tape):
    with tf.GradientTape() as tape: loss = tf.reduce_mean(model(data[0]))
    weights = model.trainable_variables
    opt.apply_gradients(zip(clipped(make(tape).gradient(loss, weights)), weights))
class Clips(keras.Model):
    def __init__(self, make):
        super().__init__()
        self.layer, self.make = keras.layers.Dense(1), make
    def call(self, x): return self.layer(x)
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape: loss = tf.reduce_mean((self(x) - y) ** 2)
        gradients = self.make(tape).gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(clipped(gradients), self.trainable_variables))
        return {"loss": loss}
"""
SHARED = """
edl.init(); type(edl.current_worker()._coordinator).is_shared = True
layer = keras.layers.BatchNormalization(synchronized=True); layer.build((None, 1))
"""
FAILING_FIT = """
from edl.errors import JobFailed, UsageError
from edl.tensorflow import batch_norm as pass_exchange
def exchange_of_step(): raise ERROR
pass_exchange.exchange_of_step = exchange_of_step
ds = edl.Dataset(data, 4); model = keras.Sequential([keras.Input((1,)), layer])
model.compile(edl.Optimizer(sgd), "mse")
fit(epochs=2)
"""
SHARES = """
every_batch(apply)
replica = edl.current_worker().replica
assert float(replica.state()["model"]["scale:0"][0]) != 1.0, "it is trained, and newcomers get it"
assert "scale:0" in replica.compared()["model"]
assert len(replica.variables()["model"]) == 3
"""
BESIDE_TWO = """
two(); scale = tf.Variable([1.0], name="scale"); trained = [*models[0].trainable_variables, scale]
def f():
    with tf.GradientTape() as tape: loss = tf.reduce_mean((models[0](data[0]) * scale - 1) ** 2)
    means = edl.DistributedGradientTape(tape).gradient(loss, trained)
    opts[0].apply_gradients(zip(means, trained))
"""
AVERAGED = """
from edl.worker.progress import Receive
class Averaged(keras.Model):  # as the DDIM of keras.io
    def __init__(self):
        super().__init__()
        self.net, self.average = network(), network()
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape: loss = tf.reduce_mean((self.net(x) - y) ** 2)
        weights = self.net.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for average, weight in zip(self.average.weights, self.net.weights):
            average.assign(0.9 * average + 0.1 * weight)
        return {"loss": loss}
def missed(updated, others):  # this worker misses an update, and gets the state of one that did not
    replica = edl.current_worker().replica
    before = [[] if others is None else others.get_weights(), updated.get_weights()]
    state = replica.state()
    state["model"] = {name: value + 1 for name, value in state["model"].items()}
    replica.load(state, Receive.STEP)
    for now, was in zip(updated.get_weights(), before[1]): assert np.allclose(now, was + 1)
    for now, was in zip([] if others is None else others.get_weights(), before[0]):
        assert np.allclose(now, was), "its own train_step averages next"
edl.init(); ds = edl.Dataset(data, 4); model = Averaged()
"""
NO_CALL = """
class Coder(keras.Model):  # as the VAE of keras.io
    def __init__(self):
        super().__init__()
        self.coder = keras.Sequential([LAYERS], name="coder")
    def train_step(self, batch):
        x = batch["image"]
        with tf.GradientTape() as tape: loss = tf.reduce_mean((self.coder(x) - x) ** 2)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights))
        return {"loss": loss}
edl.init(); ds = edl.Dataset({"image": data[0]}, 4); model = Coder()
model.compile(edl.Optimizer(keras.optimizers.SGD(0.01)))
"""
BY_LOOP, BY_FIT = "loop(Damaged()); every_batch(apply)", "compiled(Damaged()); fit()"
BY_SESSION = PIPELINE + "run_to_the_end(train)"
WRONG_USES = {  # by their code: a part of the sentence
    "edl.rank()": "call edl.init() first",
    "edl.Optimizer(sgd)": "call edl.init() first",
    "edl.Dataset(data)": "call edl.init() first",
    "loop(); every_batch(lambda: edl.mean(1.0))": (
        "call edl.mean(), edl.gather() and the like after the update of a batch"
    ),
    "edl.init(); tf.function(lambda x: edl.mean(x))(tf.constant(1.0))": (
        "edl.mean takes a number, or a tensor with one element in it"
    ),
    "opt, w = graph(); v = tf.Variable([[1.0]]); edl.diagnose.layer_balance([v, v])": (
        "those of a graph are in its session"
    ),
    "w = [tf.Variable([[1.0]], name=n) for n in 'ab']; edl.diagnose.layer_balance(w).record()": (
        "balance.record(samples)"
    ),
    "edl.init(); edl.Optimizer(network())": "wraps an optimizer of tf.keras",
    "edl.init(); edl.Optimizer('adamm')": "Keras knows no optimizer 'adamm'",
    "edl.init(); edl.Optimizer(sgd, 3)": "a int has no variables",
    "edl.init(); edl.Optimizer(edl.Optimizer(sgd))": "was wrapped by edl.Optimizer already",
    "edl.init(); edl.Optimizer(sgd, backward_passes_per_step=4)": (
        "give the Keras optimizer gradient_accumulation_steps"
    ),
    "edl.init(); edl.Optimizer(sgd); edl.Optimizer(keras.optimizers.Adam())": (
        "two edl.Optimizers, and not each says what it trains"
    ),
    "opt, w = graph(); edl.Optimizer(tf.compat.v1.train.AdamOptimizer(), [w])": (
        "which a graph of TensorFlow 1 cannot have"
    ),
    "compiled(); fit(validation_split=0.2)": "give the part for validation in validation_data",
    "edl.init(); edl.Optimizer(tf.compat.v1.train.AdamOptimizer())": (
        "call tf.compat.v1.disable_eager_execution()"
    ),
    "tf.compat.v1.disable_eager_execution(); edl.init(); edl.Optimizer(sgd)": (
        "eager execution is disabled"
    ),
    "edl.init(); edl.Session()": "edl.Session needs a graph",
    "tf.compat.v1.disable_eager_execution(); edl.init()\nwith edl.Session(): pass": (
        "create an edl.Optimizer before the session"
    ),
    "graph()\nwith edl.Session(): pass": "the job has no data",
    "edl.init(); edl.elastic_shard_generator(data[0]); edl.next_batch()": (
        "no session knows the job"
    ),
    "graph(); edl.elastic_shard_generator()": "edl.elastic_shard_generator() lacks the source",
    "edl.init(); edl.Dataset(np.zeros((0, 3)))": "the data set has 0 samples",
    "edl.init(); edl.Dataset((np.zeros(3), np.zeros(4)))": "different lengths: [3, 4]",
    "edl.init(); edl.Dataset([np.zeros((3, 2)), np.zeros(3)], 2)": (
        "one has shape (3, 2) and one shape (3,)"
    ),
    "edl.init(); edl.Dataset([None, None])": "a NoneType is no number",
    "edl.init(); edl.Dataset(data, 0)": "batch_size is 0",
    "edl.init(); edl.Dataset(iter([1]))": "samples of a list_iterator have no numbers",
    "edl.init(); edl.Dataset(data); edl.Dataset(data)": "two edl data loaders",
    "edl.init(); edl.Dataset(data).shuffle(3)": "shuffle() would break the link",
    "edl.init(); edl.Dataset(data).map(lambda x, y: x).shuffle(3)": (
        "shuffle() would break the link"
    ),
    "edl.init(); edl.Dataset(data).ignore_errors()": "ignore_errors() would break the link",
    "edl.init(); edl.Dataset(data).map(lambda x, y: (x, y), 2, False)": "would mix up the batches",
    "edl.init(); iter(edl.Dataset(data))": "for epoch in dataset.epochs(n)",
    "edl.init(); next(edl.Dataset(data).epochs(1))": "create an edl.Optimizer before",
    "tf.compat.v1.disable_eager_execution(); edl.init()\nfor _ in edl.Dataset(data): pass": (
        "the script builds graphs"
    ),
    "loop()\n@tf.function\ndef f():\n for x in ds: pass\nf()": (
        "cannot be iterated inside a tf.function"
    ),
    "loop()\ndef g():\n for x, y in ds: pass\n@tf.function\ndef f(): g()\nf()": (
        "edl: an edl data set cannot be iterated inside a tf.function"
    ),
    "loop()\n@tf.function\ndef f():\n for x, y in ds: apply()\nf()": (
        "cannot be iterated inside a tf.function"
    ),
    "loop()\nfor _ in ds.epochs(1): list(ds)": "a batch was taken and no gradients were applied",
    "loop(); edl.DistributedGradientTape(tf.GradientTape(), op=edl.Sum)": "takes nothing else",
    "loop(); apply()": "without a batch from edl",
    "compiled(); fit(keras.callbacks.BackupAndRestore(tempfile.mkdtemp()))": (
        "BackupAndRestore: on a newcomer it would load an old backup over the job's state; use edl"
    ),
    "compiled(); fit(edl.KerasCallback())": "two edl.KerasCallback()",
    "compiled(); fit(keras.callbacks.CallbackList([]))": (
        "CallbackList: the callbacks in it would write files on all workers; give fit"
    ),
    "compiled(); fit(); next(ds.epochs(3))": (
        "this script has called fit, and a newcomer could not tell"
    ),
    "compiled(); model.fit(*data, batch_size=4, callbacks=[edl.KerasCallback()])": (
        "model.fit was given a ndarray to train on; give it the edl.Dataset"
    ),
    "compiled(); fit(x=tf.data.Dataset.from_tensor_slices(data).batch(4))": (
        "model.fit was given another tf.data.Dataset to train on"
    ),
    "compiled(); fit(validation_data=ds)": "validation_data is the edl.Dataset that is trained on",
    "compiled(); fit(steps_per_epoch=2)": "leave out steps_per_epoch",
    "edl.init(); edl.KerasCallback(max_steps=0)": (
        "the number of steps is 0; it must be a whole number"
    ),
    "edl.init(); edl.Dataset(tf.data.Dataset.from_tensor_slices(data))": (
        "list(dataset.unbatch().as_numpy_iterator())"
    ),
    "edl.init(); edl.Dataset((tf.ragged.constant([[1], [2, 3]]), np.zeros(2)))": (
        "edl.Dataset was given a RaggedTensor: make it an array (to_tensor())"
    ),
    "edl.init(); edl.Dataset(tf.sparse.from_dense([[1.0, 0.0]]))": (
        "edl.Dataset was given a SparseTensor: make it an array (tf.sparse.to_dense)"
    ),
    "edl.init(); edl.Dataset(([[1], [2, 3]], [0, 1]), 2)": (
        "one has shape (1,) and one (2,); pad them to one length, or give edl.Dataset a collate_fn"
    ),
    "edl.init(); edl.Dataset((np.zeros(2), None))": "a part of the data set is a NoneType",
    "edl.init(); edl.Dataset((np.array(['a', None]), np.zeros(2)))": (
        "a column has values of type NoneType among others"
    ),
    "edl.init(); edl.Dataset(np.array(['2020-01-01'], dtype='datetime64[s]'))": (
        "TensorFlow has no type for a column of datetime64[s]"
    ),
    "loop([(n, target) for n, target in enumerate([3, 4, 2.5])], 1); every_batch(apply)": (
        "is unlike the first one: float64 beside int64. All samples must have the same parts"
    ),
    "edl.init(); edl.Dataset([[1], [2, 3]], collate_fn=lambda samples: samples)": (
        "collate_fn returned a list; it must return arrays"
    ),
    "loop(); tf.distribute.MirroredStrategy().experimental_distribute_dataset(ds)": (
        "leave out `with strategy.scope():`, strategy.run and experimental_distribute_dataset"
    ),
    "loop(); run = tf.function(tf.distribute.MirroredStrategy().run); run(apply)": (
        "tf.distribute.MirroredStrategy distributes the training"
    ),
    "compiled(); model.fit(tf.data.Dataset.zip((ds, ds)), callbacks=[edl.KerasCallback()])": (
        "an edl.Dataset is read by a ZipDataset"
    ),
    "compiled(); ds.apply(tf.data.experimental.prefetch_to_device('/cpu:0'))": (
        "an edl.Dataset is read by a CopyToDeviceDataset"
    ),
    "compiled(); ds.apply(lambda ds: tf.data.Dataset.range(3))": (
        "an edl.Dataset is read by apply() with a RangeDataset"
    ),
    "loop(); every_batch(tf.function(apply, jit_compile=True))": (
        "a tf.function with jit_compile=True applies gradients"
    ),
    "edl.init(); ds = edl.Dataset(data); network(edl.Optimizer(sgd)).fit(ds, shuffle=False)": (
        "callbacks=[edl.KerasCallback()]"
    ),
    "edl.init(); network(edl.Optimizer(sgd)).fit(*data, callbacks=[edl.KerasCallback()])": (
        "needs an edl.Dataset"
    ),
    "edl.init(); edl.track(a=1)": "has neither variables nor state_dict()",
    """
from edl.tensorflow.training import check_stateless
edl.init()
layers = keras.Input(batch_shape=(4, 1, 1)), keras.layers.LSTM(2, stateful=True, name="memory")
model = keras.Sequential(layers)
check_stateless(model, shared=False)
check_stateless(model, shared=True)
""": "the layer memory has stateful=True: its state goes on from batch to batch",
    """
edl.init(); ds = edl.Dataset(data, 4)
constant, scaling = edl.schedules.Constant(peak_lr=0.1), edl.schedules.Scaling(batch=4)
rate = edl.LRSchedule(constant, scaling)
edl.Optimizer(keras.optimizers.SGD(rate, momentum=0.9), network())
edl.Optimizer(sgd, network())
""": "corrects the momentum of SGD in steps of its own only",
    """
def train():
    with tf.GradientTape() as tape: loss = sum(tf.reduce_mean(m(data[0])) for m in models)
    weights = [w for m in models for w in m.trainable_variables]
    edl.DistributedGradientTape(tape).gradient(loss, weights)
two(); every_batch(train)
""": "the gradients of each model's variables with an edl.DistributedGradientTape of its own",
    (
        BESIDE + "every_batch(apply)"
    ): "beside the model the script trains scale:0, and newcomers would not receive this",
    (
        BESIDE + "every_batch(tf.function(apply))"
    ): "before the first batch call optimizer.build(variables) with all variables",
    (BESIDE_TWO + "every_batch(f)"): "beside the model the script trains scale:0",
    """
edl.init(); ds = edl.Dataset(data, 4); edl.Optimizer(sgd, network())
lazy = keras.Sequential([keras.layers.Dense(1)], name="lazy")
edl.Optimizer(keras.optimizers.SGD(0.1), lazy)
ds.epochs(1)
""": "edl knows no variables of the model lazy: build it before training begins",
    """
graph(); g = edl.elastic_shard_generator(data[0], 4)
tf.data.Dataset.from_generator(g, output_signature=tf.TensorSpec(None)).shuffle(9)
with edl.Session(): pass
""": "shuffled after edl.elastic_shard_generator",
    "loop(); every_batch(lambda: (apply(), apply()))": "applied twice for one batch",
    (
        CLIP + "loop(); every_batch(apply_clipped)"
    ): "compute them with edl.DistributedGradientTape(tape)",
    """
def train():
    with tf.GradientTape() as tape: loss = tf.reduce_mean(model(data[0]))
    a, b = tape.gradient(loss, model.trainable_variables)
    opt.apply_gradients(zip([a, b / 8], model.trainable_variables))
loop(); every_batch(train)
""": "some of the gradients are this worker's own",
    """
opt, w = graph(); g, = tf.gradients(w * 3, [w])
opt.apply_gradients([(tf.clip_by_norm(g, 1.0), w)])
""": "compute them with compute_gradients() of the edl.Optimizer",
    """
opt, w = graph(); pairs = opt.compute_gradients(w * 3, [w])
opt.apply_gradients(pairs); edl.elastic_shard_generator(data[0])
with edl.Session() as s: s.run(pairs[0][0])
""": "fetch them together with what optimizer.apply_gradients() returned",
    "two(); every_batch(lambda: [job_gradients(model) for model in models])": (
        "apply the gradients that an edl.DistributedGradientTape has computed before the next"
    ),
    """
loop(); old = None
def train():
    global old
    old = old or job_gradients(model)
    opt.apply_gradients(zip(old, model.trainable_variables))
every_batch(train)
""": "no edl.DistributedGradientTape has computed for this batch",
    "loop(); tf.function(apply)()": "without a batch from edl",
    "model = network(); edl.init(); ds = edl.Dataset(data); edl.Optimizer(sgd); ds.epochs(1)": (
        "edl knows no variables of the model"
    ),
    "edl.init(); ds = edl.Dataset(data); model = network(sgd); fit()": (
        "compile(optimizer=edl.Optimizer(SGD(...)))"
    ),
    """
compiled(); listed = keras.callbacks.CallbackList([edl.KerasCallback()], model=model)
model.fit(ds, callbacks=listed)
""": "fit was given a keras.callbacks.CallbackList, which does not know the model and the epoch",
    "compiled(); model.fit(ds, callbacks=keras.callbacks.CallbackList([edl.KerasCallback()]))": (
        "give it the callbacks themselves: model.fit(..., callbacks=[edl.KerasCallback(), ...])"
    ),
    "compiled(); fit(); model = network(edl.Optimizer(keras.optimizers.SGD(0.2))); fit()": (
        "run each fold and each trial, with data or a model of its own, as a job of its own"
    ),
    """
compiled(); look = lambda *_, **__: model.evaluate(ds)
fit(keras.callbacks.LambdaCallback(on_epoch_end=look))
""": "fit takes the batches of the edl.Dataset, each for one step of the job",
    """
compiled(); look = lambda *_, **__: next(iter(ds))
fit(keras.callbacks.LambdaCallback(on_train_batch_end=look))
""": "fit takes the batches of the edl.Dataset, each for one step of the job",
    """
class Batches(keras.utils.PyDataset):
    def __len__(self): return 2
    def __getitem__(self, index): return data[0][:4], data[1][:4]
edl.init(); edl.Dataset(Batches())
""": "the items of a Batches are batches, and edl forms batches itself",
    """
class Rows:
    shape = (2, 1)
    def __len__(self): return 2
    def __getitem__(self, index): return {"x": index}
    def __getitems__(self, indices): return [self[index] for index in indices]
edl.init(); edl.Dataset((Rows(), np.zeros(2)))
""": "a part of the data set is a Rows, which is no column of one value for each sample",
    """
lengths = [2] * 160; lengths[5] = 3
pad = lambda samples: keras.utils.pad_sequences(samples)
edl.init(); ds = edl.Dataset([[0] * n for n in lengths], 2, collate_fn=pad)
model = network(); opt = edl.Optimizer(sgd, model)
every_batch(apply)
""": "pad this dimension to one length, for it did not vary there",
    """
edl.init(); ds = edl.Dataset(data, 4)
with tf.distribute.MirroredStrategy().scope(): model = network(edl.Optimizer(sgd))
fit()
""": "tf.distribute.MirroredStrategy distributes the training over its own replicas",
    """
edl.init(); ds = edl.Dataset(data, 4)
with tf.distribute.OneDeviceStrategy('/cpu:0').scope(): model = network()
model.compile(edl.Optimizer(sgd), 'mse'); fit()
""": "tf.distribute.OneDeviceStrategy distributes the training over its own replicas",
    (
        SHARED + "tf.function(lambda x: layer(x, training=True), jit_compile=True)(data[0])"
    ): "a layer with synchronized=True is called in a tf.function with jit_compile=True",
    (
        SHARED
        + """
x = tf.constant(data[0])
with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
        inner.watch(x); p = tf.reduce_sum(layer(x, training=True) ** 3)
    penalty = tf.reduce_sum(inner.gradient(p, x) ** 2)
outer.gradient(penalty, x)
"""
    ): "has no second derivative over the workers",
    (
        SHARED
        + "layer = keras.layers.BatchNormalization(1, synchronized=True)\n"
        + "layer(np.ones((2, 4, 3)), training=True, mask=np.ones((2, 4), bool))"
    ): "with a mask normalises the last axis; with axis=1, leave",
    """
two()
from edl.tensorflow import training
reduction = training.current().reduction
type(reduction._reduction).exchanges = True
reduction.exchange()
""": "layers with synchronized=True work with one edl.Optimizer",
    (
        SHARED + FAILING_FIT.replace("ERROR", "UsageError('no exchange here')")
    ): "edl: no exchange here\n",
    """
from edl.tensorflow.batch_norm import numbered
numbered(lambda mine: [mine, np.array([2.0, 0.0]).tobytes()], 1, np.zeros(1))
""": "the workers came to different layers with synchronized=True",
    """
loop(); edl.DistributedGradientTape(tf.GradientTape()).register_local_source(tf.Variable(1.0))
""": "variables that each worker has for its own would be lost with the worker",
    """
class Mean(keras.layers.Layer):
    def call(self, x): return edl.mean(1.0)
loop(); every_batch(lambda: Mean()(data[0]))
""": "workers exchange numbers between two steps",
    """
loop(); strategy = tf.distribute.MirroredStrategy()
next(iter(strategy.distribute_datasets_from_function(lambda context: ds)))
""": "an edl.Dataset is read by a tf.distribute strategy",
    "loop()\n@tf.function\ndef f(ds):\n for x, y in ds: apply()\nfor _ in ds.epochs(1): f(ds)": (
        "an edl.Dataset is read by a tf.function, as its argument"
    ),
    """
loop(data, 1)
for _ in ds.epochs(1):
    a, b = iter(ds), iter(ds)
    for each in (a, b, a): next(each); apply()
""": "two iterators of the edl.Dataset are open at once",
    """
edl.init(); some = tf.data.Options(); some.deterministic = False
edl.Dataset(data).with_options(some)
""": "would mix up the batches",
    (
        NO_CALL.replace("LAYERS", "keras.layers.Dense(1)") + "fit()"
    ): "Coder has no call(), and these layers of it are not built: coder; call each once",
}
WRONG_USES |= dict.fromkeys(
    (SLOW + BY_FIT, FAST + BY_LOOP, FAST + BY_SESSION), "record 5 is damaged"
)
LONG_WRONG_USES = {  # other ways to a use above, which is named; tests/README.md, Time
    # eagerly
    "loop(); f = tf.function(apply); every_batch(lambda: (f(), f()))": (
        "applied twice for one batch"
    ),
    # eagerly
    (
        CLIP + "loop(); every_batch(tf.function(apply_clipped))"
    ): "compute them with edl.DistributedGradientTape(tape)",
    # eagerly
    (
        CLIP
        + """
edl.init(); ds = edl.Dataset(data, 4); model = Clips(lambda tape: tape)
model.compile(edl.Optimizer(sgd), "mse"); fit()
"""
    ): "compute them with edl.DistributedGradientTape(tape)",
    # two tapes before the first update
    """
def train():
    with tf.GradientTape(True) as tape: loss = tf.reduce_mean(model(data[0]))
    tape = edl.DistributedGradientTape(tape)
    for v in model.trainable_variables: tape.gradient(loss, [v])
loop(); every_batch(train)
""": "applied twice for one batch",
    # in the function's own thread
    """
from concurrent.futures import ThreadPoolExecutor
loop(); f = tf.function(apply).get_concrete_function()
with ThreadPoolExecutor() as pool: pool.submit(f).result()
""": "without a batch from edl",
    # a fit that is not wrapped
    "compiled(); fit(); model.compile(keras.optimizers.Adam(1e-5), 'mse'); fit()": (
        "compile(optimizer=edl.Optimizer(Adam(...)))"
    ),
    # a fit for each trial
    "compiled(); fit(); edl.Dataset(data, 4)": (
        "run each fold and each trial, with data or a model of its own, as a job of its own"
    ),
    # KerasCallback(max_steps=0)
    """
compiled()
for _ in range(2): model.fit(ds, callbacks=[edl.KerasCallback(max_steps=2)], shuffle=False)
""": "and it has made 2: this fit would train nothing",
    # an error there
    (
        SHARED + FAILING_FIT.replace("ERROR", "JobFailed('the job is over')")
    ): "edl: the job is over\n",
}
LONG_WRONG_USES |= dict.fromkeys(
    (FAST + BY_FIT, SLOW + BY_LOOP, SLOW + BY_SESSION), "record 5 is damaged"
)


RIGHT_USES = {
    "synchronized batch normalisation as in one process": """
import threading
from edl.tensorflow import batch_norm as pass_exchange
edl.init(); type(edl.current_worker()._coordinator).is_shared = True
here = threading.local()  # the exchange and the weight of the worker that this thread is
pass_exchange.exchange_of_step = lambda: here.worker
pass_exchange.next_number = lambda: 1  # two threads, eagerly
def from_graph(act):
    worker = here.worker
    return lambda row: act(row, *worker)
pass_exchange._from_graph = from_graph
of_model = tf.Variable(1.0)
def workers(weights, told):
    barrier, sent = threading.Barrier(len(weights), timeout=120), [b""] * len(weights)
    def of(rank):
        def exchange(payload):
            of_model.numpy()  # as a repair of the ring does
            sent[rank] = payload; barrier.wait(); answer = [*sent]; barrier.wait()
            told.setdefault(rank, []).append(answer)
            return answer
        return exchange, weights[rank]
    return [of(rank) for rank in range(len(weights))]
def told_again(weight, rank, answers):  # in a graph nobody waits for another worker's thread
    def exchange(payload):
        answer = answers.pop(0)
        assert np.allclose(np.frombuffer(payload), np.frombuffer(answer[rank])), rank
        return answer
    return exchange, weight
def made(kind, shape, **options):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(4), kind(**options), keras.layers.Activation("tanh")]
    model = keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(2)])
    return model, [v.value for v in model.trainable_variables]
def train(model, variables, x, y, mask, in_graph):
    def passes(x, y, mask):
        with tf.GradientTape() as tape:
            tape.watch(x)
            found = model.layers[0](x)
            found = model.layers[1](found, training=True, mask=mask)
            found = model.layers[3](model.layers[2](found))
            loss = tf.reduce_mean((found - y) ** 2)
        return found, tape.gradient(loss, [x, *variables])
    return (tf.function(passes) if in_graph else passes)(x, y, mask)
def check(sizes, shape, masked, kind, **options):
    rng, whole = np.random.default_rng(0), sum(sizes)
    x = tf.constant(rng.normal(30, 2, (whole, *shape)))
    y = tf.constant(rng.normal(size=(whole, *shape[:-1], 2)))
    mask = tf.constant(rng.random((whole, *shape[:-1])) < 0.7) if masked else None
    alone, variables = made(keras.layers.BatchNormalization, shape)
    expected = train(alone, variables, x, y, mask, False)
    told = {}
    each = workers(sizes, told)
    def work(rank, model, in_graph):
        first = sum(sizes[:rank])
        part = slice(first, first + sizes[rank]) if sizes[rank] else slice(0, 2)
        times = 1.0 if sizes[rank] else 7.0  # a batch for padding counts for nothing
        own = x[part] * times, y[part], None if mask is None else mask[part]
        return train(*model, *own, in_graph)
    def look(models, results):
        some = [rank for rank, size in enumerate(sizes) if size]
        off = 1e-6 if masked else 1e-12  # with a mask Keras divides by 1e-7 more elements
        def same(found, wanted): assert np.allclose(found, wanted, 1e-9, off), (sizes, shape)
        same(np.concatenate([results[rank][0] for rank in some]), expected[0])
        by_x = [results[rank][1][0] * (sizes[rank] / whole) for rank in some]
        same(np.concatenate(by_x), expected[1][0])
        for place in range(1, len(expected[1])):
            parts = [results[rank][1][place] * (sizes[rank] / whole) for rank in range(len(sizes))]
            same(sum(parts), expected[1][place])
        for model, _ in models:
            for own, one in zip(model.layers[1].variables, alone.layers[1].variables, strict=True):
                same(own.numpy(), one.numpy())
    models, results = [made(kind, shape, **options) for _ in sizes], [None] * len(sizes)
    def worker(rank):
        here.worker = each[rank]
        results[rank] = work(rank, models[rank], False)
    threads = [threading.Thread(target=worker, args=(rank,)) for rank in range(len(sizes))]
    for thread in threads: thread.start()
    for thread in threads: thread.join(200)
    look(models, results)
    models = [made(kind, shape, **options) for _ in sizes]
    for rank in range(len(sizes)):
        here.worker = told_again(sizes[rank], rank, told[rank])
        results[rank] = work(rank, models[rank], True)
        assert told[rank] == []
    look(models, results)
keras.config.set_floatx("float64")
plain = {"kind": keras.layers.BatchNormalization, "synchronized": True}
check((5, 2), (3,), False, **plain)
check((4, 0, 1), (2, 2, 3), False, kind=edl.SyncBatchNormalization)
check((5, 2), (6, 3), True, **plain)
# What is padding on all workers leaves no trace.
layer, each = edl.SyncBatchNormalization(), workers([0], {})
here.worker = each[0]
found = layer(np.ones((4, 3)), training=True)
assert np.all(layer.moving_mean == 0.0) and np.all(layer.moving_variance == 1.0)
""",
    "synchronized batch normalisation where nobody else is": """
edl.init(); type(edl.current_worker()._coordinator).is_shared = True
x = np.random.default_rng(0).normal(size=(8, 5, 3)).astype(np.float32)
mask = np.arange(5) < np.arange(8)[:, None]
def same(found, wanted): assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6), (found, wanted)
for options in ({}, {"axis": 1}, {"renorm": True}, {"dtype": "mixed_float16"}):
    one, other = (keras.layers.BatchNormalization(synchronized=s, **options) for s in (True, False))
    for training in (True, False):
        same(one(x, training=training), other(x, training=training))
    for own, plain in zip(one.variables, other.variables, strict=True):
        same(own.numpy(), plain.numpy())
one, other = (keras.layers.BatchNormalization(synchronized=s) for s in (True, False))
same(one(x, training=True, mask=mask), other(x, training=True, mask=mask))
for keep in (True, False):
    moments = (keras.ops.moments(x, [0, 1], keep, synchronized=s) for s in (True, False))
    for own, plain in zip(*moments, strict=True): same(own, plain)
model = keras.Sequential([keras.Input((3,)), edl.SyncBatchNormalization(fused=False, name="n")])
model.save(tempfile.gettempdir() + "/synchronized.keras")
(layer,) = keras.models.load_model(tempfile.gettempdir() + "/synchronized.keras").layers
assert type(layer) is edl.SyncBatchNormalization and layer.synchronized and layer.name == "n"
for wrong in ({"fused": True}, {"fused": None}, {"synchronized": False}):
    is_refused(ValueError, "", lambda: edl.SyncBatchNormalization(**wrong))
# Between two steps, and in a step of this worker alone.
ds = edl.Dataset(data, 4); opt = edl.Optimizer(sgd, model)
for _ in ds.epochs(1):
    for a, b in ds:
        with tf.GradientTape() as tape: loss = tf.reduce_mean(model(a * [1, 2, 3], training=True))
        opt.apply_gradients(zip(
            tape.gradient(loss, model.trainable_variables), model.trainable_variables))
""",
    "what a callback remembers of the fit before": """
from edl.tensorflow import training
class Best(keras.callbacks.Callback):
    def __init__(self): super().__init__(); self.best, self.fits = None, 0
    def on_train_begin(self, logs=None): self.fits += 1
    def on_epoch_end(self, epoch, logs=None): self.best = self.best or logs["loss"]
def remembered():
    model.fit(ds, verbose=0, callbacks=[edl.KerasCallback(), best])
    return training.current().callback_states.state_dict()["states"][0]
edl.init(); ds = edl.Dataset(data, 4); model = network(edl.Optimizer(sgd)); best = Best()
first = remembered()
assert first == {"best": best.best, "fits": 1} and best.best is not None
assert remembered() == {"best": best.best, "fits": 2}, "a newcomer has seen no fit before"
""",
    "numbers of a fit that JSON does not know, which newcomers and checkpoints get": """
import datetime, json
edl.init(); ds = edl.Dataset(data, 4); model = network(edl.Optimizer(sgd))
odd = {"on": datetime.date(2026, 11, 21), "b": b"x", "uneven": [[1], [1, 2]], "n": np.ones(2),
    "half": tf.constant(0.5, tf.bfloat16)}
adds = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(odd))
for _ in range(2): model.fit(ds, verbose=0, callbacks=[adds, edl.KerasCallback()])
(sent, *_) = json.loads(json.dumps(edl.current_worker().loader.progress.header()))["fits"]
del sent["history"]["loss"]
assert sent["history"] == {"on": ["2026-11-21"], "b": ["b'x'"], "uneven": [[[1], [1, 2]]],
    "n": [[1.0, 1.0]], "half": [0.5]}, sent
""",
    "fits that follow each other, with another optimizer and more to train": """
class Seen(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        loader = edl.current_worker().loader
        seen.append((epoch, loader.epoch))
        assert loader.ledger.done == 0
    def on_train_batch_end(self, batch, logs=None):
        if stops and edl.step() == stops[0]: self.model.stop_training = stops.pop(0) > 0
def fit(**named):
    last = seen[-1][1] if seen else -1
    history = model.fit(ds, verbose=0, callbacks=[edl.KerasCallback(), Seen()], **named)
    assert model.history is history and model._initial_epoch is None
    assert [mine + last + 1 - history.epoch[0] for mine in history.epoch] == [
        job for _, job in seen if job > last], (seen, history.epoch)
    assert not edl.current_worker().finished
    return history
seen, stops = [], []
edl.init(); ds = edl.Dataset(data, 2, shuffle=True)
body = keras.Sequential([keras.Input((1,)), keras.layers.Dense(3)]); body.trainable = False
model = keras.Sequential([keras.Input((1,)), body, keras.layers.Dense(1)])
first = edl.Optimizer(keras.optimizers.Adam(0.1)); model.compile(first, "mse")
frozen = body.get_weights()[0].copy()
history = fit(epochs=3, initial_epoch=1, validation_data=data)
assert history.epoch == [1, 2] and len(history.history["val_loss"]) == 2
assert (edl.step(), int(first.iterations), len(first.variables)) == (8, 8, 6)
assert np.array_equal(body.get_weights()[0], frozen)
body.trainable = True
second = edl.Optimizer(keras.optimizers.SGD(1e-3, momentum=0.9)); model.compile(second, "mse")
assert model.evaluate(*data, verbose=0) and model.predict(data[0], verbose=0) is not None
fine = fit(epochs=history.epoch[-1] + 2, initial_epoch=history.epoch[-1])
assert fine.epoch == [2, 3] and (edl.step(), int(second.iterations)) == (16, 8)
assert not np.array_equal(body.get_weights()[0], frozen)
replica = edl.current_worker().replica
assert len(replica.variables()["optimizer"]) == len(second.variables), replica.variables()
stops.append(18)  # in the midst of an epoch, which ends the fit, and not the next one
assert fit(epochs=5).epoch == [0] and edl.step() == 19
assert fit(epochs=1).epoch == [0] and edl.step() == 23
for _ in range(2): fit(epochs=1)  # a loop over fits
body.trainable = False; model.compile(first, "mse")  # and back
fit(epochs=1)
assert (edl.step(), int(first.iterations)) == (35, 12)
assert len(replica.variables()["optimizer"]) == len(first.variables)
loader = edl.current_worker().loader
assert loader.progress.untrained == 0 and loader.epoch == 8, loader.epoch
assert [fit.until for fit in loader.progress.fits] == [2, 4, 5, 6, 7, 8]
""",
    "a fit that closes its last batch before it waits for the others": """
from edl.tensorflow import fit
from edl.tensorflow.keras_callbacks import EpochMetrics
order, close, combine = [], fit.end_batch, EpochMetrics.combine
fit.end_batch = lambda worker: (order.append("closed"), close(worker))
EpochMetrics.combine = lambda *each: (order.append("combined"), combine(*each))[1]
edl.init(); ds = edl.Dataset(data, 4); model = network(edl.Optimizer(sgd))
model.fit(ds, epochs=1, callbacks=[edl.KerasCallback()], shuffle=False, verbose=0)
assert order[:2] == ["closed", "combined"], order
""",
    "all metrics of Keras over the samples of all workers": """
import inspect
from types import SimpleNamespace
from edl.tensorflow.keras_callbacks import EpochMetrics, is_additive
rng = np.random.default_rng(0)
labels, ones = rng.integers(0, 3, 23), np.eye(3, dtype=np.float32)
guesses = rng.dirichlet(np.ones(3), 23).astype(np.float32)
target, at = {"target_class_ids": [0]}, {"num_classes": 3}
options = {"MeanIoU": at, "IoU": at | target, "OneHotIoU": at | target, "OneHotMeanIoU": at}
options |= {"BinaryIoU": target, "PrecisionAtRecall": {"recall": 0.5}}
options |= {"RecallAtPrecision": {"precision": 0.5}}
options |= {"SensitivityAtSpecificity": {"specificity": 0.5}}
options |= {"SpecificityAtSensitivity": {"sensitivity": 0.5}}
options |= {"MeanMetricWrapper": {"fn": lambda a, b: keras.ops.mean(abs(a - b), axis=-1)}}
def kinds():
    for name, kind in sorted(vars(keras.metrics).items()):
        if inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric):
            if kind is not keras.metrics.Metric: yield name, kind
def numbers(name, part):
    if name in ("Mean", "Sum"): return (guesses[part],)
    if name in ("MeanIoU", "IoU"): return labels[part], labels[::-1][part]
    sparse = name.startswith("Sparse")
    return labels[part, None] if sparse else ones[labels[part]], guesses[part]
def worker(payloads):
    def exchange(mine):
        payloads.append(mine); return payloads
    return SimpleNamespace(exchange_bytes=exchange, rank=0, is_shared=True)
def model_of(metric): return SimpleNamespace(metrics=[metric], get_metrics_result=lambda: {"m": 0})
seen = 0
for name, kind in kinds():
    for cut in ([10], [3, 15]):
        whole, payloads = kind(**options.get(name, {})), []
        for part in np.split(np.arange(23), [5, 12]): whole.update_state(*numbers(name, part))
        for part in np.split(np.arange(23), cut):
            one = kind(**options.get(name, {})); one.update_state(*numbers(name, part))
            assert is_additive(one), name
            EpochMetrics(model_of(one)).combine(worker(payloads), len(part))
        found, expected = np.asarray(one.result()), np.asarray(whole.result())
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-6), (name, found, expected)
    seen += 1
assert seen > 40, seen
class Padded(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 1:  # as if it counted for nothing
            edl.current_worker().loader.engine.batches.weight = 0
            edl_callback.metrics.begin_batch(0)
edl.init(); ds = edl.Dataset(data, 4); model = network()
model.compile(edl.Optimizer(keras.optimizers.SGD(0.0)), "mse")
edl_callback = edl.KerasCallback()
class Sum(keras.metrics.Sum):
    def update_state(self, y, p, sample_weight=None): super().update_state(y * 0 + 1)
model.compile(model.optimizer, "mse", metrics=[Sum(name="s")])
history = model.fit(ds, epochs=1, callbacks=[edl_callback, Padded()], shuffle=False, verbose=0)
assert history.history["s"] == [4.0], history.history
""",
    "own metrics that are sums, and one that is none": """
import sys
from types import SimpleNamespace
from edl.tensorflow.keras_callbacks import EpochMetrics, is_additive
folder = tempfile.mkdtemp(); sys.path.insert(0, folder)
pathlib.Path(folder, "own_metrics.py").write_text('''import keras, numpy as np
class Adds(keras.metrics.Metric):
    def __init__(self, **k):
        super().__init__(**k); self.t = self.add_weight(name="t", initializer="zeros")
    def update_state(self, y, p, sample_weight=None): self.t.assign_add(keras.ops.sum(p))
    def result(self): return self.t * 1.0
    def reset_state(self): self.t.assign(0.0)
class Assigns(Adds):
    def update_state(self, y, p, sample_weight=None): self.t.assign(self.t + keras.ops.sum(p))
class Largest(Adds):
    def update_state(self, y, p, sample_weight=None):
        self.t.assign(keras.ops.maximum(self.t, keras.ops.max(p)))
class Inside(keras.metrics.Metric):
    def __init__(self, **k): super().__init__(**k); self.mean = keras.metrics.Mean()
    def update_state(self, y, p, sample_weight=None): self.mean.update_state(p)
    def result(self): return self.mean.result()
class Said(Largest):
    edl_additive = True
class Running(Adds):  # a mean by steps
    def update_state(self, y, p, sample_weight=None):
        self.t.assign_add((keras.ops.mean(p) - self.t) / 2.0)
class ByAnotherName(Adds):
    def update_state(self, y, p, sample_weight=None):
        change = keras.ops.mean(p) - self.t; self.t.assign_add(change / 2.0)
class AlsoInAFunction(Adds):
    def __init__(self, **k): super().__init__(**k); self.n = self.add_weight(initializer="zeros")
    def update_state(self, y, p, sample_weight=None):
        self.n.assign_add(1.0); keep_largest(self.t, p)
class Helped(Adds):
    def update_state(self, y, p, sample_weight=None): self.keep(p)
    def keep(self, p): self.t.assign(keras.ops.maximum(self.t, keras.ops.max(p)))
class Elsewhere(keras.metrics.Metric):
    def update_state(self, y, p, sample_weight=None): self.last = float(p[0])
    def result(self): return self.last
class Above(Adds):
    def update_state(self, y, p, sample_weight=None): super().update_state(y, p * 2)
    def result(self): return self.share()
    def share(self): return self.t / 2.0
class Parts(keras.metrics.Metric):
    def __init__(self, **k):
        super().__init__(**k); self.parts = [self.add_weight(initializer="zeros") for _ in "ab"]
    def update_state(self, y, p, sample_weight=None):
        p = keras.ops.cast(p, self.parts[0].dtype)
        self.parts[0].assign_add(p[0]); self.parts[1].assign(p[1] + self.parts[1])
    def result(self): return self.parts[0] / self.parts[1]
class Several(Largest):
    def result(self): return {"a": self.t * 1.0, "b": np.array([1.0, 2.0]) * float(self.t)}
class Subtracts(Adds):
    def update_state(self, y, p, sample_weight=None): self.t.assign_sub(keras.ops.sum(p))
class AddsByOps(Adds):
    def update_state(self, y, p, sample_weight=None):
        self.t.assign(keras.ops.add(keras.ops.sum(p), self.t))
class PassesOn(keras.metrics.Mean):
    def update_state(self, y, p, sample_weight=None): super(PassesOn, self).update_state(p)
class InPython(Adds):
    def update_state(self, y, p, sample_weight=None): self.seen = [*getattr(self, "seen", []), p]
class RunningMean(Adds):
    def update_state(self, y, p, sample_weight=None):
        self.t.assign(self.t + 0.1 * (keras.ops.mean(p) - self.t))
class DecayingSum(Adds):
    def update_state(self, y, p, sample_weight=None): self.t.assign_add(-0.1 * self.t)
class LargestOfTwice(Largest):
    def update_state(self, y, p, sample_weight=None): super().update_state(y, 2 * p)
def keep_largest(v, p): v.assign(keras.ops.maximum(v, keras.ops.max(p)))
class InAFunction(Adds):
    def update_state(self, y, p, sample_weight=None): keep_largest(self.t, p)
''')
from own_metrics import *
right = (Adds, Assigns, Inside, Said, Subtracts, AddsByOps, PassesOn, Above, Parts)
wrong = (Largest, InPython, RunningMean, DecayingSum, LargestOfTwice, InAFunction)
wrong += (Running, ByAnotherName, AlsoInAFunction, Helped, Elsewhere)
for kind in right + wrong: assert is_additive(kind()) == (kind in right), kind
said = sentences("edl.tensorflow.keras_callbacks")
for kind, expected in ((Largest, 5.0), (Several, {"a": 5.0, "b": [5.0, 10.0]})):
    metric = kind(name="top"); metric.update_state(None, tf.constant([2.0, 8.0]))
    model = SimpleNamespace(metrics=[metric], get_metrics_result=dict)
    one = SimpleNamespace(exchange_bytes=lambda mine: [mine], rank=0, is_shared=True,
        exchange=lambda row: [row, [row[0], *(value / 4 for value in row[1:])]])
    metrics = EpochMetrics(model)
    for _ in range(2): metrics.combine(one, 7)
    found = metric.result()
    assert (found if kind is Largest else found["a"]) == 5.0, found
    assert kind is Largest or found["b"].tolist() == [5.0, 10.0], found
    metrics.restore(); assert float(metric.t) == 8.0
    assert float(metric.result() if kind is Largest else metric.result()["a"]) == 8.0
assert len(said) == 2 and "the state of the metric top may be no sum" in said[0], said
""",
    "the job's numbers after each update of a loop": """
edl.init(); ds = edl.Dataset(data, 4); net = network(); opt = edl.Optimizer(sgd, net)
for x, y in (batch for _ in ds.epochs(1) for batch in ds):
    with edl.DistributedGradientTape(tf.GradientTape()) as tape: loss = tf.reduce_mean(net(x))
    weights = net.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
    logged = edl.log({"loss": loss}, print)["loss"]
    assert {edl.gather(loss)[0], edl.sum(loss).item(), edl.mean(loss), logged} == {float(loss)}
""",
    "a metric that a batch for padding makes": """
from types import SimpleNamespace
from edl.tensorflow.keras_callbacks import EpochMetrics
made = [keras.metrics.Sum() for _ in range(3)]; made[0].update_state(1.0); made[2].update_state(5.0)
late = keras.metrics.F1Score()
model = SimpleNamespace(metrics=[made[0], late, made[2]], get_metrics_result=dict)
metrics = EpochMetrics(model); metrics.begin_batch(0)
late.update_state(np.eye(3), np.eye(3)); made[0].update_state(9.0); metrics.end_batch()
assert (float(made[0].result()), float(made[2].result())) == (1.0, 5.0)
assert not np.any(late.true_positives)
""",
    "sums of types that NumPy does not know": """
from types import SimpleNamespace
from edl.binding import reduction as gathering
two = SimpleNamespace(exchange_bytes=lambda mine: [mine, mine])
gathering.current_worker = lambda: two
half = edl.sum(tf.constant([0.5, 1.5], tf.bfloat16))
assert str(half.dtype) == "bfloat16" and half.tolist() == [1.0, 3.0], half
assert edl.sum(np.array([1 + 2j])).tolist() == [2 + 4j]
""",
    "a local source of Horovod's tape, and the same layer alone": """
edl.init(); layer = keras.layers.Dense(1); layer.build((None, 1))
layer.kernel.assign([[3.0]])
with tf.GradientTape() as plain: loss = tf.reduce_sum(layer(data[0]) ** 2)
expected = [float(tf.reduce_sum(each)) for each in plain.gradient(loss, layer.trainable_variables)]
for how in ("gradient", "get_local_and_global_gradients"):
    with tf.GradientTape() as tape: loss = tf.reduce_sum(layer(data[0]) ** 2)
    tape = edl.DistributedGradientTape(tape)
    tape.register_local_source(layer.kernel)
    found = getattr(tape, how)(loss, layer.trainable_variables)
    if how != "gradient":
        (_, kernel), (_, bias) = (each[0] for each in found)
        found = kernel, bias
    assert [float(tf.reduce_sum(each)) for each in found] == expected, (how, found, expected)
x = np.arange(8, dtype=np.float32)[:, None]
synchronized, local = (keras.layers.BatchNormalization(synchronized=each) for each in (True, False))
assert np.allclose(synchronized(x, training=True), local(x, training=True), atol=1e-5)
""",
    "losses that are no mean over the samples": """
from types import SimpleNamespace
from edl.tensorflow import training
from edl.binding import process
from edl.tensorflow.training import watch_losses
said = sentences("edl.tensorflow.training")
edl.init(); losses, layers = keras.losses, keras.layers
step_input = SimpleNamespace(open=True)
trains = SimpleNamespace(is_shared=True, warming_up=False, rank=0, loader=step_input)
def looked_at(train, in_fit=True, **differs):
    said.clear()
    losses.Loss.__call__ = losses.Loss.__call__.__wrapped__
    watch_losses.cache_clear(); watch_losses()
    mine = edl.current_worker(); now = training.current()
    process._worker = now.worker = SimpleNamespace(**{**vars(trains), **differs})
    now.fitting = in_fit
    try: train(); train()
    finally: process._worker = now.worker = mine
    return " ".join(said)
x = np.array([[1, 2, 0, 0], [3, 0, 0, 0]]); y = np.ones((2, 4, 1), np.float32)
def fitted(loss, end=lambda t: t, weights=None):
    inputs = keras.Input((4,)); tokens = layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, end(layers.Dense(1)(tokens)))
    model.compile("sgd", loss)
    return lambda: model.train_on_batch(x, y, weights)
mse = losses.MeanSquaredError
assert "gets a mask" in looked_at(fitted("mse")) and len(said) == 1, said
assert "gets a mask" in looked_at(fitted(mse(reduction="mean")))
assert "reduction='sum'" in looked_at(fitted(mse(reduction="sum", name="total")))
assert "the loss total" in said[0], said
assert "mean_with_sample_weight" in looked_at(fitted(mse(reduction="mean_with_sample_weight")))
end = layers.Lambda(lambda t: t + 0.0, mask=lambda t, mask: None)
assert not looked_at(fitted("mse", end, np.array(x > 0, np.float32)))
with_weights = fitted(mse(reduction="mean_with_sample_weight"), end, np.ones((2, 4)))
assert "mean_with_sample_weight" in looked_at(with_weights)
assert not looked_at(fitted("mse"), rank=1) and not looked_at(fitted("mse"), is_shared=False)
assert not looked_at(fitted("mse"), loader=SimpleNamespace(open=False))
assert not looked_at(lambda: mse(reduction="sum")(y, y), in_fit=False)
def labelled(ignored):
    inputs = keras.Input((4,)); model = keras.Model(inputs, layers.Dense(3)(inputs))
    model.compile("sgd", losses.SparseCategoricalCrossentropy(True, ignore_class=ignored))
    return lambda: model.train_on_batch(x, np.array([0, 1]))
assert "has ignore_class=-100" in looked_at(labelled(-100)) and not looked_at(labelled(None))
# The way out: each entry counts the same, whatever the other samples of its batch.
def gradient(rows):
    inputs = keras.Input((4,)); tokens = layers.Embedding(5, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, end(layers.Dense(1)(tokens)))
    for weight in model.weights: weight.assign(tf.ones_like(weight))
    with tf.GradientTape() as tape:
        loss = mse()(y[rows], model(x[rows]), np.array(x[rows] > 0, np.float32))
    return tape.gradient(loss, model.weights[-1]).numpy()
whole = gradient([0, 1]); shared = (gradient([0]) + gradient([1])) / 2
assert np.allclose(whole, shared), (whole, shared)
""",
    "random numbers, which are each worker's own": """
from types import SimpleNamespace
from edl.worker.progress import Receive
from edl.binding.loop import RandomNumbers
from edl.tensorflow import training
from edl.tensorflow.replica import Seeder, last_seed, own_operation_seeds
def drops(model): return float(model(np.ones((1, 64), np.float32), training=True).numpy().sum())
def made():
    keras.utils.set_random_seed(3)
    layers = keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(1)
    return keras.Sequential([keras.Input((64,)), *layers])
plain = made(); drawn = drops(plain), float(tf.random.uniform(()))
x, y = np.ones((8, 64), np.float32), np.zeros((8, 1), np.float32)
edl.init(); ds = edl.Dataset((x, y), 4)
model = made(); model.compile(edl.Optimizer(keras.optimizers.SGD(0.0)), "mse")
class Draws(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):  # a job of one draws what the script seeds
        assert (drops(model), float(tf.random.uniform(()))) == drawn
model.fit(ds, epochs=1, verbose=0, callbacks=[edl.KerasCallback(), Draws()])
state = training.current().replica.state()
def begins(**worker):  # as another worker would, with the state of this one
    keras.utils.set_random_seed(3)
    training.current().replica.load(state, Receive.ALL)
    is_so = {"id": 1, "rank": 1, "step": 0, "generation": 1, "same_random": False, "logical": 0}
    one = SimpleNamespace(**{**is_so, **worker})
    variables = training.current().replica.variables
    RandomNumbers(one, Seeder(lambda: variables()["model"].items())).enter()
    return drops(model), float(tf.random.uniform(()))
several = [begins(), begins(rank=2), begins(id=3, step=9, generation=2)]
assert len({each[0] for each in several}) == len({each[1] for each in several}) == 3, several
@tf.function
def traced(): return tf.random.uniform(())
first, seeder = float(traced()), Seeder(lambda: ())
seeder.seed(7); assert float(traced()) == first  # a worker begins what the script drew on all alike
seeder.seed(8); second = float(traced())  # what is traced by then stays ready to run, and goes on
seeder.seed(9); assert len({first, second, float(traced())}) == 3, (first, second)
one = SimpleNamespace(id=1, rank=1, generation=1, warming_up=False, same_random=False, logical=0)
def mapped(worker):
    tf.random.set_seed(5)
    with own_operation_seeds(worker):
        found = tf.data.Dataset.range(2).map(lambda _: tf.random.uniform(()))
    assert last_seed() == 5
    return [float(each) for each in found]
two, again = SimpleNamespace(**{**vars(one), "rank": 2}), mapped(one)
assert mapped(two) != again == mapped(one)
""",
    "columns of many kinds": """
from edl.tensorflow.source import LazyColumn
from edl.tensorflow.source import reader_of
class Series:  # of pandas, whose [i] is by label
    def to_numpy(self): return np.arange(4)
    def __len__(self): return 4
    def __getitem__(self, label): return 3 - label
Series.__module__ = "pandas.core.series"
class Lazy:  # as a data set of h5py
    shape, dtype = (4, 2), np.dtype("float32")
    def __len__(self): return 4
    def __getitem__(self, index):
        assert isinstance(index, int), index
        return np.full(2, index, np.float32)
class Rows:  # as a data set of Hugging Face, whose shape counts rows and columns
    shape = (4, 2)
    def __len__(self): return 4
    def __getitem__(self, index): return {"x": float(index), "y": index}
    def __getitems__(self, indices): return [self[index] for index in indices]
class At:
    indices = np.array([2, 0]); items = indices.tolist()
def batch(source):
    total, load = reader_of(source)
    assert total == 4, total
    return tf.nest.map_structure(lambda a: np.asarray(a).tolist(), load(At))
x, two = np.arange(4.0), [np.arange(4.0), np.arange(4, 8)]
assert batch((x, list(range(4)))) == ([2.0, 0.0], [2, 0])
assert batch((x, (0, 1, 2, 3))) == batch((x, range(4))) == ([2.0, 0.0], [2, 0])
assert batch((list(x), ["a", "b", "c", "d"])) == ([2.0, 0.0], ["c", "a"])
assert batch((np.array(["a", "b", "c", "d"]), x)) == (["c", "a"], [2.0, 0.0])
assert batch(Series()) == [2, 0] and batch({"s": Series(), "l": [5, 6, 7, 8]}) == {
    "s": [2, 0], "l": [7, 5]}
assert batch((Lazy(), x)) == ([[2.0, 2.0], [0.0, 0.0]], [2.0, 0.0])
assert batch(Rows()) == {"x": [2.0, 0.0], "y": [2, 0]}
assert batch((two, x)) == (([2.0, 0.0], [6, 4]), [2.0, 0.0])
assert batch(([np.ones(2), np.zeros(2)] * 2, x)) == ([[1.0, 1.0], [1.0, 1.0]], [2.0, 0.0])
assert batch(((1.0, 2), (3.0, 4), (5.0, 6), (7.0, 8))) == ([5.0, 1.0], [6, 2])
table = np.arange(24.0).reshape(4, 2, 3)
for array in (table, table[:, ::2], np.asfortranarray(table), table.astype(">f8"), table > 9):
    assert np.array_equal(batch(array), array[[2, 0]]), array
class Last: indices = np.array([-1, 0])
assert np.array_equal(reader_of(table)[1](Last), table[[-1, 0]])
class Beyond: indices = np.array([4, 0])
is_refused(IndexError, "", lambda: reader_of(table)[1](Beyond))
rows = reader_of(table)[1](At)  # TensorFlow uses the memory of the batch, without a copy
seen = tf.function(lambda: tf.numpy_function(lambda: rows, [], tf.float64))()
assert np.shares_memory(rows, np.asarray(seen))
""",
    "whole numbers among fractions, in samples": """
loop([(0.5, b'a'), (1, b'b'), (np.float32(2), 'c')], 1)
found = []
for _ in ds.epochs(1):
    for x, name in ds: found.append((x.dtype, *x.numpy(), *name.numpy())); apply()
assert found == [(tf.float64, 0.5, b"a"), (tf.float64, 1, b"b"), (tf.float64, 2, b"c")], found
""",
    "whole numbers among fractions, in a list of labels": """
loop(([5, 6, 7], [[0, 1], [1, 0], np.array([0.9, 0.1], 'f4')]), 1)
found = []
for _ in ds.epochs(1):
    for _, soft in ds: found.append((soft.dtype, *soft.numpy()[0])); apply()
last = tf.float64, *np.float32([0.9, 0.1])
assert found == [(tf.float64, 0, 1), (tf.float64, 1, 0), last], found
""",
    "types of later batches": """
from edl.errors import DataError
from edl.tensorflow.source import cast_like, signature_of
spec = signature_of({"n": np.int8([1]), "s": (np.array(["a"], object),)})
def later(n, s=np.array([b"b"])): return cast_like({"n": n, "s": (s,)}, spec)
assert later(np.int64([7]))["n"].dtype == np.int8 and later(np.int8([7]))["s"][0][0] == b"b"
for batch in ([np.int64([300])], [np.float32([1])], [np.int8([1]), np.int8([1])]):
    is_refused(DataError, " beside ", lambda: later(*batch))
is_refused(DataError, "", lambda: cast_like({"n": np.int8([1]), "s": ()}, spec))
""",
    "samples of different lengths, padded by a collate function": """
words = [[1] * (n % 3 + 1) for n in range(8)]
def pad(samples):
    longest = max(len(each) for each, _ in samples)
    rows = [each + [0] * (longest - len(each)) for each, _ in samples]
    return np.array(rows), np.array([[label] for _, label in samples], np.float32)
edl.init(); ds = edl.Dataset((words, list(range(8))), 3, shuffle=True, collate_fn=pad)
assert [tuple(spec.shape) for spec in ds.element_spec] == [(None, None), (None, 1)]
seen = []
class Counts(keras.Model):
    def __init__(self): super().__init__(); self.dense = keras.layers.Dense(1)
    def call(self, x): return self.dense(tf.reduce_sum(tf.cast(x, tf.float32), 1, keepdims=True))
model = Counts(); model.compile(edl.Optimizer(sgd), "mse")
model.fit(ds, epochs=2, verbose=0, callbacks=[edl.KerasCallback()])
assert edl.step() == 6
""",
    "a loop by steps, and one by the count of the job": """
loop()
assert len(ds) == 2 == ds.map(lambda *each: each).cardinality()
seen = []
for x, y in ds.steps(3):
    before = edl.step(); apply(); seen.append((before, edl.step()))
assert seen == [(0, 1), (1, 2), (2, 3)], seen
assert edl.current_worker().finished
""",
    "epochs until so many steps are made, with a tape of the job's": """
loop()
def tape_step():
    gradients, now = job_gradients(model), edl.step()
    opt.apply_gradients(zip(gradients, model.trainable_variables)); assert edl.step() == now + 1
made = 0
for epoch in ds.epochs(9, max_steps=3):
    for _ in ds: tape_step(); made += 1
assert (made, edl.step(), epoch) == (3, 3, 1), (made, edl.step(), epoch)
""",
    "a fit by steps": """
edl.init(); ds = edl.Dataset(data, 4); model = network(edl.Optimizer(sgd))
history = model.fit(ds, epochs=9, callbacks=[edl.KerasCallback(max_steps=3)], verbose=0)
assert (edl.step(), len(history.history["loss"])) == (3, 2), history.history
progress = edl.current_worker().loader.progress
assert progress.untrained == progress.epoch_progress["left"] == 0
""",
    "an iterator kept over epochs, arrays of NumPy, an order-preserving apply, a distribution": """
loop()
keras.distribution.set_distribution(keras.distribution.DataParallel())
kept = None
ds = ds.apply(lambda ds: ds.map(lambda x, y: (x, y), tf.data.AUTOTUNE).prefetch(9))
assert ds.cardinality() == 2 and ds.options().autotune.enabled is False
for epoch in ds.epochs(4):
    if epoch % 2:
        for x, y in ds.as_numpy_iterator(): apply(); assert isinstance(x, np.ndarray)
    else:
        kept = iter(ds)
        next(kept); apply(); next(kept); apply()
assert edl.step() == 8
""",
    "callbacks of a worker that has joined after seven batches": """
from edl.step.source import UpdateOrder
from edl.tensorflow import training
seen = []
class Look(keras.callbacks.Callback):
    def on_train_begin(self, logs=None): assert self.params["steps"] == 2, self.params
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:  # as a newcomer gets it with the job's state
            training.current().worker.loader.progress.update_order = UpdateOrder(batch=7)
    def on_train_batch_begin(self, batch, logs=None): seen.append((batch, ds.batch_index))
    def on_batch_end(self, batch, logs=None): seen.append((batch, ds.batch_index))
edl.init(); ds = edl.Dataset(data, 4); model = network(edl.Optimizer(sgd))
model.fit(ds, epochs=2, callbacks=[Look(), edl.KerasCallback()], shuffle=False, verbose=0)
assert seen == [(number, number) for number in (7, 7, 8, 8, 0, 0, 1, 1)], seen
""",
    "a model that build() leaves without variables, an optimizer by its name": """
class Half(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
    def call(self, x): return self.dense(x)
edl.init(); ds = edl.Dataset(data, 4); model = Half(); model.build((None, 1))
assert not model.variables
model.compile(optimizer=edl.Optimizer("sgd"), loss="mse")
before = []
look = keras.callbacks.LambdaCallback(
    on_train_batch_begin=lambda batch, logs: before.append(len(model.trainable_variables)))
model.fit(ds, callbacks=[edl.KerasCallback(), look], shuffle=False, verbose=0)
assert before[0] == 2, before
""",
    "a model without call(), and samples in a dict": (
        NO_CALL.replace("LAYERS", "keras.Input((1,)), keras.layers.Dense(1)")
        + """
before = model.coder.get_weights()[0]
assert len(fit(epochs=2).history["loss"]) == 2
assert edl.step() == 4 and (model.coder.get_weights()[0] != before).all()
"""
    ),
    "models that fit builds": """
from types import SimpleNamespace
from edl.tensorflow.training import build_model
class Normed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.norm = keras.layers.Dense(1), keras.layers.BatchNormalization()
    def call(self, x, training): return self.norm(self.dense(x), training=training)
class Block(keras.layers.Layer):
    def __init__(self, *layers):
        super().__init__()
        self.inner = keras.Sequential([*layers, keras.layers.Dense(1)])
    def call(self, x): return self.inner(x)
class Eager(keras.Model):
    def __init__(self):
        super().__init__()
        self.block = Block()
    def call(self, x): return self.block(x * x.numpy())
class OfDict(Normed):  # whose train_step takes the dict apart
    def __init__(self):
        super().__init__()
        self.dense.build((None, 1)); self.norm.build((None, 1))
def built(model, *features):
    spec = tuple(tf.TensorSpec((None, *shape)) for shape in features)
    build_model(model, SimpleNamespace(element_spec=spec if features else {"image": None}))
    return model
model = built(Normed(), (1,), (1,))
assert len(model.variables) == 6 and float(model.norm.moving_variance[0]) == 1
layers = keras.layers.Conv1D(2, 3), keras.layers.GlobalMaxPooling1D(), keras.layers.Dense(1)
model = built(keras.Sequential([*layers]), (None, 1), (1,))
assert len(model.variables) == 4 and model(np.zeros((2, 7, 1))).shape == (2, 1)
assert len(built(Eager(), (1,), (1,)).variables) == 2
assert not built(OfDict()).built and len(built(OfDict()).variables) == 6
""",
    "a variable beside the model that the optimizer was built for": (
        BESIDE + "opt.build(trained)\n" + SHARES
    ),
    "a variable beside one of two models that its optimizer was built for": BESIDE_TWO
    + """
opts[0].build(trained); every_batch(f)
assert float(scale[0]) != 1.0
assert "scale:0" in edl.current_worker().replica.variables()["model"]
""",
    "a variable beside the model, in the list that edl got, in a function": (
        BESIDE.replace("(0.1), model)", "(0.1), [*model.variables, scale])")
        + "apply = tf.function(apply)"
        + SHARES
    ),
    "an average of the network in the model that fit trains, after a missed update": AVERAGED
    + """
model.compile(edl.Optimizer(keras.optimizers.Adam(0.1)))
model.fit(ds, callbacks=[edl.KerasCallback()], shuffle=False, verbose=0)
assert len(model.optimizer._trainable_variables) == 4, "of the average, too, on each worker"
missed(model.net, model.average)
""",
    "an average of the network in the model of a loop, after a missed update": AVERAGED
    + """
opt = model.optimizer = edl.Optimizer(keras.optimizers.Adam(0.1), model)
train = {"eager": model.train_step, "function": tf.function(model.train_step)}
for epoch in ds.epochs(2):
    for batch in ds: train["eager" if epoch else "function"](batch)
assert len(opt._trainable_variables) == 4, "edl has built it for the average, too"
missed(model.net, model.average)
""",
    "averages that the optimizer puts in the place of weights, after a missed update": AVERAGED
    + """
averaging = keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3)
model.compile(edl.Optimizer(averaging))
model.fit(ds, callbacks=[edl.KerasCallback()], shuffle=False, verbose=0)
missed(model, None)
""",
    "two optimizers with clipped gradients of the job": """
two()
@tf.function
def train():
    for model, opt in zip(models, opts):
        clipped = tf.clip_by_global_norm(job_gradients(model), 0.1)[0]
        opt.apply_gradients(zip(clipped, model.trainable_variables))
before = [model.trainable_variables[0].numpy() for model in models]
for _ in ds.epochs(1):
    for _ in ds: train()
assert edl.step() == 4 and [int(opt.iterations) for opt in opts] == [2, 2]
for model, weights in zip(models, before):
    change = np.abs(model.trainable_variables[0].numpy() - weights).max()
    assert 0 < change < 2 * 0.1 * 0.1 + 1e-6, change
""",
    "loop without naming the model": """
edl.init(); ds = edl.Dataset(data, 4); opt = edl.Optimizer(sgd); model = network()
every_batch(apply, 2)
assert edl.step() == 4 and int(sgd.iterations) == 4
shared = edl.current_worker().replica.variables()["model"]
assert [v.shape for v in shared.values()] == [v.shape for v in model.variables], shared.keys()
""",
    "variables made of one value, in a graph": """
graph()
from edl.tensorflow.variables import SessionAccess
zeros = tf.zeros(3)
made = [tf.compat.v1.get_variable(name, initializer=zeros) for name in "abc"]
with tf.compat.v1.Session() as session:
    session.run(tf.compat.v1.global_variables_initializer())
    access = SessionAccess(session)
    access.write([(variable, np.full(3, n, np.float32)) for n, variable in enumerate(made, 1)])
    assert [value[0] for value in access.read(made)] == [1, 2, 3]
""",
    "the groups of an elastic state, in a graph": """
graph()
from edl.step.state_check import StateGroup
from edl.tensorflow.elastic import TensorFlowState
for n in range(30): tf.compat.v1.get_variable(f"v{n}", initializer=tf.zeros(100))
with tf.compat.v1.Session() as session:
    session.run(tf.compat.v1.global_variables_initializer())
    state = TensorFlowState(session=session)
    found = [state.digests(StateGroup(n, 50)) for n in range(50)]
assert sum(map(bool, found)) == 8, found  # TensorFlow prepares the graph for each list of fetches
assert len(set().union(*found)) == 31, found  # with the one of graph()
""",
    "what a newcomer rehearses, in a graph": """
tf.compat.v1.disable_eager_execution()
x, y = np.ones((8, 3), np.float32), np.ones((8, 1), np.float32)
edl.init(); batches = edl.elastic_shard_generator((x, y), 4)
spec = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None, 1), tf.float32))
data = tf.data.Dataset.from_generator(batches, output_signature=spec)
one, target = tf.compat.v1.data.make_one_shot_iterator(data).get_next()
w = tf.compat.v1.get_variable("w", (3, 1)); unset = tf.compat.v1.get_variable("unset", 2)
loss = tf.reduce_mean((tf.matmul(one, w) - target) ** 2)
optimizer = edl.Optimizer(tf.compat.v1.train.MomentumOptimizer(0.1, 0.9))
optimizer.minimize(loss)
from edl.tensorflow import training
from edl.worker.progress import Receive
replica, run, ran = training.current().replica, tf.compat.v1.Session.run, []
def recorded(session, fetches, feed=None):
    ran.append((str(fetches), str(sorted(map(str, feed or {})))))
    return run(session, fetches, feed)
with edl.Session() as session:
    missing = [v for v in tf.compat.v1.global_variables() if v is not unset]
    run(session, [v.initializer for v in missing])
    replica.rehearse()  # a variable without a value: nothing to do, and no error
    run(session, unset.initializer)
    before = replica.state()
    tf.compat.v1.Session.run = recorded
    replica.rehearse(); rehearsed = set(ran); ran.clear()
    after = replica.state(); replica.digests(); replica.load(before, Receive.ALL)
    tf.compat.v1.Session.run = run
    from unittest.mock import MagicMock
    newcomer, job = MagicMock(), session._edl
    job._training, job._tried = newcomer, True
    newcomer.worker.loader.open, newcomer.steps.enter.side_effect = False, EOFError
    try: job.begin()
    except EOFError: pass
called = [name for name, *_ in newcomer.mock_calls]
assert called.index("replica.rehearse") < called.index("steps.enter"), called
assert set(ran) == rehearsed and len(ran) == 3, (ran, rehearsed)
assert all(np.array_equal(before["model"][n], after["model"][n]) for n in before["model"])
""",
    "weights of a checkpoint, without a job": """
edl.init(); saved = tempfile.mkdtemp(); edl.checkpoint(saved)
ds = edl.Dataset(data, 4); model = network(); opt = edl.Optimizer(sgd, model)
every_batch(apply)
trained = model.get_weights()
from edl.cli.main import invoke
assert invoke(["checkpoint", "export", saved, saved + "/weights.safetensors"]) == 0
for path in (saved, saved + "/weights.safetensors"):
    model.set_weights([np.full_like(each, 7) for each in trained])
    found = edl.load_weights(path, model)
    assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), trained)), path
    assert sorted(found) == sorted(v.path for v in model.variables)
layers = [keras.Input((1,)), keras.layers.Dense(2, name=model.layers[0].name)]
other = keras.Sequential(layers, name=model.name)
other.layers[0].kernel.path  # built
for wrong, said in (
    (other, "has shape (1, 1) there and (1, 2) here"),
    (network(), "give the layers a name, in both scripts"),
    (keras.Sequential(), "has no variables yet"),
):
    is_refused(Exception, said, lambda: edl.load_weights(saved, wrong))
""",
    "weights that a callback restores at the end of a fit are in its checkpoint": """
from edl.worker import activity
class Slow(keras.callbacks.Callback):
    def on_train_end(self, logs=None): works.extend(look() for look in activity._works)
edl.init(); saved = tempfile.mkdtemp(); edl.checkpoint(saved); works = []
ds = edl.Dataset(data, 4); model = network(edl.Optimizer(sgd))  # whose loss grows
best = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
callbacks = [best, Slow(), edl.KerasCallback()]
assert model.fit(ds, epochs=9, callbacks=callbacks, verbose=0).epoch == [0, 1]
assert works == ["after a fit"]
restored = model.get_weights()
edl.current_worker().finishing.script_ended()
model.set_weights([np.full_like(each, 7) for each in restored])
edl.load_weights(saved, model)
assert all(np.array_equal(a, b) for a, b in zip(model.get_weights(), restored)), restored
""",
    "a fit that a callback has stopped is over when the job is resumed": """
import os
saved = tempfile.mkdtemp()
def fit(stops):
    global ds, model
    edl.init(); edl.checkpoint(saved)
    ds = edl.Dataset(data, 2); model = network(edl.Optimizer(keras.optimizers.SGD(0.1)))
    stop = keras.callbacks.LambdaCallback(**{stops: lambda *_, **__: setattr(
        model, "stop_training", True)})
    return model.fit(ds, epochs=9, verbose=0, callbacks=[stop, edl.KerasCallback()]).epoch
for stops, steps in (("on_epoch_end", 4), ("on_train_batch_end", 2)):
    if os.fork() == 0:
        saved += stops
        if os.fork() == 0:
            assert fit(stops) == [0] and edl.step() == steps
            edl.current_worker().finishing.script_ended(); os._exit(0)
        assert os.wait()[1] == 0
        os.environ["EDL_RESUME"] = "1"
        assert fit(stops) == [0] and edl.step() == steps, "the History of the job"
        loader = edl.current_worker().loader
        assert loader.progress.untrained == 0
        assert model.fit(ds, verbose=0, callbacks=[edl.KerasCallback()]).epoch == [0]
        assert edl.step() == steps + 4 and loader.epoch == 1; os._exit(0)
    assert os.wait()[1] == 0, stops
""",
    "a ModelCheckpoint of two fits, in which the successor of rank 0 saves": """
import os
from types import SimpleNamespace
from edl.tensorflow.keras_callbacks import Saver
folder = tempfile.mkdtemp(); model = network()
worker = SimpleNamespace(rank=1, warming_up=False)
best = keras.callbacks.ModelCheckpoint(folder + "/{epoch}.keras", "loss", 0, True, mode="min")
for fit in (1, 2):
    worker.rank = 1
    saver = Saver(best, worker); saver.set_model(model)
    saver.on_epoch_end(fit - 1, {"loss": 1 / fit})
    assert not os.path.exists(f"{folder}/{fit}.keras")
    worker.rank = 0; saver.met(written=False)
    assert os.path.exists(f"{folder}/{fit}.keras"), fit
""",
    "each callback of Keras stands in the table": """
import os
page = open(os.path.join(os.path.dirname(edl.__file__), "../../docs/guides/tensorflow.md")).read()
table = page.partition("| callback | in a job |")[2].partition("\\n\\n")[0]
public = [name for name in dir(keras.callbacks) if name[0].isupper()]
assert not [name for name in public if f"`{name}`" not in table], table
""",
    "clipped means: eager, in a function, in two functions": CLIP
    + """
loop(); make = edl.DistributedGradientTape
f = tf.function(lambda: apply_clipped(make))
@tf.function
def compute():
    with edl.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_mean(model(data[0]))
    return tape.gradient(loss, model.trainable_variables)
@tf.function
def update(gradients): opt.apply_gradients(zip(clipped(gradients), model.trainable_variables))
def eagerly():
    opt.apply_gradients(zip(clipped(compute()), model.trainable_variables))
ways = [lambda: apply_clipped(make), f, lambda: update(compute()), eagerly]
for _ in ds.epochs(4):
    for _ in ds:
        before = model.trainable_variables[1].numpy()
        ways[edl.step() % 4]()
        moved = before - model.trainable_variables[1].numpy()
        assert 0 < moved[0] < 0.1 * 0.1, (edl.step(), moved)
assert edl.step() == 8 and int(sgd.iterations) == 8
""",
    "a step that is skipped": """
loop()
for _ in ds.epochs(1):
    for _ in ds:
        with tf.GradientTape() as tape: loss = tf.reduce_mean(model(data[0]))
        weights = model.trainable_variables
        gradients = edl.DistributedGradientTape(tape).gradient(loss, {"a": weights})["a"]
        if edl.step() == 1: opt.apply_gradients(zip(gradients, weights))
assert edl.step() == 2 and int(sgd.iterations) == 1
""",
    "two losses in a graph, one of them clipped": """
opt, w = graph()
x = tf.compat.v1.placeholder(tf.float32, (None, 1))
loss = tf.reduce_mean(w * x)
(gradient, _), = opt.compute_gradients(loss, [w])
clips = opt.apply_gradients([(tf.clip_by_norm(gradient, 0.5), w)])
plain = opt.apply_gradients([(tf.gradients(loss, w)[0], w)])
train = opt.minimize(loss, var_list=[w])
edl.elastic_shard_generator(data[0], batch_size=4, epochs=3)
with edl.Session() as s:
    expected = 0.0
    while not s.Done():
        mean = edl.next_batch().mean()
        step = [clips, plain, train][edl.step() % 3]
        s.run(step, {x: edl.next_batch()})
        expected -= min(mean, 0.5) if step is clips else mean
    assert abs(s.run(w) - expected) < 1e-5, (s.run(w), expected)
""",
    "samples of many kinds": """
edl.init()
samples = [{"id": n, "raw": bytes([n, 0]), "pair": (float(n), [n, n])} for n in range(3)]
ds = edl.Dataset(samples, 2)
edl.Optimizer(sgd, [keras.Variable(1.0)])  # as model.trainable_variables
for _ in ds.epochs(1):
    seen = []
    for batch in ds:
        seen.append(tf.nest.map_structure(lambda t: t.numpy().tolist(), batch))
        variable, = edl.current_worker().replica._model()
        with tf.GradientTape() as tape: loss = variable * 1.0
        sgd.apply_gradients([(tape.gradient(loss, variable), variable)])
assert seen == [
    {"id": [0, 1], "raw": [b"\\0\\0", b"\\1\\0"], "pair": ([0.0, 1.0], [[0, 0], [1, 1]])},
    {"id": [2], "raw": [b"\\2\\0"], "pair": ([2.0], [[2, 2]])},
], seen
""",
    "feeds": """
opt, w = graph()
x = tf.compat.v1.placeholder(tf.float32, (None, 1))
train = opt.minimize(tf.reduce_mean(w * x))
edl.elastic_shard_generator(data[0], batch_size=4, epochs=3)
with edl.Session() as s:
    while not s.Done():
        assert len(edl.next_batch()) == 4
        s.run(train, {x: edl.next_batch()})
    assert edl.step() == 6
    assert abs(s.run(w) + 2 * 3 * data[0].mean()) < 1e-5
""",
    "plain session": """
train, _ = pipeline(); w = run_to_the_end(train)
assert edl.step() == 6
assert abs(w + 2 * 3 * data[0].mean()) < 1e-5
""",
    "loop that is left and taken up again": """
loop(data, 1)
seen = []
for epoch in ds.epochs(2):
    for part in range(2):
        for x, y in ds:
            seen.append(int(x[0, 0]))
            apply()
            if part == 0 and len(seen) % 8 == 3: break
assert sorted(seen) == sorted([*range(8)] * 2) and edl.step() == 16, seen
""",
    "damaged data, slow, caught in a loop": SLOW
    + """
loop(Damaged()); is_refused(DataError, "record 5", lambda: every_batch(apply))
assert edl.step() == 1
""",
    "damaged data, slow, caught in a session": SLOW
    + PIPELINE
    + """
with edl.Session() as s:
    try:
        while not s.Done(): s.run(train)
    except DataError:
        assert edl.step() == 5
    else:
        raise AssertionError("the whole epoch was read")
""",
    "hook": """
train, step = pipeline()
with tf.compat.v1.train.MonitoredTrainingSession(hooks=[edl.SessionHook()]) as s:
    while not s.should_stop():
        assert edl.step() == s.run(step)
        s.run(train)
assert edl.step() == 6
""",
    "a hook that stops the session": """
train, _ = pipeline(); edl.checkpoint(folder := tempfile.mkdtemp(), every_s=1000)
v1 = tf.compat.v1.train
hooks = [edl.SessionHook(), v1.StopAtStepHook(last_step=4)]
with v1.MonitoredTrainingSession(hooks=hooks) as s:
    while not s.should_stop(): s.run(train)
assert edl.step() == 4 and steps_saved(folder) == [0, 4], steps_saved(folder)
""",
    "a break out of a session": """
train, _ = pipeline(); edl.checkpoint(folder := tempfile.mkdtemp(), every_s=1000)
with edl.Session() as s:
    while not s.Done():
        s.run(train); edl.notify_batch_end()
        if edl.step() == 4: break
assert steps_saved(folder) == [0, 4], steps_saved(folder)
""",
    "an error that leaves a session, and is caught": """
train, _ = pipeline(); edl.checkpoint(folder := tempfile.mkdtemp(), every_s=1000)
try:
    with edl.Session() as s:
        while True:
            s.run(train); edl.notify_batch_end()
            if edl.step() == 4: raise ValueError("enough")
except ValueError:
    pass
edl.current_worker().finishing.script_ended()
assert steps_saved(folder) == [0, 4], steps_saved(folder)
""",
    "a variable in a tf.train.Checkpoint beside the model": """
loop()
from edl.tensorflow import training
step = tf.Variable(3)
saver = tf.train.Checkpoint(step=step, net=model)
replica = training.current().replica
state = replica.state()
name = "tf.train.Checkpoint0/step"
assert state["model"][name] == 3 and not any(name in each for each in replica.shapes())
assert not any(name in group for group in replica.compared().values())
step.assign(5)
from edl.worker.progress import Receive
replica.load(state, Receive.ALL)
assert step.numpy() == 3
del state["model"][name]  # of a job that saved before edl knew it
replica.load(state, Receive.ALL)
assert step.numpy() == 3 and not replica.buffers(), replica.buffers()
""",
    "fit with nothing but edl's callback, which is no list": """
compiled()
history = model.fit(ds, epochs=3, callbacks=edl.KerasCallback(), shuffle=False, verbose=0)
assert history.epoch == [0, 1, 2]
assert edl.step() == 6
""",
    "fit that is stopped in the midst of an epoch": """
compiled(data, 1)
class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = batch == 2
fit(Stop())
assert edl.step() == 4
""",
    "what workers exchange at the end of an epoch": """
from edl.errors import UsageError
from edl.tensorflow.keras_callbacks import Met, end_row, job_metrics, met, metrics_row
rows = [metrics_row(w, n, {"loss": x}) for w, n, x in ((4, 30, 1.0), (0, 10, 5.0), (2, 0, np.nan))]
assert job_metrics(rows, ["loss"]) == {"loss": 2.0}
odd = metrics_row(7, 1, {"loss": 1.0, "val_loss": 2.0})
assert len(odd) == len(rows[0])
unlike = "the metrics of w7 are not those of w4"
is_refused(UsageError, unlike, lambda: job_metrics([*rows, odd], ["loss"]))
assert met([end_row(4, False, True), end_row(0, False, False)]) == Met("", True)
assert met([end_row(4, True, False), end_row(0, True, False)]) == Met(
    "w0 and w4 want to stop training", False
)
""",
    "what callbacks remember": """
from collections import Counter, deque
from edl.tensorflow.keras_callbacks import CallbackStates, _Memory
from edl.tensorflow.keras_callbacks import NoData, value_fingerprint, restored_value, taken
mean = keras.metrics.Mean()
mean.update_state([1.0, 3.0])
some = {
    "a": [1, 2.5, None, "x", b"y", True, (1, [2])], 3: {1, 2}, "d": deque([1, 2], maxlen=3),
    "n": np.float32(0.5), "z": np.arange(3), "t": tf.constant([1.0]), "v": tf.Variable(4.0),
    "b": np.ones(2, tf.bfloat16.as_numpy_dtype), "l": np.longdouble(1), "o": np.ones(2, ">i4"),
    "m": mean, "k": keras.Variable(1.0), "c": Counter("aab"), (1, 2): float("nan"),
}
stored = taken(some)
some["a"].append(1), some["z"].__setitem__(0, 9), some["v"].assign(5.0), mean.reset_state()
assert value_fingerprint(stored) != value_fingerprint(taken(some))
kept = some["v"], some["d"], some["m"], some["c"]
restored_value(stored, some)
assert value_fingerprint(stored) == value_fingerprint(taken(some)), some
assert kept == (some["v"], some["d"], some["m"], some["c"]) and some["d"].maxlen == 3
assert float(some["v"]) == 4.0 and float(mean.result()) == 2.0 and some["n"].dtype == np.float32
masked = np.ma.masked_array([0.5, 1.5], [0, 1])
for odd in (object(), np.array(["text"]), np.array([None]), [open], masked, masked[1]):
    is_refused(NoData, "", lambda: taken(odd))
fresh = restored_value(stored, None)
assert fresh["a"] == some["a"] and fresh[3] == {1, 2} and fresh["t"].numpy() == [1.0]

class Own(keras.callbacks.Callback):
    def __init__(self, patience):
        super().__init__()
        self.patience, self.seen, self.thing, self.none = patience, [], None, None
model = network(sgd)
def memory(callback, trained=0):
    found = _Memory(callback, model)
    for epoch in range(trained):
        callback.seen.append(epoch)
        callback.thing, callback.none, callback.weights = object(), trained, model.weights
    return found
old, new = Own(1), Own(2)
newcomer = memory(new)
state = memory(old, 3).state()
assert sorted(state) == ["none", "seen"], state
newcomer.load(state)
assert (new.seen, new.patience, new.none) == ([0, 1, 2], 2, 3)
newcomer.load({})
assert (new.seen, new.none) == ([], None)

stops = [keras.callbacks.EarlyStopping("loss", min_delta=0.5) for _ in range(2)]
first, second = [_Memory(stop, model) for stop in stops]
stops[0].on_train_begin()
stops[0].monitor_op, stops[0].min_delta, stops[0].wait = keras.ops.less, -0.5, 4
assert "min_delta" not in first.state()
second.load(first.state())
assert (stops[1].wait, stops[1].min_delta, stops[1].monitor_op) == (4, 0.5, None)
stops[1].monitor_op = keras.ops.less
second.load(first.state())
assert stops[1].min_delta == -0.5
""",
    "rates by samples": """
edl.init()
total = 8 * 3
knee = edl.schedules.Knee(peak_lr=0.5, warmup=8, explore=8, total=total)
class Ones(keras.Model):  # whose gradient is 1
    def __init__(self):
        super().__init__()
        self.w = self.add_weight(shape=(), initializer="zeros", name="w")
    def call(self, x): return self.w + 0.0 * tf.reduce_sum(x)
ds = edl.Dataset(data, 3)  # an epoch is 3 + 3 + 2 samples
model, ways = Ones(), []
rate = edl.LRSchedule(knee)
opt = edl.Optimizer(keras.optimizers.SGD(rate), model)
def step(x):
    with tf.GradientTape() as tape: loss = model(x)
    opt.apply_gradients([(tape.gradient(loss, model.w), model.w)])
traced = tf.function(step, input_signature=ds.element_spec[:1])
expected, trained = 0.0, 0
for epoch in ds.epochs(3):
    for x, _ in ds:
        (step if epoch == 1 else traced)(x)
        trained += len(x)
        expected -= knee.at(trained)
        assert abs(float(opt.learning_rate) - knee.at(trained)) < 1e-6
        assert abs(float(model.w) - expected) < 1e-5, (trained, float(model.w), expected)
assert trained == total and float(opt.learning_rate) == 0.0
from keras import saving
again = saving.deserialize_keras_object(saving.serialize_keras_object(rate))
assert again.schedule == knee, again.schedule
""",
    "rates by the global batch": """
from edl import errors as edl_errors
edl.init()
w = tf.Variable(0.0)
ds = edl.Dataset(data, 2)  # 4 updates an epoch
scaling = edl.schedules.Scaling(batch=1, ramp=2)  # k is 2
rate = edl.LRSchedule(edl.schedules.Constant(peak_lr=0.5), scaling)
opt = edl.Optimizer(keras.optimizers.SGD(rate, momentum=0.5), [w])
@tf.function
def step():
    with tf.GradientTape() as tape: loss = 1.0 * w
    opt.apply_gradients([(tape.gradient(loss, w), w)])
mean, expected, factors = 0.0, 0.0, [2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0, 4.0]
for epoch in ds.epochs(2):
    for number, _ in enumerate(ds):
        factor = factors[4 * epoch + number]
        step()
        mean = 0.5 * mean + 1.0  # PyTorch's form: the rate is outside of the buffer
        expected -= 0.5 * factor * mean
        assert abs(float(opt.learning_rate) - 0.5 * factor) < 1e-6, (epoch, number)
        assert abs(float(w) - expected) < 1e-5, (epoch, number, float(w), expected)
    edl.current_worker().loader.progress.step_batches = 2  # as if they added up from now on
for odd, said in (
    (keras.optimizers.Ftrl(rate), "the learning rate of Ftrl is no factor of its updates"),
    (keras.optimizers.Adafactor(rate), "the learning rate of Adafactor is no factor"),
    (keras.optimizers.LossScaleOptimizer(keras.optimizers.Ftrl(rate)), "the learning rate of Ftrl"),
    (keras.optimizers.SGD(rate, gradient_accumulation_steps=2), "edl.LRSchedule counts updates"),
):
    is_refused(edl_errors.UsageError, said, lambda: edl.Optimizer(odd, [w]))
""",
    "the momentum of a job that was resumed with another batch": """
edl.init()
w = tf.Variable(0.0)
ds = edl.Dataset(data, 2)
scaling = edl.schedules.Scaling(batch=1, ramp=2)
rate = edl.LRSchedule(edl.schedules.Constant(peak_lr=0.5), scaling)
sgd = keras.optimizers.SGD(rate, momentum=0.5)
opt = edl.Optimizer(sgd, [w])
momenta = []
for epoch in ds.epochs(1):
    for number, _ in enumerate(ds):
        if number == 0:  # as from a checkpoint of a job with a global batch of 4, so k was 4
            edl.current_worker().loader.progress.batches_resumed = ((0, 4),)
            sgd.momentums[0].assign(-8.0)
        with tf.GradientTape() as tape: loss = 1.0 * w
        opt.apply_gradients([(tape.gradient(loss, w), w)])
        momenta.append(float(sgd.momentums[0]))
expected = [-8.0 * 0.5 * 2 / 4 - 0.5 * 2]  # only the first update changes the rate
for _ in momenta[1:]: expected.append(expected[-1] * 0.5 - 0.5 * 2)
assert np.allclose(momenta, expected), (momenta, expected)
""",
    "rates by the global batch of a MultiOptimizer": """
from edl import errors as edl_errors
edl.init(); heard = sentences()
def several(first, other):
    of = keras.optimizers.OptimizerMap(first, {".*bias": other})
    return keras.optimizers.MultiOptimizer(of)
model, ds, worker = network(), edl.Dataset(data, 2), edl.current_worker()
scaling = edl.schedules.Scaling(batch=1, ramp=2)  # k is 2
rate = edl.LRSchedule(edl.schedules.Constant(peak_lr=0.5), scaling)
ftrl = several(sgd, keras.optimizers.Ftrl(rate))
is_refused(edl_errors.UsageError, "rate of Ftrl", lambda: edl.Optimizer(ftrl, model))
falling = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))
scaled = keras.optimizers.SGD(rate, momentum=0.5)
opt = edl.Optimizer(several(scaled, falling), model)
kernel, _ = model.trainable_variables
@tf.function
def step():
    with tf.GradientTape() as tape: loss = tf.reduce_sum(model(np.ones((1, 1), np.float32)))
    of = model.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, of), of))
mean, expected, factors = 0.0, float(kernel[0, 0]), [2.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0, 4.0]
for epoch in ds.epochs(2):
    for number, _ in enumerate(ds):
        factor = factors[4 * epoch + number]
        step()
        mean = 0.5 * mean + 1.0
        expected -= 0.5 * factor * mean
        assert abs(float(kernel[0, 0]) - expected) < 1e-5, (epoch, number)
    worker.loader.progress.step_batches = 2
rates = worker.replica.learning_rates()
assert list(rates) == ["learning rate of optimizer 0", "learning rate of optimizer 1"], rates
assert abs(rates["learning rate of optimizer 0"] - float(falling.learning_rate)) < 1e-9, rates
assert rates["learning rate of optimizer 1"] == rate.last(), rates
assert "learning_rate.0" in worker.replica.digests(), "a newcomer's rate is compared"
worker._switched(1, 2)
assert "CosineDecay counts updates" in heard[-1], heard
""",
    "averages of BatchNormalization become the job's": """
edl.init()
model = keras.Sequential(
    [keras.Input((1,)), keras.layers.BatchNormalization(), keras.layers.BatchNormalization()]
)
ema = keras.models.clone_model(model)
edl.track(ema=ema)
edl.Optimizer(keras.optimizers.SGD(0.25), model)
replica = edl.current_worker().replica
for number, layer in enumerate((*model.layers, ema.layers[0])):
    layer.moving_mean.assign([number + 1.0])
theirs = [np.full(1, 2.0 * number) for number in range(len(replica.averages()))]
replica.average_buffers(3, lambda row: [row, b"".join(each.tobytes() for each in theirs)])
replica.average_buffers(3, lambda row: 1 / 0)
layers = [*model.layers, *ema.layers]
found = [v.numpy().item() for l in layers for v in (l.moving_mean, l.moving_variance)]
assert found == [0.5, 1.5, 3.0, 3.5, 5.5, 5.5, 6.0, 7.5], found
""",
    "the rate of what a LossScaleOptimizer wraps": """
edl.init()
model, ds = network(), edl.Dataset(data, 4)
opt = edl.Optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.25)), model)
for _ in ds.epochs(1):
    for _ in ds:
        with tf.GradientTape() as tape: loss = opt.scale_loss(tf.reduce_sum(model(data[0])))
        of = model.trainable_variables
        opt.apply_gradients(zip(tape.gradient(loss, of), of))
rates = edl.current_worker().replica.learning_rates()
assert rates == {"learning rate": 0.25}, rates
""",
    "what of a ramp is compared": """
edl.init()
w = tf.Variable([0.0, 0.0])
ds = edl.Dataset(data, 4)
rate = edl.LRSchedule(
    edl.schedules.Constant(peak_lr=0.5), edl.schedules.Scaling(batch=4, ramp=4)
)
opt = edl.Optimizer(keras.optimizers.SGD(rate, momentum=0.5), [w])
worker = edl.current_worker()
digests = lambda: worker.replica.digests()
changed = lambda before: [n for n, digest in digests().items() if digest != before[n]]
for epoch in ds.epochs(1):
    for x, _ in ds:
        before = digests()
        assert "learning_rate.0" in before, before
        with tf.GradientTape() as tape: loss = tf.reduce_sum(w)
        opt.apply_gradients([(tape.gradient(loss, w), w)])
        assert "learning_rate.0" not in changed(before), "it is that of the last update"
        edl.notify_batch_end()
        before, progress = digests(), worker.loader.progress
        opt.momentums[0].assign([-0.5, -0.75])
        (name,) = changed(before)
        assert name.startswith("optimizer.") and "momentum" in name, name
        before, batches = digests(), progress.batches
        progress.batches = ((0, 8),)
        assert changed(before) == ["learning_rate.0"], changed(before)
        progress.batches = batches
""",
    "a schedule in updates, and a batch that changes": """
edl.init(); heard = sentences()
constant, w = edl.LRSchedule(edl.schedules.Constant(peak_lr=0.1)), tf.Variable(0.0)
opt = edl.Optimizer(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)), [w])
opt_of_edl = edl.Optimizer(keras.optimizers.SGD(constant), [tf.Variable(0.0)])
ds = edl.Dataset(data, 4)
for _ in range(2): edl.current_worker()._switched(1, 2)  # as a ring of two would
(said,) = heard
assert "CosineDecay counts updates, and the global batch has gone from 4 to 8 samples" in said, said
assert said.endswith("by edl.LRSchedule(edl.schedules...)"), said
""",
    "rates by samples in fit": """
edl.init()
linear = edl.schedules.Linear(peak_lr=0.5, total=16)
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
model.compile(edl.Optimizer(keras.optimizers.SGD(edl.LRSchedule(linear))), lambda y, z: z)
start = float(model.trainable_variables[0][0, 0])
ones = np.ones((8, 1), np.float32)
model.fit(edl.Dataset((ones, ones), 3), epochs=2, verbose=0, callbacks=[edl.KerasCallback()])
moved = sum(linear.at(n) for n in (3, 6, 8, 11, 14, 16))
assert abs(start - float(model.trainable_variables[0][0, 0]) - moved) < 1e-5
""",
    "layer balance": """
from edl import errors as edl_errors
def refused(said, *given):
    is_refused(edl_errors.UsageError, said, lambda: edl.diagnose.layer_balance(*given))
edl.init(); saved = tempfile.mkdtemp(); edl.checkpoint(saved); keras.utils.set_random_seed(1)
first, second = keras.layers.Dense(3, use_bias=False, name="a"), keras.layers.Dense(2, name="b")
model = keras.Sequential([first, second])
refused("build it before layer_balance", model)
refused("there is only w", [tf.Variable([[1.0]], name="w"), tf.Variable([1.0])])
model.build((None, 1))
balance = edl.diagnose.layer_balance(model, matrices=True)
assert [name.split("/", 1)[1] for name in balance.names] == ["a/kernel", "b/kernel"]
refused("has no weight matrix c; it has", model, ["c"])
edl.track(balance=balance)
start = [np.float64(layer.kernel) for layer in (first, second)]
ones = np.ones((8, 1), np.float32), np.ones((8, 2), np.float32)
ds = edl.Dataset(ones, 3)
balance.record()
class Record(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None): balance.record()
model.compile(edl.Optimizer(keras.optimizers.SGD(0.01)), "mse")
model.fit(ds, epochs=2, verbose=0, callbacks=[edl.KerasCallback(), Record()])
assert balance.samples.tolist() == [0, 3, 6, 8, 11, 14, 16], balance.samples
for row, kernels in ((0, start), (-1, [np.float64(layer.kernel) for layer in (first, second)])):
    assert np.allclose(balance.squared_norms[row], [(kernel**2).sum() for kernel in kernels])
assert abs(balance.drift()).max() < 0.1 and balance.matrix_drift().max() < 0.1
""",
    "fit": """
keras.mixed_precision.set_global_policy("mixed_float16")
edl.init()
ds = edl.Dataset(data, 4).map(lambda x, y: (x * 2, y)).prefetch(1)
assert ds.options().autotune.enabled is False
model = keras.Sequential([keras.layers.Dense(2, activation="relu"), keras.layers.Dense(1)])
model.compile(edl.Optimizer(keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW())), "mse")
stop = keras.callbacks.EarlyStopping("loss", patience=0, min_delta=1e9)
history = model.fit(ds, epochs=9, verbose=0, shuffle=False, callbacks=[edl.KerasCallback(), stop])
assert len(history.epoch) == 2 and edl.step() == 4, history.epoch
path = tempfile.mkdtemp() + "/model.keras"
model.save(path)
assert b"edl" not in zipfile.ZipFile(path).read("config.json")
again = keras.models.load_model(path).optimizer
assert type(again) is type(model.optimizer)
assert [v.numpy().tolist() for v in again.variables] == [
    v.numpy().tolist() for v in model.optimizer.variables
]
""",
}
NOISE = """
import os
os.environ["EDL_NOISE_SCALE_STEPS"] = "1"
from edl.step.noise import NoiseScale, Squares, noise_sample
chance = np.random.default_rng(3)
x = (chance.normal(size=(200, 1)) + 0.5).astype(np.float32)
edl.init()
loader = edl.current_worker().loader
model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
inner = keras.optimizers.Adam(0.0) if kind == "adam" else keras.optimizers.SGD(0.0)
plain = keras.optimizers.LossScaleOptimizer(inner) if kind == "scaled" else inner
ds = edl.Dataset((x, x), 8)
if kind == "fit":
    model.compile(edl.Optimizer(plain), lambda y, z: z)
    model.fit(ds, epochs=1, verbose=0, callbacks=[edl.KerasCallback()])
else:
    opt = edl.Optimizer(plain, model)
    w = model.trainable_variables[0]
    def step(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(batch))
            loss = opt.scale_loss(loss) if kind == "scaled" else loss
        opt.apply_gradients([(tape.gradient(loss, w), w)])
    step = step if kind == "eager" else tf.function(step)
    for epoch in ds.epochs(1):
        for batch, _ in ds: step(batch)
found = loader.progress.noise.scale
assert found.is_biased and found.steps == 12, (kind, found)
gradients = x.reshape(25, 8).mean(axis=1).astype(float)
divisors, v = np.ones(25), 0.0
for number, g in enumerate(gradients):
    if kind == "adam" and number >= 5:
        divisors[number] = np.sqrt(v / (1 - 0.999 ** number)) + 1e-7
    v = 0.999 * v + 0.001 * g * g
expected, seen = NoiseScale(), gradients / divisors
for number in range(0, 24, 2):
    one, two = seen[number], seen[number + 1]
    pair = Squares((one**2 + two**2) / 2, ((one + two) / 2) ** 2)
    expected = expected.after(noise_sample({0: 8}, {0: pair}), 8, number + 2)
for one, other in zip(found.averages, expected.averages, strict=True):
    assert abs(one.noise / other.noise - 1) < 1e-3, (kind, found, expected)
    assert abs(one.signal / other.signal - 1) < 1e-3, (kind, found, expected)
"""
RIGHT_USES |= {
    f"the noise of gradients, {kind}": f"kind = {kind!r}\n{NOISE}"
    for kind in ("eager", "traced", "scaled", "fit", "adam")
}


DROPPED = """
from edl.step.engine import LeasesLost
edl.init()
w = tf.Variable(0.0)
ds = edl.Dataset(data, 2)  # 4 updates an epoch
rate = edl.LRSchedule(
    edl.schedules.Constant(peak_lr=0.5), edl.schedules.Scaling(batch=1, ramp=4)
)
opt = edl.Optimizer(keras.optimizers.SGD(rate, momentum=0.5), [w])
loader = edl.current_worker().loader
def step():
    with tf.GradientTape() as tape: loss = 1.0 * w
    opt.apply_gradients([(tape.gradient(loss, w), w)])
step = tf.function(step) if kind == "traced" else step
mean, expected, rates = 0.0, 0.0, []
for epoch in ds.epochs(2):
    for _ in ds:
        if epoch == 1 and edl.step() == 5:  # as if a repair had given its samples to another one
            loader.sampler.enter(loader.epoch)
            loader.engine.handle(LeasesLost())
            loader.engine.records, loader.engine._sent = None, False  # its row goes out once more
        step()
        rates.append(float(opt.learning_rate))
        if edl.batch_weight():
            mean = 0.5 * mean + 1.0  # PyTorch's form: the rate is outside of the buffer
            expected -= rates[-1] * mean
        assert abs(float(w) - expected) < 1e-5, (rates, float(w), expected)
    loader.progress.step_batches = 2  # as if they added up from now on
assert rates[:9] == [1.0] * 5 + [1.25, 1.5, 1.75, 2.0], rates
"""
RIGHT_USES |= {
    f"a ramp and a step without samples, {kind}": f"kind = {kind!r}\n{DROPPED}"
    for kind in ("eager", "traced")
}


POLICY = """
edl.init()
edl.policy("[learning_rate]\\nschedule = 'linear'\\npeak_lr = 0.5\\ntotal = 16\\n")
"""
BOTH_TABLES = """
edl.init()
rate = "[learning_rate]\\nschedule = 'linear'\\npeak_lr = 0.5\\ntotal = 16\\n"
edl.policy("[batch]\\nbatch_size = 2\\n" + rate)
ds = edl.Dataset(data, 4); opt = edl.Optimizer(sgd); model = network(opt)
model.fit(ds, epochs=1, verbose=0, callbacks=[edl.KerasCallback()])
assert abs(float(opt.learning_rate) - 0.25) < 1e-6, float(opt.learning_rate)
assert edl.current_worker().step == 4
"""
WRONG_USES |= {
    POLICY
    + """
rate = edl.LRSchedule(edl.schedules.Constant(peak_lr=1.0))
edl.Optimizer(keras.optimizers.SGD(rate), network())
""": "the job's policy has a [learning_rate], and the script a LRSchedule",
    POLICY
    + """
of = keras.optimizers.OptimizerMap(sgd)
edl.Optimizer(keras.optimizers.MultiOptimizer(of), network())
""": "the job's policy has a [learning_rate], which one optimizer follows",
    POLICY + "compiled(); fit(keras.callbacks.LearningRateScheduler(lambda epoch: 0.1))": (
        "the job's policy has a [learning_rate], and the script a LearningRateScheduler"
    ),
    "compiled(); edl.policy('[batch]\\nbatch_size = 2\\n')": "call edl.policy before both",
}
RESULTS_IN_LOGS = """
from types import SimpleNamespace
from edl.tensorflow.keras_callbacks import EpochMetrics
class Largest(keras.metrics.Metric):
    edl_additive = False
    def __init__(self, **k):
        super().__init__(**k); self.t = self.add_weight(name="t", initializer="zeros")
    def update_state(self, y, p, sample_weight=None):
        self.t.assign(keras.ops.maximum(self.t, keras.ops.max(p)))
    def result(self): return self.t * 1.0
class Guide(keras.Model):  # as Keras' guide writes it
    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            p = self(x, training=True); loss = self.compute_loss(y=y, y_pred=p)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            metric.update_state(loss) if metric.name == "loss" else metric.update_state(y, p)
        results = {metric.name: metric.result() for metric in self.metrics}
        if renamed: results["error"] = results.pop("compile_metrics")["mae"]
        return results
edl.init(); worker = edl.current_worker()
sgd = edl.Optimizer(keras.optimizers.SGD(0.0)); combine = EpochMetrics.combine
def with_another(self, worker, samples):  # of another worker, with half of its sums
    class Two:
        rank, is_shared = 0, False
        def exchange_bytes(self, mine):
            return [mine, (np.frombuffer(mine) * factors).tobytes()] if mine else [mine, mine]
        def exchange(self, row): return [row, [row[0], *(each / 2 for each in row[1:])]]
    combine(self, Two(), samples)
EpochMetrics.combine = with_another
ds = edl.Dataset(data, 4); inputs = keras.Input((1,))
model = Guide(inputs, keras.layers.Dense(1, kernel_initializer="ones")(inputs))
model.compile(sgd, "mse", metrics=["mae", Largest(name="top")])
factors = np.tile([3.0, 1.0], 2)  # of the total and the count of each mean
found = model.fit(ds, epochs=2, callbacks=[edl.KerasCallback()], shuffle=False, verbose=0,
    validation_data=data).history
again = model.evaluate(*data, verbose=0, return_dict=True)
mae = found["error" if renamed else "mae"][-1]
assert np.isclose(mae, 2 * again["mae"]), (found, again)
assert np.isclose(found["loss"][-1], 2 * again["loss"]), (found, again)
assert renamed or np.isclose(found["top"][-1], 0.75 * data[0].max()), found
assert found["val_top"][-1] == again["top"] == data[0].max() > 0, (found, again)
"""
RIGHT_USES |= {
    f"the job's numbers in the logs of a train_step, {name}": f"renamed = {so}\n{RESULTS_IN_LOGS}"
    for name, so in (("as in Keras' guide", False), ("under another name", True))
}
RIGHT_USES |= {"a rate and batches of the policy": BOTH_TABLES}


LONG = {  # tests/README.md, Time: the one that is named has the promise in `make test`
    "all metrics of Keras over the samples of all workers",  # own metrics that are sums
    "fits that follow each other, with another optimizer and more to train",  # "called fit, and a"
    "the job's numbers in the logs of a train_step, under another name",  # as in Keras' guide
    "synchronized batch normalisation where nobody else is",  # as in one process
    "epochs until so many steps are made, with a tape of the job's",  # a loop by steps
    "two optimizers with clipped gradients of the job",  # clipped means; test_several_optimizers
    *(f"the noise of gradients, {kind}" for kind in ("traced", "scaled", "adam")),  # fit
    "a ramp and a step without samples, eager",  # traced
    "rates by samples",  # in fit
    "rates by the global batch",
    "damaged data, slow, caught in a session",  # in a loop
}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, tuple[int, str]]:
    wrong = {code: code for code in WRONG_USES | LONG_WRONG_USES}
    codes = asked(request, wrong | RIGHT_USES)
    snippets = {name: SGD * ("sgd" in code) + code for name, code in codes.items()}
    return answers_of(snippets, IMPORTS, SETUP)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in RIGHT_USES]
)
def test_other_ways_to_write_it(name: str, answers: dict[str, tuple[int, str]]) -> None:
    code, stderr = answers[name]
    assert code == 0, stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        *(pytest.param(*use, id=use[1]) for use in WRONG_USES.items()),
        *(pytest.param(*use, id=use[1], marks=pytest.mark.long) for use in LONG_WRONG_USES.items()),
    ],
)
def test_wrong_use_gets_a_sentence(
    name: str, sentence: str, answers: dict[str, tuple[int, str]]
) -> None:
    assert_a_sentence(answers[name], sentence)


HABITS = """
import numpy as np, keras, sys
import edl.tensorflow as edl

edl.init()
x = np.linspace(0, 1, 36, dtype=np.float32)[:, None]
one, other = keras.Input((1,)), keras.Input((1,))
model = keras.Model([one, other], keras.layers.Dense(1)(keras.layers.add([one, other])))
model.compile(edl.Optimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
board = keras.callbacks.TensorBoard(sys.argv[1])
dataset = edl.Dataset(([x, x], 2 * x), 4, shuffle=True)
model.fit(dataset, epochs=2, callbacks=[board, edl.KerasCallback()], verbose=2)
"""


def test_habits_of_keras(tmp_path: Path) -> None:
    done = forked.python("tensorflow", ["-c", HABITS, tmp_path / "board"], 240.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("9/9 - ") == 2, "36 samples, not the two of a list"
    assert "jit_compile is turned off" in done.stderr
    assert "shuffle=True" not in done.stderr
    assert list((tmp_path / "board" / "train").glob("events.*"))
