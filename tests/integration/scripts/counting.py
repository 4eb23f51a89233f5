"""The counting model in PyTorch: its parameters prove which samples were trained, see tally.py."""

import torch
from tally import Diary, counted, parser

import edl.torch as edl

args = parser().parse_args()


class Indices(torch.utils.data.Dataset):
    """Sample i is the number i."""

    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        return index


class CountingModel(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(args.samples, dtype=torch.float64))
        self.register_buffer("before", torch.zeros(args.samples, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(args.samples, dtype=torch.int64))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, indices):
        return self.w[indices].mean()

    @torch.no_grad()
    def tally(self):
        """Count what the last step did. Tells what was wrong with it, or None."""
        if torch.equal(self.w, self.before):
            return None
        times, problem = counted(self.before.numpy(), self.w.numpy())
        self.before.copy_(self.w)
        self.steps += 1
        self.count += torch.from_numpy(times)
        return problem


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(
    edl.data.tfrecord(args.tfrecord, parse=int, on_error="skip") if args.tfrecord else Indices(),
    batch_size=args.batch_size,
    shuffle=True,
    seed=7,
    num_workers=args.num_workers,
)
model = CountingModel()
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)

diary = Diary(args)
for epoch in loader.epochs(args.epochs):
    for indices in loader:
        diary.begin_step(model.steps.item())
        optimizer.zero_grad()
        model(indices).backward()
        diary.in_step()
        optimizer.step()
        if not edl.is_rehearsing():
            diary.end_step(model.steps.item(), model.tally())
    if not edl.is_rehearsing():
        diary.end_epoch(epoch, model.count)
diary.report(model.w.detach().numpy(), model.count, model.steps.item())
