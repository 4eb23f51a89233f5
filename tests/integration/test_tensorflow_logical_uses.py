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
WRONG_USES = {  # by their code: a part of the sentence
    """
edl.init(); ds = edl.Dataset(data, 2); model = network(); opt = edl.Optimizer(sgd)
ds.epochs(1)
""": "give it: edl.Optimizer(optimizer, model)",
    """
edl.init(); ds = edl.Dataset(data, 2); model = network()
opt = edl.Optimizer(sgd, model.trainable_variables); ds.epochs(1)
""": "give it: edl.Optimizer(optimizer, model)",
    """
edl.init(); ds = edl.Dataset(data, 2); edl.Optimizer(sgd, network())
edl.Optimizer(keras.optimizers.SGD(0.1), network())
""": NOT_LOGICAL,
    """
tf.compat.v1.disable_eager_execution(); edl.init()
edl.elastic_shard_generator(data, batch_size=2)
""": NOT_LOGICAL,
    "edl.init(); edl.Dataset(data, 2, max_global_batch=4)": (
        "give it batch_size, the batch of each logical worker"
    ),
    LOOP + "edl.LRTuner(opt, lambda batch: 0.0, total=8)": (
        "it measures whole batches, and --logical hands out pieces"
    ),
    """
edl.init(); ds = edl.Dataset(data, 2)
model = network(keras.layers.BatchNormalization(synchronized=True))
type(edl.current_worker()._coordinator).is_shared = True
model(data[0], training=True)
""": "takes its statistics from all workers",
    LOOP + "run(tf.function(lambda x, y: train(x + tf.random.normal((1,)), y)))": DRAWS,
    LOOP
    + """
drop = tf.function(lambda x: tf.nn.dropout(x, 0.5))
run(lambda x, y: train(drop(x), y))
""": DRAWS,
    LOOP
    + """
draw = lambda x: tf.raw_ops.RandomUniform(shape=[1], dtype=tf.float32, seed=1)
run(tf.function(lambda x, y: train(x + draw(x), y)))
""": "a tf.function draws by RandomUniform",
    LOOP
    + """
draws = tf.random.Generator.from_seed(1)
run(lambda x, y: train(x + draws.normal((1,)), y))
""": "the script draws by a tf.random.Generator",
    LOOP
    + """
made = []
def noisy(x, y):
    made.append(keras.random.SeedGenerator(1))
    train(x + keras.random.normal((1,), seed=made[0]), y)
run(noisy)
""": "make it before the first batch",
    "edl.init(); edl.Dataset(data, 2).map(lambda x, y: (x + tf.random.normal((1,)), y))": (
        "the function that map() was given has RandomStandardNormal in it"
    ),
    """
edl.init(); noise = keras.layers.GaussianNoise(0.1)
edl.Dataset(data, 2).map(lambda x, y: (noise(x, training=True), y))
""": "the function that map() was given has AssignVariableOp in it",
    """
edl.init()
edl.Dataset(data, 2).map(lambda x, y: (tf.numpy_function(np.abs, [x], tf.float32), y))
""": "the function that map() was given has PyFunc in it",
    """
edl.init(); noise = keras.layers.GaussianNoise(0.1)
def collate(samples):
    x = np.stack([x for x, _ in samples]); return noise(x, training=True).numpy()
edl.Dataset(data, 2, collate_fn=collate)
""": "the data source draws by keras.random, or a layer of Keras",
    """
class Noisy:
    def __len__(self): return 8
    def __getitem__(self, index):
        return tf.random.normal((1,)).numpy(), data[1][index]
"""
    + LOOP.replace("(data, 2)", "(Noisy(), 2)")
    + "run()": "the data source draws by tf.random",
    LOOP
    + """
def late(x, y):
    train(x, y); model(x, training=True)
run(late)
""": "was changed after the gradients of a logical worker were computed",
    LOOP
    + """
update = tf.function(lambda x, y: train(x, y))
@tf.function
def outer(x, y):
    model(x, training=True); update(x, y)
run(outer)
""": "is used in one tf.function",
    LOOP
    + """
def some(x, y):
    first = model.layers[0].gamma if float(x[0, 0]) < 1 else 1.0
    train(x, y, lambda x, y: tf.reduce_mean((model.layers[1](x) * first - y) ** 2))
run(some)
""": "has a gradient for some logical workers and none for others",
    FIT + 'run(keras.callbacks.EarlyStopping("loss"))': (
        "EarlyStopping steers the training by 'loss'"
    ),
}
RIGHT_USES = {
    "random numbers in map of a validation set": (
        FIT + "noisy = tf.data.Dataset.from_tensor_slices(data).batch(4)\n"
        "run(validation_data=noisy.map(lambda x, y: (x + tf.random.normal((1,)), y)).repeat(1))"
    ),
    "an ordinary map": """
edl.init(); ds = edl.Dataset(data, 2).map(lambda x, y: (x / 2, y)).prefetch(1)
model = network(); opt = edl.Optimizer(sgd, model)
for _ in ds.epochs(1):
    for x, y in ds:
        with tf.GradientTape() as tape: loss = tf.reduce_mean((model(x) - y) ** 2)
        weights = model.trainable_variables
        opt.apply_gradients(zip(tape.gradient(loss, weights), weights))
assert edl.step() == 2, edl.step()
""",
    "gradient_accumulation_steps, and a fit in eager code": """
edl.init(); ds = edl.Dataset(data, 2)
opt = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
model = network(); model.compile(edl.Optimizer(opt), 'mse', run_eagerly=True)
model.fit(ds, epochs=2, verbose=0, callbacks=[edl.KerasCallback()])
assert edl.step() == 4 and int(opt.iterations) == 2
""",
    "the same eager numbers whenever the same seed is set": """
from edl.tensorflow import training
edl.init(); edl.Dataset(data, 2); seed = training.current()._numbers._framework.seed
def drawn(number):
    seed(number); a, b, c = (float(tf.random.uniform(())) for _ in range(3))
    d, e = float(keras.random.uniform(())), float(tf.random.uniform((), seed=3))
    return a, b, c, d, e
first = drawn(1); other = drawn(2); assert len({*first, *other}) == 10
assert drawn(1) == first and drawn(2) == other and drawn(2) == other
""",
}


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, tuple[int, str]]:
    codes = asked(request, {code: code for code in WRONG_USES} | RIGHT_USES)
    return answers_of(codes, IMPORTS, SETUP)


@pytest.mark.parametrize(("name", "sentence"), WRONG_USES.items(), ids=WRONG_USES.values())
def test_wrong_use_gets_a_sentence(
    name: str, sentence: str, answers: dict[str, tuple[int, str]]
) -> None:
    assert_a_sentence(answers[name], sentence)


@pytest.mark.parametrize("name", RIGHT_USES)
def test_right_use(name: str, answers: dict[str, tuple[int, str]]) -> None:
    code, stderr = answers[name]
    assert code == 0, stderr
