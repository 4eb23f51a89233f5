"""A script that changes the model on one worker only, outside of the update, in its 2nd epoch.

It prints what the optimizer trains, as it is at the end.
"""

import argparse
import os

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=["torch", "tensorflow", "fit", "graph"])
parser.add_argument("--last", action="store_true", help="after the last step of all")
args = parser.parse_args()
SAMPLES, EPOCHS = 24, 4
WORKER = 1  # who does what it should not

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"


def strays(epoch):
    """Whether to do it now, at the end of that epoch."""
    return edl.rank() == WORKER and epoch == (EPOCHS - 1 if args.last else 1)


if args.framework == "torch":
    import torch

    import edl.torch as edl

    edl.init()
    loader = edl.DataLoader(torch.arange(SAMPLES).float()[:, None], batch_size=2)
    model = torch.nn.Sequential(torch.nn.Linear(1, 3), torch.nn.BatchNorm1d(3))
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    optimizer = edl.Optimizer(adam, model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)
    edl.track(scheduler=scheduler)
    for epoch in loader.epochs(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        scheduler.step()
        if strays(epoch):
            with torch.no_grad():
                model[1].weight[1] = -model[1].weight[1]
    moments = [adam.state[each]["exp_avg"].tolist() for each in model.parameters()]
    print("final", [each.tolist() for each in model.parameters()], moments, scheduler.get_last_lr())
elif args.framework == "graph":
    import numpy as np
    import tensorflow as tf

    import edl.tensorflow as edl

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    edl.init()
    batches = edl.elastic_shard_generator(np.arange(SAMPLES, dtype=np.float32), 2, epochs=EPOCHS)
    x = v1.placeholder(tf.float32, (None,))
    weight = v1.get_variable("weight", initializer=tf.ones(3))
    optimizer = edl.Optimizer(v1.train.AdamOptimizer(0.1))
    train = optimizer.minimize(tf.reduce_mean((x[:, None] * weight) ** 2))
    stray = weight.assign(-weight)
    done = False
    with edl.Session() as s:
        while not s.Done():
            s.run(train, {x: edl.next_batch()})
            edl.notify_batch_end()
            if not done and not edl.is_warming_up() and strays(edl.current_worker().loader.epoch):
                done = True
                s.run(stray)
        print("final", s.run(v1.trainable_variables()))
else:
    import numpy as np
    import tensorflow as tf

    import edl.tensorflow as edl

    edl.init()
    x = np.arange(SAMPLES, dtype=np.float32)[:, None]
    dataset = edl.Dataset((x, x), 2)
    model = tf.keras.Sequential(
        [tf.keras.Input((1,)), tf.keras.layers.Dense(3), tf.keras.layers.BatchNormalization()]
    )
    rate = tf.keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    optimizer = edl.Optimizer(tf.keras.optimizers.Adam(rate), model)

    def stray(epoch):
        if strays(epoch):
            model.layers[1].gamma.assign(-model.layers[1].gamma)

    if args.framework == "fit":
        model.compile(optimizer, "mse")
        end = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stray(epoch))
        model.fit(dataset, epochs=EPOCHS, callbacks=[edl.KerasCallback(), end], verbose=0)
    else:

        @tf.function
        def train(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        for epoch in dataset.epochs(EPOCHS):
            for batch in dataset:
                train(*batch)
            stray(epoch)
    print("final", [each.numpy().tolist() for each in model.trainable_variables])
