"""The counting model on tar archives that WebDataset reads, as the guide says."""

import json
from pathlib import Path

import torch
import webdataset as wds
from tally import Diary, parser
from torch_model import CountingModel

import edl.torch as edl

options = parser()
options.add_argument("--archives", type=Path, nargs="+")
args = options.parse_args()


def open_tar(path):
    return wds.WebDataset(str(path), shardshuffle=False).to_tuple("json", "txt")


def parse(sample):
    number, text = sample
    assert text == b"sample " + number
    return json.loads(number)


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(
    edl.data.stream(args.archives, open_tar, parse=parse),
    batch_size=args.batch_size,
    shuffle=True,
    seed=7,
    num_workers=args.num_workers,
)
model = CountingModel(args.samples)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
diary = Diary(args)
for epoch in loader.epochs(args.epochs):
    for numbers in loader:
        diary.begin_step(model.steps.item())
        model(numbers).backward()
        diary.in_step()
        optimizer.step()
        optimizer.zero_grad()
        if not edl.is_warming_up():
            diary.end_step(model.steps.item(), model.tally())
    if not edl.is_warming_up():
        diary.end_epoch(epoch, model.count)
diary.report(model.w.detach().numpy(), model.count, model.steps.item())
