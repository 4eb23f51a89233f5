"""The counting model of two optimizers that take turns, as in a GAN; see tally.py.

The first one has two backward passes, and the one of the second adds to its gradients, too.
"""

import torch
from tally import Diary, parser
from torch_model import CountingModel, Indices

import edl.torch as edl

options = parser()
options.add_argument("--seldom", type=int, default=1, help="the second one: each so many batches")
args = options.parse_args()


def tally(model):
    """Count what the last step did, if it did anything. Tells what was wrong with it, or None."""
    return None if torch.equal(model.w, model.before) else model.tally()


def counts():
    """Those of both, where they differ and must not."""
    differ = args.seldom == 1 and not torch.equal(first.count, second.count)
    return torch.cat([first.count, second.count]) if differ else first.count


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(Indices(args.samples), batch_size=args.batch_size, shuffle=True, seed=7)
first, second = CountingModel(args.samples), CountingModel(args.samples)
critic = edl.Optimizer(torch.optim.SGD(first.parameters(), lr=1.0), first)
maker = edl.Optimizer(torch.optim.SGD(second.parameters(), lr=1.0), second)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)

diary = Diary(args)
for epoch in loader.epochs(args.epochs):
    for number, indices in enumerate(loader):
        diary.begin_step(edl.step())
        critic.zero_grad()
        (first(indices) / 2).backward()
        (first(indices) / 2).backward()
        diary.in_step()
        critic.step()
        problem = None if edl.is_warming_up() else tally(first)
        if number % args.seldom == 0:
            maker.zero_grad()
            (second(indices) + first(indices)).backward()
            maker.step()
            problem = problem or (None if edl.is_warming_up() else tally(second))
        if not edl.is_warming_up():
            diary.end_step(edl.step(), problem)
            diary.exchange(edl.step())
    if not edl.is_warming_up():
        diary.end_epoch(epoch, counts())
w = torch.cat([first.w, second.w]).detach().numpy()
diary.report(w, counts(), edl.step(), most=second.count.max().item())
