"""The counting model on MDS shards of mosaicml-streaming, as the guide says."""

import json

import torch
from streaming import LocalDataset
from streaming.base.format import reader_from_json
from tally import Diary, parser
from torch_model import CountingModel

import edl.torch as edl

options = parser()
options.add_argument("--mds", required=True, help="the directory of the shards")
options.add_argument("--by-shard", action="store_true", help="read the shards as a stream")
args = options.parse_args()


def data():
    if not args.by_shard:
        return LocalDataset(args.mds)
    with open(f"{args.mds}/index.json") as file:
        return edl.data.stream(json.load(file)["shards"], open_shard)


def open_shard(shard, offset):
    samples = reader_from_json(args.mds, None, shard)
    for number in range(offset, len(samples)):
        yield samples[number]


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(
    data(),
    batch_size=args.batch_size,
    shuffle=True,
    seed=7,
    num_workers=args.num_workers,
)
model = CountingModel(args.samples)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
diary = Diary(args)
for epoch in loader.epochs(args.epochs):
    for batch in loader:
        assert batch["text"] == [f"sample {number}" for number in batch["number"]]
        diary.begin_step(model.steps.item())
        model(batch["number"]).backward()
        diary.in_step()
        optimizer.step()
        optimizer.zero_grad()
        if not edl.is_warming_up():
            diary.end_step(model.steps.item(), model.tally())
    if not edl.is_warming_up():
        diary.end_epoch(epoch, model.count)
diary.report(model.w.detach().numpy(), model.count, model.steps.item())
