"""The benchmark's script under stock Horovod Elastic, as Horovod's own examples write it.

Intervals are those of Horovod's examples/elastic/pytorch/pytorch_imagenet_resnet50_elastic.py:
host updates are looked for every 10 batches, and a commit (a copy of the whole state) is made
every 100.
"""

import horovod.torch as hvd
import torch.nn.functional as F
from torch.utils.data import DataLoader

from benchmarks.script import BATCH_SIZE, EPOCHS, arguments
from benchmarks.torch.stock_intervals import CHECK_EVERY, COMMIT_EVERY
from benchmarks.torch.workload import MODELS, Synthetic, build_model, build_sgd

progress, name = arguments(MODELS)
hvd.init()
dataset = Synthetic()
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True, seed=0)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
model = build_model(name)
optimizer = hvd.DistributedOptimizer(build_sgd(model), named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    for state.epoch in range(state.epoch, EPOCHS):  # noqa: B020 - Horovod's idiom
        for batch, (x, y) in enumerate(loader, start=1):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state.step += 1
            progress.completed(state.step, hvd.size())
            state.sampler.record_batch(batch, BATCH_SIZE)
            if batch % COMMIT_EVERY == 0:
                state.commit()
            elif batch % CHECK_EVERY == 0:
                state.check_host_updates()
        state.sampler.set_epoch(state.epoch + 1)
        state.commit()


train(hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0))
