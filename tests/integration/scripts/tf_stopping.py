"""A hook of one worker asks to stop a session of TensorFlow 1 after step 20."""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl

v1 = tf.compat.v1
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, required=True)
args = parser.parse_args()

v1.disable_eager_execution()
edl.init()
generator = edl.elastic_shard_generator(np.ones((800, 1), np.float32), batch_size=4, epochs=3)
dataset = tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec((None, 1)))
w = v1.get_variable("w", initializer=tf.zeros(()))
step = v1.train.get_or_create_global_step()
loss = tf.reduce_mean(w * v1.data.make_one_shot_iterator(dataset).get_next())
edl.checkpoint(args.out, every_s=1000)
train = edl.Optimizer(v1.train.GradientDescentOptimizer(0.1)).minimize(loss, global_step=step)


class Stop(v1.train.SessionRunHook):
    def before_run(self, context):
        return v1.train.SessionRunArgs(step)

    def after_run(self, context, values):
        if values.results >= 20 and edl.rank() == 0:
            context.request_stop()


with v1.train.MonitoredTrainingSession(hooks=[edl.SessionHook(), Stop()]) as session:
    while not session.should_stop():
        session.run(train)
saved = sorted(int(one.stem.split("-")[1]) for one in args.out.glob("step-*"))
print(f"after step {edl.step()} with {saved}", flush=True)
