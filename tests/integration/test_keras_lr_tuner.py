"""A learning rate that is tuned while Keras trains: evaluating leaves no trace.

Jobs of one worker. How several agree is :mod:`test_lr_tuner`, and what they decide is in unit/.
"""

from __future__ import annotations

import pytest
from wrong import answers_of, asked, assert_a_sentence

pytestmark = pytest.mark.integration

IMPORTS = """
import json
import numpy as np
import tensorflow as tf
import edl.tensorflow as edl
from edl.contrib import lr_rules as policy
from edl.contrib.lr_rules import points
from edl.contrib import lr_tuner as shared
from edl.contrib.tensorflow_lr_tuner import Probe, TracedLoss
"""
SETUP = """
keras = tf.keras
now_s = 0.0
shared.now_s = lambda: now_s
def passes(seconds):
    global now_s
    now_s += seconds
class Ticks(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None): passes(1.0)
def network(*layers, size=1):
    return keras.Sequential([keras.Input((size,)), *layers, keras.layers.Dense(1)])
def gradients(tape_of, variables):
    with tf.GradientTape() as tape: loss = tape_of()
    return zip(tape.gradient(loss, variables), variables)
def is_refused(said, act):
    try: act()
    except edl_errors.UsageError as error: assert said in str(error), error
    else: raise AssertionError(said)
from edl import errors as edl_errors
data = np.arange(8, dtype=np.float32)[:, None], np.zeros((8, 1), np.float32)
"""

NO_TRACE = """
model = network(
    keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5), size=4
)
sgd = keras.optimizers.SGD(0.1, momentum=0.9)
chance, seen = keras.random.SeedGenerator(3), keras.metrics.Mean()
def loss_of(batch):
    moved = batch + keras.random.normal((4,), seed=chance)
    loss = tf.reduce_mean(model(moved, training=True) ** 2)
    seen.update_state(loss)
    return loss
loss, probe, x = TracedLoss(loss_of), Probe(sgd), tf.random.normal((16, 4))
def everything():
    variables = [*model.variables, *sgd.variables, *seen.variables, chance.state]
    return [variable.numpy() for variable in variables]
def train(): sgd.apply_gradients(gradients(lambda: loss_of(x), model.trainable_variables))
train()
probe.begin()
probe.end()
assert not probe.holds, "no update was made"
probe.begin()
train()
assert not probe.holds
probe.end()
train()
before = everything()
at = points(2.0)
losses = probe.losses((*at, -1.0, 0.0), loss.of(x))
assert np.allclose([losses[0], losses[2]], losses[-2:], 1e-6), "the same dropout at each point"
assert len({round(each, 4) for each in losses[:4]}) == 4, losses
assert len(probe.losses(at, loss.of(x[:3].numpy()))) == 4
assert loss._traced.experimental_get_tracing_count() == 1, "batches of any size"
try: probe.losses(at, TracedLoss(lambda b: tf.debugging.check_numerics(loss_of(b), "")).of(x / 0))
except tf.errors.InvalidArgumentError: pass
else: raise AssertionError("not a number")
after = everything()
assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
assert len({variable.shape for variable in before}) > 3
"""

OTHER_RATES = """
gradient = [tf.constant([1.0, -3.0])]
def stepped(rate):
    w = tf.Variable([4.0, 2.0])
    adam = keras.optimizers.AdamW(rate, weight_decay=0.5)
    adam.build([w])
    return w, adam, lambda: adam.apply(gradient, [w])
by_rate = []
for rate in (0.0, 0.05, 0.1, 0.2):
    w, _, step = stepped(rate)
    step()
    by_rate.append(float(tf.reduce_sum(w * w)))
w, adam, step = stepped(0.1)
probe = Probe(adam)
probe.begin()
step()
probe.end()
found = probe.losses(points(2.0), TracedLoss(lambda _: tf.reduce_sum(w * w)).of(w))
assert np.allclose(found, by_rate, 1e-5), (found, by_rate)
"""

BOWL = """
policy.SETTLE = 2  # a bowl has no momentum that has to build up
edl.init()
ds = edl.Dataset(np.ones((samples, 1), np.float32), 10)
w = tf.Variable(4.0, dtype=tf.float64)
opt = edl.Optimizer(keras.optimizers.SGD(given, momentum=momentum), [w])
tuner = edl.LRTuner(opt, lambda x: w * w / 2, total=total, share=1.0)
assert abs(float(opt.learning_rate) - given / 10) < 1e-6
rows, worker = [], edl.current_worker()
plain = worker.exchange
def exchange(values):
    rows.append(values)
    return plain(values)
worker.exchange = exchange
def step(): opt.apply_gradients(gradients(lambda: w * w / 2, [w]))
traced, rates, mean, expected = tf.function(step), [], 0.0, 4.0
for _ in ds.epochs(1):
    for number, x in enumerate(ds):
        passes(1.0)
        (traced if number % 3 else step)()
        rates.append(float(opt.learning_rate))
        mean = momentum * mean + expected  # PyTorch's form: the rate is outside of the buffer
        expected -= rates[-1] * mean
        assert abs(float(w) - expected) < 1e-5, (number, float(w), expected)
        tuner.step(x)
"""

RIGHT_USES = {
    "an evaluation leaves no trace": NO_TRACE,
    "it is the loss with other learning rates": OTHER_RATES,
    # As in unit/test_torch_lr_tuner.py: 0.1 of the rate that is given, so 3.6, 3.24, 2.916; the
    # second update is evaluated in the third, without it, with half, all and four times of it.
    "a bowl": (
        "given, samples, total, momentum = 1.0, 120, 100_000, 0.0"
        + BOWL
        + """
weight, _, step_s, *losses = rows[0]
assert (weight, step_s) == (10.0, 1.0)
assert np.allclose(losses, [w * w / 2 for w in (3.6, 3.42, 3.24, 2.16)]), losses
assert np.allclose(rates[:9], 0.1) and abs(rates[9] - 0.4) < 1e-6, rates
assert "0.1 -> 0.4 at 90 of 100000 samples: the loss is least at 10" in tuner.reason, tuner.reason
state = tuner.state_dict()
tuner.load_state_dict(json.loads(json.dumps(state)))
assert tuner.state_dict() == state
is_refused("create it before the first batch", lambda: edl.LRTuner(opt, total=9))
"""
    ),
    "a momentum holds the rate": (
        "given, samples, total, momentum = 0.1, 400, 400, 0.5"
        + BOWL
        + "assert len(set(rates)) > 5 and max(rates) > 0.03 and rates[-1] == 0.0, rates"
    ),
    "fit takes each batch once, and traces its step once": """
policy.SETTLE = 2
edl.init()
x = np.arange(40, dtype=np.float32)[:, None]
traces, seen = [], tf.Variable(0.0, dtype=tf.float64)
class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
    def call(self, x): return self.layer(x)
    def loss_of(self, batch): return tf.reduce_mean((self(batch[0]) - batch[1]) ** 2)
    def train_step(self, batch):
        traces.append(batch)
        seen.assign_add(tf.cast(tf.reduce_sum(batch[0]), tf.float64))
        self.optimizer.apply_gradients(
            gradients(lambda: self.loss_of(batch), self.trainable_variables)
        )
        return {"loss": tf.reduce_sum(batch[0])}
model, ds = Net(), edl.Dataset((x, 0 * x), 3)
opt = edl.Optimizer(keras.optimizers.SGD(1e-4))
tuner = edl.LRTuner(opt, model.loss_of, total=160, share=1.0)
model.compile(opt)
model.fit(ds, epochs=4, verbose=0, callbacks=[tuner, Ticks(), edl.KerasCallback()])
assert float(seen) == 4 * x.sum() and len(traces) == 1, (float(seen), traces)
assert tuner.reason != "nothing is measured yet" and float(opt.learning_rate) == 0.0, tuner.reason
""",
    "fit with float16, XLA, regularisation and weights of samples": """
policy.SETTLE = 2
keras.mixed_precision.set_global_policy("mixed_float16")
edl.init()
model = network(keras.layers.Dense(4, kernel_regularizer="l2"), keras.layers.Dropout(0.5))
plain = keras.optimizers.RMSprop(1.0, momentum=0.5)
opt = edl.Optimizer(keras.optimizers.LossScaleOptimizer(plain))
tuner = edl.LRTuner(opt, total=400, share=1.0)
model.compile(opt, "mse", jit_compile=True)
x = np.ones((200, 1), np.float32)
ds = edl.Dataset((x, x, x[:, 0]), 8)
model.fit(ds, epochs=2, verbose=0, callbacks=[edl.KerasCallback(), tuner, Ticks()])
assert tuner.state_dict()["decided_at"] > 0 and float(opt.learning_rate) == 0.0, tuner.reason
""",
    "fit on batches that are ragged, and cannot be made up": """
policy.SETTLE = 2
edl.init()
x = np.ones((40, 2), np.float32)
class Net(keras.Model):
    def call(self, x): return self.layer(x)
    def loss_of(self, batch): return tf.reduce_mean((self(batch[0].to_tensor()) - batch[1]) ** 2)
    def train_step(self, batch):
        self.optimizer.apply_gradients(
            gradients(lambda: self.loss_of(batch), self.trainable_variables)
        )
        return {"loss": tf.reduce_sum(batch[1])}
model = Net()
model.layer = keras.layers.Dense(1)
model(x)
ds = edl.Dataset((x, x[:, :1]), 4).map(lambda x, y: (tf.RaggedTensor.from_tensor(x), y))
opt = edl.Optimizer(keras.optimizers.SGD(0.1), model)
tuner = edl.LRTuner(opt, model.loss_of, total=160, share=1.0)
model.compile(opt)
model.fit(ds, epochs=4, verbose=0, callbacks=[tuner, Ticks(), edl.KerasCallback()])
assert tuner.reason != "nothing is measured yet", tuner.reason
""",
}

FIT = """
edl.init(); ds = edl.Dataset(data, 4); model = network()
opt = edl.Optimizer(keras.optimizers.SGD(0.1))
def fit(*callbacks, made=None):
    made = made or model
    made.compile(opt, "mse")
    made.fit(ds, verbose=0, callbacks=[edl.KerasCallback(), *callbacks])
"""
LOOP = """
edl.init(); ds = edl.Dataset(data, 4); model = network()
opt = edl.Optimizer(keras.optimizers.SGD(0.1), model)
def step(): opt.apply_gradients(gradients(lambda: loss_of(data), model.trainable_variables))
def loss_of(batch): return tf.reduce_mean(model(batch[0]) ** 2)
def every_batch(act):
    for _ in ds.epochs(1):
        for batch in ds: act(batch)
def train(tuner): every_batch(lambda batch: (step(), tuner.step(batch)))
"""


def optimizer(made: str) -> str:
    return f"edl.init(); edl.LRTuner(edl.Optimizer(keras.optimizers.{made}), total=9)"


WRONG_USES = {  # by their code: a part of the sentence
    "edl.init(); edl.LRTuner(keras.optimizers.SGD(0.1), total=9)": (
        "give it the optimizer of the job: optimizer = edl.Optimizer(optimizer, model)"
    ),
    """
tf.compat.v1.disable_eager_execution(); edl.init()
sgd = edl.Optimizer(tf.compat.v1.train.AdamOptimizer())
edl.LRTuner(sgd, total=9)
""": "it tunes optimizers of tf.keras.optimizers; this is a AdamOptimizer of a graph",
    FIT + "edl.LRTuner(opt, total=100, explore=101)": "explore is 101 samples and total 100",
    FIT + "edl.LRTuner(opt, total=100, share=0)": "share is 0",
    FIT + "edl.LRTuner(opt, total=0)": "total is 0 samples",
    optimizer("SGD(0.0)"): "the optimizer's learning rate is 0",
    optimizer("Ftrl(0.1)"): (
        "the learning rate of Ftrl is no factor of its updates, so it has no tuner"
    ),
    optimizer("SGD(0.1, gradient_accumulation_steps=2)"): (
        "with gradient_accumulation_steps of SGD not every step is an update"
    ),
    optimizer("SGD(0.1, use_ema=True, ema_overwrite_frequency=2)"): (
        "with ema_overwrite_frequency of SGD"
    ),
    optimizer("SGD(edl.LRSchedule(edl.schedules.Constant(peak_lr=0.1)))"): (
        "LRSchedule sets the same learning rate; leave one of them out"
    ),
    optimizer("SGD(keras.optimizers.schedules.CosineDecay(0.1, 9))"): (
        "CosineDecay sets the same learning rate"
    ),
    optimizer(
        "LossScaleOptimizer(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(1, 9)))"
    ): "CosineDecay sets the same learning rate",
    FIT
    + """
tuner = edl.LRTuner(opt, total=9)
opt.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 9)
fit(tuner)
""": "CosineDecay sets the same learning rate",
    FIT + "fit(edl.LRTuner(opt, total=9), keras.callbacks.ReduceLROnPlateau('loss'))": (
        "ReduceLROnPlateau sets the same learning rate"
    ),
    FIT
    + """
other = keras.callbacks.LearningRateScheduler(lambda epoch: 1.0)
fit(edl.LRTuner(opt, total=9), other)
""": "LearningRateScheduler sets the same learning rate",
    FIT
    + """
import edl.tensorflow.keras as hvd
warm = hvd.callbacks.LearningRateWarmupCallback(0.1)
fit(edl.LRTuner(opt, total=9), warm)
""": "LearningRateWarmupCallback sets the same learning rate",
    FIT + "edl.LRTuner(opt, total=9); edl.LRTuner(opt, total=9)": (
        "another one sets the same learning rate"
    ),
    FIT + "edl.LRTuner(opt, total=9); fit()": (
        "edl.LRTuner: give it to model.fit, among its callbacks"
    ),
    LOOP
    + "edl.LRTuner(opt, loss_of, total=9)\nedl.Optimizer(keras.optimizers.SGD(0.1), network())": (
        "this script has several optimizers; it tunes the only one"
    ),
    LOOP
    + "edl.Optimizer(keras.optimizers.SGD(0.1), network())\nedl.LRTuner(opt, loss_of, total=9)": (
        "this script has several optimizers; it tunes the only one"
    ),
    FIT
    + """
class Own(keras.Model):
    def train_step(self, batch): return {}
x = keras.Input((1,))
fit(edl.LRTuner(opt, total=9), made=Own(x, keras.layers.Dense(1)(x)))
""": "Own has a train_step of its own; give it loss_of",
    LOOP + "train(edl.LRTuner(opt, total=9))": "in a loop of your own, give it loss_of",
    LOOP + "every_batch(edl.LRTuner(opt, loss_of, total=9).step)": (
        "call its step() after optimizer.apply_gradients()"
    ),
    LOOP + "train(edl.LRTuner(opt, lambda batch: model(batch[0]), total=9))": (
        "loss_of of edl.LRTuner gives the mean loss of a batch"
    ),
    LOOP
    + """
def noisy(batch): return loss_of(batch) * tf.random.normal(())
train(edl.LRTuner(opt, noisy, total=9))
""": "the loss draws random numbers by RandomStandardNormal",
    LOOP
    + """
chance = tf.random.Generator.from_seed(1)
inner = tf.function(lambda: chance.normal(()))
train(edl.LRTuner(opt, lambda batch: loss_of(batch) * inner(), total=9))
""": "the loss draws random numbers by RngReadAndSkip",
}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, tuple[int, str]]:
    codes = asked(request, {code: code for code in WRONG_USES} | RIGHT_USES)
    return answers_of(codes, IMPORTS, SETUP)


@pytest.mark.parametrize("name", RIGHT_USES)
def test_it_tunes(name: str, answers: dict[str, tuple[int, str]]) -> None:
    code, stderr = answers[name]
    assert code == 0, stderr


@pytest.mark.parametrize(("name", "sentence"), WRONG_USES.items(), ids=WRONG_USES.values())
def test_what_cannot_be_is_a_sentence(
    name: str, sentence: str, answers: dict[str, tuple[int, str]]
) -> None:
    assert_a_sentence(answers[name], sentence)
