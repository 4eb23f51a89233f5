"""The counting model (see tally.py) in a script as it is written for Horovod Elastic.

Every batch is committed, and every worker has equal batches, so a step is a mean over its samples.
Moments for a test: see `trap`.
"""

import os
import signal

import torch
from tally import Diary, parser
from torch_model import CountingModel, Indices

import edl.torch as hvd

options = parser()
options.add_argument("--check-only", action="store_true", help="commit at the ends of epochs only")
args = options.parse_args()


def trap(place):
    """Die at ``place`` if the test has put a file there that asks this slot to; once."""
    order = args.out / f"die-{hvd.local_rank()}-{place}"
    if not hvd.is_warming_up() and order.exists():
        order.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


torch.set_num_threads(1)
hvd.init()
model = CountingModel(args.samples)
dataset = Indices(args.samples)
sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True, seed=7)
loader = torch.utils.data.DataLoader(
    dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.num_workers
)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
diary = Diary(args)
resets = []
believed = hvd.size()  # as a script that derives something from it at the top


def on_reset():
    global believed
    believed = hvd.size()
    resets.append(believed)


@hvd.elastic.run
def train(state):
    while state.epoch < args.epochs:
        for batch, indices in enumerate(loader):
            diary.begin_step(model.steps.item())
            assert hvd.is_warming_up() or believed == hvd.size()
            optimizer.zero_grad()
            model(indices).backward()
            diary.in_step()
            trap("step")
            optimizer.step()
            if not hvd.is_warming_up():
                diary.end_step(model.steps.item(), model.tally())
            sampler.record_batch(batch, args.batch_size)
            trap("commit")
            if args.check_only:
                state.check_host_updates()
            else:
                state.commit()
        trap("epoch")
        if not hvd.is_warming_up():
            diary.end_epoch(state.epoch, model.count)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)
        state.commit()
    trap("end")


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)
state.register_reset_callbacks([on_reset])
train(state)
diary.report(model.w.detach().numpy(), model.count, model.steps.item(), resets=resets)
