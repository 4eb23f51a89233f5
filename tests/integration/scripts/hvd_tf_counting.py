"""The counting model (see tally.py) in a TensorFlow loop as it is written for Horovod Elastic.

Every batch is committed, and every worker has equal batches, so a step is a mean over its samples.
"""

import numpy as np
import tensorflow as tf
from tally import Diary, counted, parser

import edl.tensorflow as hvd

args = parser().parse_args()
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(4)

hvd.init()
zeros = np.zeros(args.samples)
w, before, count = (tf.Variable(zeros, name=name) for name in ("w", "before", "count"))
steps = tf.Variable(0, name="steps")
hvd.broadcast_variables([w, before, count], root_rank=0)
diary = Diary(args)


@tf.function
def step(share):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(w * share)
    tape = hvd.DistributedGradientTape(tape)
    (gradient,) = tape.gradient(loss, [w])
    w.assign_sub(gradient)


def tally():
    """Count what the last step did. Tells what was wrong with it, or None."""
    times, problem = counted(before.numpy(), w.numpy())
    before.assign(w)
    steps.assign_add(1)
    count.assign_add(times.astype(np.float64))
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
            diary.begin_step(int(steps.numpy()))
            diary.in_step()
            step(tf.constant(share))
            if not hvd.is_rehearsing():
                diary.end_step(int(steps.numpy()), tally())
            state.trained += args.batch_size * hvd.size()
            state.commit()
        if not hvd.is_rehearsing():
            diary.end_epoch(state.epoch, count.numpy().astype(np.int64))
        state.epoch, state.trained = state.epoch + 1, 0
        state.commit()


train(hvd.elastic.TensorFlowState([w, before, count, steps], epoch=0, trained=0))
diary.report(w.numpy(), count.numpy().astype(np.int64), int(steps.numpy()))
