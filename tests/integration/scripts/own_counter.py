"""A script that counts the batches of an epoch itself: a newcomer's count begins at 0 inside one.

"mean" exchanges numbers by that count, "norm" too, beside a SyncBatchNorm; "rate" sets the
learning rate by it. "steps" exchanges numbers by a count that no epoch sets back, and "decay" sets
the learning rate by that.
"""

import sys

from edl.testing import throttle

framework, kind = sys.argv[1:]
SAMPLES, EPOCHS = (80, 36) if kind == "decay" else (120, 60)

if framework == "torch":
    import torch

    import edl.torch as edl

    edl.init()
    loader = edl.DataLoader(torch.arange(SAMPLES).float()[:, None], batch_size=2)
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    if kind == "norm":
        model.insert(0, torch.nn.SyncBatchNorm(1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.001)
    if kind == "rate":
        schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, T_0=1, T_mult=2)
    optimizer = edl.Optimizer(sgd, model)
    steps = 0
    for epoch in loader.epochs(EPOCHS):
        for i, batch in enumerate(loader):
            if kind == "decay":
                optimizer.param_groups[0]["lr"] = 0.001 / (1 + steps)
            optimizer.zero_grad()
            loss = model(batch / SAMPLES).square().mean()
            loss.backward()
            optimizer.step()
            if kind == "rate":
                schedule.step(epoch + i / len(loader))
            elif kind != "decay" and (steps % 7 if kind == "steps" else i % 40) == 0:
                edl.mean(loss.detach())
            steps += 1
            throttle.throttle_step()
    print("final", [each.tolist() for each in model.parameters()])
else:
    import keras
    import numpy as np

    import edl.tensorflow as edl

    edl.init()
    keras.utils.set_random_seed(1)
    x = np.linspace(0, 1, SAMPLES, dtype=np.float32)[:, None]
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(edl.Optimizer(keras.optimizers.SGD(0.001)), "mse")

    COUNT = [0]  # an attribute of the callback would be sent to newcomers

    class Own(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            COUNT[0] = COUNT[0] if kind in ("steps", "decay") else 0

        def on_train_batch_begin(self, batch, logs=None):
            if kind == "decay":
                self.model.optimizer.learning_rate.assign(0.001 / (1 + COUNT[0]))

        def on_train_batch_end(self, batch, logs=None):
            if kind == "rate":
                self.model.optimizer.learning_rate.assign(0.001 / (1 + COUNT[0]))
            elif kind != "decay" and COUNT[0] % (7 if kind == "steps" else 40) == 0:
                edl.mean(logs["loss"])
            COUNT[0] += 1
            throttle.throttle_step()

    callbacks = [edl.KerasCallback(), Own()]
    model.fit(edl.Dataset((x, x), 2), epochs=EPOCHS, callbacks=callbacks, verbose=0)
    print("final", [each.tolist() for each in model.get_weights()])
