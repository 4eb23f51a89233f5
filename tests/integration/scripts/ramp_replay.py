"""The same training in one plain process, without edl: `ramp_replay.py torch|tensorflow|fit`.

Standard input has trainings as JSON, each a list of updates: ``ids`` of the samples, and ``gamma``,
what the learning rate is multiplied by. Standard output gets weights and momenta after each.
"""

import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import ramp_problem as problem


def in_torch(updates):
    import torch

    x, y = (torch.from_numpy(array) for array in problem.data())
    weights = [torch.from_numpy(w).requires_grad_() for w in problem.first_weights()]
    sgd = torch.optim.SGD(weights, lr=0.0, momentum=problem.MOMENTUM)
    hidden, bias, out = weights
    for update in updates:
        ids = update["ids"]
        sgd.zero_grad()
        said = torch.tanh(x[ids] @ hidden + bias) @ out
        (said - y[ids]).square().mean().backward()
        sgd.param_groups[0]["lr"] = problem.PEAK_LR * update["gamma"]
        sgd.step()
        momenta = [sgd.state[weight]["momentum_buffer"] for weight in weights]
        yield [weight.detach() for weight in weights], momenta


def in_tensorflow(updates):
    import tensorflow as tf

    x, y = (tf.constant(array) for array in problem.data())
    weights = [tf.Variable(array) for array in problem.first_weights()]
    sgd = tf.keras.optimizers.SGD(problem.PEAK_LR, momentum=problem.MOMENTUM)
    sgd.build(weights)
    hidden, bias, out = weights
    last = updates[0]["gamma"]
    for update in updates:
        ids = tf.constant(update["ids"])
        with tf.GradientTape() as tape:
            said = tf.tanh(tf.gather(x, ids) @ hidden + bias) @ out
            loss = tf.reduce_mean(tf.square(said - tf.gather(y, ids)))
        for momentum in sgd.momentums:  # Keras' v = mu v - lr g holds the rate
            momentum.assign(momentum * (update["gamma"] / last))
        last = update["gamma"]
        sgd.learning_rate = problem.PEAK_LR * update["gamma"]
        sgd.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        yield [weight.numpy() for weight in weights], [each.numpy() for each in sgd.momentums]


play = {"torch": in_torch, "tensorflow": in_tensorflow, "fit": in_tensorflow}[sys.argv[1]]
found = [
    [
        {"weights": problem.flat(weights), "momenta": problem.flat(momenta)}
        for weights, momenta in play(updates)
    ]
    for updates in json.load(sys.stdin)
]
assert "edl.binding" not in sys.modules
print(json.dumps(found))
