"""The counting model (see tally.py) in a TensorFlow loop as it is written for Horovod Elastic.

Every batch is committed, and every worker has equal batches, so a step is a mean over its samples.
With --graph the step is built once, in a graph, and run in a session.
"""

import numpy as np
import tensorflow as tf
from tally import Diary, counted, parser

import edl.tensorflow as hvd

options = parser()
options.add_argument("--graph", action="store_true", help="a graph and a session")
args = options.parse_args()
if args.graph:
    tf.compat.v1.disable_eager_execution()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(4)

hvd.init()
zeros = np.zeros(args.samples)
w, before, count = (tf.Variable(zeros, name=name) for name in ("w", "before", "count"))
steps = tf.Variable(0, name="steps")
diary = Diary(args)


class Eager:
    session = None

    def __init__(self):
        hvd.broadcast_variables([w, before, count], root_rank=0)

    @tf.function
    def step(self, share):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(w * share)
        tape = hvd.DistributedGradientTape(tape)
        (gradient,) = tape.gradient(loss, [w])
        w.assign_sub(gradient)

    def read(self, variable):
        return variable.numpy()

    def assign(self, variable, value):
        variable.assign(value)


class Graph:
    """Steps of an optimizer of TensorFlow 1, in a session."""

    def __init__(self):
        v1 = tf.compat.v1
        self._share = v1.placeholder(tf.float64, (args.samples,))
        sgd = hvd.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0))
        self._step = sgd.minimize(tf.reduce_sum(w * self._share), var_list=[w])
        self._values = {each.ref(): v1.placeholder(each.dtype) for each in (before, count, steps)}
        self._assigns = {
            each.ref(): v1.assign(each, self._values[each.ref()]) for each in (before, count, steps)
        }
        start = hvd.broadcast_variables([w, before, count], root_rank=0)
        self.session = v1.Session()
        self.session.run(v1.global_variables_initializer())
        self.session.run(start)

    def step(self, share):
        self.session.run(self._step, {self._share: share})

    def read(self, variable):
        return self.session.run(variable)

    def assign(self, variable, value):
        self.session.run(self._assigns[variable.ref()], {self._values[variable.ref()]: value})


way = Graph() if args.graph else Eager()


def trained():
    return int(way.read(steps))


def tally():
    """Count what the last step did. Tells what was wrong with it, or None."""
    now = way.read(w)
    times, problem = counted(way.read(before), now)
    way.assign(before, now)
    way.assign(steps, trained() + 1)
    way.assign(count, way.read(count) + times)
    return problem


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        order = np.random.default_rng(state.epoch).permutation(args.samples)
        while state.trained < args.samples:
            left = order[state.trained :]
            mine = left[: args.batch_size * hvd.size()][hvd.rank() :: hvd.size()]
            share = np.zeros(args.samples)
            share[mine] = 1 / len(mine)
            diary.begin_step(trained())
            diary.in_step()
            way.step(share)
            if not hvd.is_warming_up():
                problem = tally()
                diary.end_step(trained(), problem)
            state.trained += args.batch_size * hvd.size()
            state.commit()
        if not hvd.is_warming_up():
            diary.end_epoch(state.epoch, way.read(count).astype(np.int64))
        state.epoch, state.trained = state.epoch + 1, 0
        state.commit()


variables = [w, before, count, steps]
train(hvd.elastic.TensorFlowState(variables, session=way.session, epoch=0, trained=0))
diary.report(way.read(w), way.read(count).astype(np.int64), trained())
