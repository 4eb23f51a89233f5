"""The script for stock Horovod Elastic: a small model, every batch committed.

When the hosts are about to change, rank 0 waits for the driver to say so before it goes on, or the
job would be over before that. Horovod's commit then stops everybody for the new ring.
"""

import os
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch
import torch.nn.functional as F

from benchmarks.scenarios.scene import Scene

NOTICE_S = 30.0  # the driver looks for hosts once a second
BATCHES = 10

scene_file, epochs, changes = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
scene = Scene(scene_file, start_rank=int(os.environ["HOROVOD_RANK"]))  # later rings have others

torch.set_num_threads(1)
hvd.init()
features, labels = torch.randn(32, 2), torch.randint(2, (32,))
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())


@hvd.elastic.run
def train(state):
    state.rendezvous += 1
    while state.epoch < epochs:
        while state.batch < BATCHES:
            scene.step()
            if state.batch == 0:
                scene.exit_if_due(state.epoch)
            optimizer.zero_grad()
            F.cross_entropy(model(features), labels).backward()
            optimizer.step()
            state.batch += 1
            state.commit()
        scene.end_epoch(state.epoch, hvd.rank(), hvd.size(), state.rendezvous)
        if hvd.rank() == 0 and str(state.epoch) in changes:
            wait_for_notice(state)
            scene.go_on()
        state.epoch += 1
        state.batch = 0
        state.commit()


def wait_for_notice(state):
    deadline = time.monotonic() + NOTICE_S
    while state._host_messages.empty():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"the driver announced no new hosts in {NOTICE_S:g} s")
        time.sleep(0.1)


train(hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0, rendezvous=0))
