"""The counting model in Accelerate's loop, with data of datasets; see tally.py.

Beside the training loader there is one for evaluation, a schedule, clipping, and values of all
workers: a gather before ``backward()`` and a sum after the update.
"""

import datasets
import torch
from tally import Diary, parser
from torch_model import CountingModel

import edl.torch as edl
from edl.huggingface import Accelerator

edl.init()

options = parser()
options.add_argument("--output", required=True, help="for Accelerate's save_state")
options.add_argument("--max-steps", type=int, help="end after these updates, not after epochs")
args = options.parse_args()
torch.set_num_threads(1)
datasets.disable_progress_bars()

accelerator = Accelerator(gradient_accumulation_steps=args.accumulate, cpu=True)
data = datasets.Dataset.from_dict({"indices": list(range(args.samples))}).with_format("torch")
train = torch.utils.data.DataLoader(
    data, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers
)
test = torch.utils.data.DataLoader(data.select(range(16)), batch_size=args.batch_size)
model = CountingModel(args.samples)
sgd = torch.optim.SGD(model.parameters(), lr=1.0)
total = args.max_steps or args.epochs * -(-len(train) // args.accumulate)
schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda step: 1.0 if step <= total else 0.0)
own = model  # prepare() may wrap it
test, schedule, model, optimizer, train = accelerator.prepare(test, schedule, model, sgd, train)

diary = Diary(args)
for epoch in train.epochs(None if args.max_steps else args.epochs, max_steps=args.max_steps):
    model.train()
    for batch in train:
        diary.begin_step(own.steps.item())
        with accelerator.accumulate(model):
            loss = model(batch["indices"])
            everyone = accelerator.gather(torch.tensor([float(edl.rank())]))
            if not edl.is_warming_up() and everyone.tolist() != list(range(edl.size())):
                diary.wrong.append(
                    f"gathered the ranks {everyone.tolist()} of {edl.size()} workers"
                )
            weights = torch.full(batch["indices"].shape, edl.batch_weight())
            if not accelerator.gather_for_metrics(weights).all():
                diary.wrong.append("gathered a padding batch")
            accelerator.backward(loss)
            diary.in_step()
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients and not edl.is_warming_up():
            diary.end_step(
                own.steps.item(), None if torch.equal(own.w, own.before) else own.tally()
            )
            if accelerator.reduce(torch.tensor(1)).item() != edl.size():
                diary.wrong.append("reduced a number of other workers")
    model.eval()
    seen = [accelerator.gather_for_metrics(batch["indices"]) for batch in test]
    if torch.cat(seen).tolist() != list(range(16)):
        diary.wrong.append(f"evaluated {seen}")
    accelerator.save_state(args.output)
    if not edl.is_warming_up():
        diary.end_epoch(epoch, own.count)
steps = (schedule.scheduler if args.max_steps else schedule.scheduler.scheduler).last_epoch
diary.report(own.w.detach().numpy(), own.count, own.steps.item(), schedule=[steps, total])
