"""A script whose learning rate follows a count of its own, which begins at 0 on a newcomer."""

import sys

from edl.testing import throttle

SAMPLES, EPOCHS = 80, 36

if sys.argv[1] == "torch":
    import torch

    import edl.torch as edl

    edl.init()
    loader = edl.DataLoader(torch.arange(SAMPLES).float()[:, None], batch_size=2)
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.001), model)
    count = 0
    for _ in loader.epochs(EPOCHS):
        for batch in loader:
            optimizer.param_groups[0]["lr"] = 0.001 / (1 + count)
            optimizer.zero_grad()
            model(batch / SAMPLES).square().mean().backward()
            optimizer.step()
            count += 1
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
    COUNT = [0]

    class Decay(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.optimizer.learning_rate.assign(0.001 / (1 + COUNT[0]))
            COUNT[0] += 1

        def on_train_batch_end(self, batch, logs=None):
            throttle.throttle_step()

    callbacks = [edl.KerasCallback(), Decay()]
    model.fit(edl.Dataset((x, x), 2), epochs=EPOCHS, callbacks=callbacks, verbose=0)
    print("final", [each.tolist() for each in model.get_weights()])
