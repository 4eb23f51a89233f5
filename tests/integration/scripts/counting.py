"""The counting model in PyTorch: its parameters prove which samples were trained, see tally.py.

EDL_TEST_AVERAGES: the script keeps averages of its weights and of its gradients' norms, too.
"""

import contextlib
import json
import os
from pathlib import Path

import torch
from tally import Diary, Late, parser
from torch_model import Averages, CountingModel, Indices, Stateful

import edl.torch as edl

SHARD = 47  # samples
options = parser()
options.add_argument("--stream", choices=["shards", "stateful"])
options.add_argument("--global-batch", type=int)
options.add_argument("--micro-batch", type=int)
options.add_argument("--mds", help="samples: those of the MDS shards in this directory")
options.add_argument("--by-shard", action="store_true", help="read these shards as a stream")
options.add_argument("--archives", type=Path, nargs="+", help="samples: WebDataset's tar archives")
args = options.parse_args()


def tally():
    """Count what the last step did, if it did anything. Tells what was wrong with it, or None."""
    return None if torch.equal(model.w, model.before) else model.tally()


def data():
    if args.archives:
        return edl.data.stream(args.archives, open_tar, parse=parse)
    if args.mds and args.by_shard:
        with open(f"{args.mds}/index.json") as file:
            return edl.data.stream(json.load(file)["shards"], open_shard)
    if args.mds:
        from streaming import LocalDataset

        return LocalDataset(args.mds)
    if args.tfrecord:
        return edl.data.tfrecord(args.tfrecord, parse=int, on_error="skip")
    if args.stream == "shards":
        return edl.data.stream(range(0, args.samples, SHARD), numbers)
    if args.stream == "stateful":
        return Stateful(args.samples)
    is_late = args.late and edl.is_warming_up()
    return Indices(args.samples, Late(args, after=args.batch_size) if is_late else None)


def numbers(first, offset):
    """Those of one shard."""
    yield from range(first + offset, min(first + SHARD, args.samples))


def open_shard(shard, offset):
    from streaming.base.format import reader_from_json

    samples = reader_from_json(args.mds, None, shard)
    for number in range(offset, len(samples)):
        yield samples[number]


def open_tar(path):
    import webdataset

    return webdataset.WebDataset(str(path), shardshuffle=False).to_tuple("json", "txt")


def parse(sample):
    number, text = sample
    assert text == b"sample " + number
    return json.loads(number)


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(
    data(),
    batch_size=1 if args.global_batch else args.batch_size,
    global_batch=args.global_batch,
    micro_batch=args.micro_batch,
    shuffle=args.stream != "stateful",
    seed=7,
    num_workers=args.num_workers,
)
model = CountingModel(args.samples)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
averages = Averages(model) if "EDL_TEST_AVERAGES" in os.environ else None
if averages:
    edl.track(averages=averages)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep, sharded=args.sharded)

diary = Diary(args)
for epoch in loader.epochs(args.epochs):
    for number, indices in enumerate(loader):
        if args.mds:
            assert indices["text"] == [f"sample {each}" for each in indices["number"]]
            indices = indices["number"]
        diary.begin_step(model.steps.item())
        last = (number + 1) % args.accumulate == 0
        with contextlib.nullcontext() if last else edl.no_sync():
            (model(indices) / args.accumulate).backward()
        diary.in_step()
        if not last:
            continue
        if averages:
            averages.before_step()
        optimizer.step()
        if averages:
            averages.after_step()
        optimizer.zero_grad()
        if not edl.is_warming_up():
            diary.end_step(model.steps.item(), tally())
            diary.exchange(model.steps.item())
    if not edl.is_warming_up():
        diary.end_epoch(epoch, model.count)
more = averages.report() if averages else {}
diary.report(model.w.detach().numpy(), model.count, model.steps.item(), **more)
