"""What TensorFlow scripts cannot do with logical workers gets a sentence; what they can, works."""

from __future__ import annotations

import pytest
from wrong import answers_of, asked, assert_a_sentence

pytestmark = [pytest.mark.integration, pytest.mark.long]  # tests/README.md, Time

IMPORTS = """
import os; os.environ["EDL_LOGICAL"] = "2"
import numpy as np
import tensorflow as tf
import edl.tensorflow as edl
"""
SETUP = """
keras = tf.keras
sgd = keras.optimizers.SGD(0.1)
data = np.arange(8, dtype=np.float32)[:, None], np.zeros((8, 1), np.float32)
def network(*layers, optimizer=None):
    model = keras.Sequential([keras.Input((1,)), *layers, keras.layers.Dense(1)])
    if optimizer is not None:
        model.compile(optimizer, "mse")
    return model
"""
LOOP = """
edl.init(); ds = edl.Dataset(data, 2)
model = network(keras.layers.BatchNormalization()); opt = edl.Optimizer(sgd, model)
def train(x, y, loss_of=lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2)):
    with tf.GradientTape() as tape: loss = loss_of(x, y)
    weights = model.trainable_variables
    opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
def run(step=train):
    for _ in ds.epochs(1):
        for x, y in ds: step(x, y)
"""
FIT = """
edl.init(); ds = edl.Dataset(data, 2); model = network(optimizer=edl.Optimizer(sgd))
def run(*callbacks, **more):
    model.fit(ds, verbose=0, callbacks=[edl.KerasCallback(), *callbacks], **more)
"""
DRAWS = "whose random numbers depend on what this worker has drawn before"
NOT_LOGICAL = "the job has 2 logical workers, and"
WRONG_USES = {
    "no model": (
        (
            "edl.init(); ds = edl.Dataset(data, 2); model = network(); opt = edl.Optimizer(sgd)\n"
            "ds.epochs(1)"
        ),
        "give it: edl.Optimizer(optimizer, model)",
    ),
    "variables in place of a model": (
        (
            "edl.init(); ds = edl.Dataset(data, 2); model = network()\n"
            "opt = edl.Optimizer(sgd, model.trainable_variables); ds.epochs(1)"
        ),
        "give it: edl.Optimizer(optimizer, model)",
    ),
    "two optimizers": (
        (
            "edl.init(); ds = edl.Dataset(data, 2); edl.Optimizer(sgd, network())\n"
            "edl.Optimizer(keras.optimizers.SGD(0.1), network())"
        ),
        NOT_LOGICAL,
    ),
    "a graph": (
        (
            "tf.compat.v1.disable_eager_execution(); edl.init()\n"
            "edl.elastic_shard_generator(data, batch_size=2)"
        ),
        NOT_LOGICAL,
    ),
    "a largest batch": (
        "edl.init(); edl.Dataset(data, 2, max_global_batch=4)",
        "give it batch_size, the batch of each logical worker",
    ),
    "a tuner": (
        LOOP + "edl.LRTuner(opt, lambda batch: 0.0, total=8)",
        "it measures whole batches, and --logical hands out pieces",
    ),
    "synchronized": (
        (
            "edl.init(); ds = edl.Dataset(data, 2)\n"
            "model = network(keras.layers.BatchNormalization(synchronized=True))\n"
            "type(edl.current_worker()._coordinator).is_shared = True\n"
            "model(data[0], training=True)"
        ),
        "takes its statistics from all workers",
    ),
    "tf.random in a function": (
        LOOP + "run(tf.function(lambda x, y: train(x + tf.random.normal((1,)), y)))",
        DRAWS,
    ),
    "tf.nn.dropout in a function of its own": (
        LOOP + "drop = tf.function(lambda x: tf.nn.dropout(x, 0.5))\n"
        "run(lambda x, y: train(drop(x), y))",
        DRAWS,
    ),
    "a random operation that is not made by Python's functions": (
        LOOP + "draw = lambda x: tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32, seed=1)\n"
        "run(tf.function(lambda x, y: train(x + draw(x), y)))",
        "a tf.function draws by RandomUniform",
    ),
    "a generator": (
        LOOP + "draws = tf.random.Generator.from_seed(1)\n"
        "run(lambda x, y: train(x + draws.normal((1,)), y))",
        "the script draws by a tf.random.Generator",
    ),
    "a generator of Keras that is made in a step": (
        (
            LOOP + "made = []\ndef noisy(x, y):\n"
            " made.append(keras.random.SeedGenerator(1))\n"
            " train(x + keras.random.normal((1,), seed=made[0]), y)\n"
            "run(noisy)"
        ),
        "make it before the first batch",
    ),
    "random numbers in map": (
        "edl.init(); edl.Dataset(data, 2).map(lambda x, y: (x + tf.random.normal((1,)), y))",
        "the function that map() was given has RandomStandardNormal in it",
    ),
    "a layer with random numbers in map": (
        (
            "edl.init(); noise = keras.layers.GaussianNoise(0.1)\n"
            "edl.Dataset(data, 2).map(lambda x, y: (noise(x, training=True), y))"
        ),
        "the function that map() was given has AssignVariableOp in it",
    ),
    "Python in map": (
        (
            "edl.init()\n"
            "edl.Dataset(data, 2).map(lambda x, y: (tf.numpy_function(np.abs, [x], tf.float32), y))"
        ),
        "the function that map() was given has PyFunc in it",
    ),
    "a layer with random numbers in the source": (
        (
            "edl.init(); noise = keras.layers.GaussianNoise(0.1)\n"
            "def collate(samples):\n"
            " x = np.stack([x for x, _ in samples]); return noise(x, training=True).numpy()\n"
            "edl.Dataset(data, 2, collate_fn=collate)"
        ),
        "the data source draws by keras.random, or a layer of Keras",
    ),
    "tf.random in the source": (
        (
            "class Noisy:\n def __len__(self): return 8\n"
            " def __getitem__(self, index):\n"
            "  return tf.random.normal((1,)).numpy(), data[1][index]\n"
            + LOOP.replace("(data, 2)", "(Noisy(), 2)")
            + "run()"
        ),
        "the data source draws by tf.random",
    ),
    "averages that change after the gradients": (
        LOOP + "def late(x, y):\n train(x, y); model(x, training=True)\nrun(late)",
        "was changed after the gradients of a logical worker were computed",
    ),
    "averages that change in an outer function": (
        LOOP + "update = tf.function(lambda x, y: train(x, y))\n"
        "@tf.function\ndef outer(x, y):\n model(x, training=True); update(x, y)\nrun(outer)",
        "is used in one tf.function",
    ),
    "a gradient of some batches only": (
        LOOP + "def some(x, y):\n"
        " first = model.layers[0].gamma if float(x[0, 0]) < 1 else 1.0\n"
        " train(x, y, lambda x, y: tf.reduce_mean((model.layers[1](x) * first - y) ** 2))\n"
        "run(some)",
        "has a gradient for some logical workers and none for others",
    ),
    "a callback that steers by the loss": (
        FIT + 'run(keras.callbacks.EarlyStopping("loss"))',
        "EarlyStopping steers the training by 'loss'",
    ),
}
RIGHT_USES = {
    "random numbers in map of a validation set": (
        FIT + "noisy = tf.data.Dataset.from_tensor_slices(data).batch(4)\n"
        "run(validation_data=noisy.map(lambda x, y: (x + tf.random.normal((1,)), y)).repeat(1))"
    ),
    "an ordinary map": (
        "edl.init(); ds = edl.Dataset(data, 2).map(lambda x, y: (x / 2, y)).prefetch(1)\n"
        "model = network(); opt = edl.Optimizer(sgd, model)\n"
        "for _ in ds.epochs(1):\n"
        " for x, y in ds:\n"
        "  with tf.GradientTape() as tape: loss = tf.reduce_mean((model(x) - y) ** 2)\n"
        "  weights = model.trainable_variables\n"
        "  opt.apply_gradients(zip(tape.gradient(loss, weights), weights))\n"
        "assert edl.step() == 2, edl.step()"
    ),
    "gradient_accumulation_steps, and a fit in eager code": (
        "edl.init(); ds = edl.Dataset(data, 2)\n"
        "opt = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)\n"
        "model = network(); model.compile(edl.Optimizer(opt), 'mse', run_eagerly=True)\n"
        "model.fit(ds, epochs=2, verbose=0, callbacks=[edl.KerasCallback()])\n"
        "assert edl.step() == 4 and int(opt.iterations) == 2"
    ),
    "the same eager numbers whenever the same seed is set": (
        "from edl.tensorflow import training\n"
        "edl.init(); edl.Dataset(data, 2); seed = training.current()._numbers._framework.seed\n"
        "def drawn(number):\n"
        " seed(number); a, b, c = (float(tf.random.uniform(())) for _ in range(3))\n"
        " d, e = float(keras.random.uniform(())), float(tf.random.uniform((), seed=3))\n"
        " return a, b, c, d, e\n"
        "first = drawn(1); other = drawn(2); assert len({*first, *other}) == 10\n"
        "assert drawn(1) == first and drawn(2) == other and drawn(2) == other"
    ),
}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, tuple[int, str]]:
    return answers_of(asked(request, WRONG_USES | RIGHT_USES), IMPORTS, SETUP)


@pytest.mark.parametrize("name", WRONG_USES)
def test_wrong_use_gets_a_sentence(name: str, answers: dict[str, tuple[int, str]]) -> None:
    assert_a_sentence(answers[name], WRONG_USES[name][1])


@pytest.mark.parametrize("name", RIGHT_USES)
def test_right_use(name: str, answers: dict[str, tuple[int, str]]) -> None:
    code, stderr = answers[name]
    assert code == 0, stderr
