"""The counting model, and metrics of torchmetrics of known values over what all workers evaluate.

`spread` has a list of tensors that torchmetrics does not reduce; workers have different numbers of
them. `trained` counts the samples that the present workers have trained in the epoch.
"""

import torch
from tally import Diary, parser
from torch_model import CountingModel, Indices
from torchmetrics import MeanMetric, Metric, MetricCollection, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import edl.torch as edl

args = parser().parse_args()


class Spread(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("batches", default=[], dist_reduce_fx=None)

    def update(self, values):
        self.batches.append(values)

    def compute(self):
        values = torch.cat(self.batches)
        return values.max() - values.min()


torch.set_num_threads(1)
edl.init()
loader = edl.DataLoader(Indices(args.samples), batch_size=args.batch_size, shuffle=True, seed=7)
model = CountingModel(args.samples)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
evaluation = MetricCollection(
    {
        "accuracy": MulticlassAccuracy(num_classes=3),
        "f1": MulticlassF1Score(num_classes=3),
    }
)
other = torch.nn.ModuleDict({"mean": MeanMetric(), "spread": Spread(), "trained": SumMetric()})
edl.sync_metrics(evaluation)
edl.sync_metrics(other)


def evaluate():
    indices = torch.arange(args.samples)
    for part in indices[edl.rank() :: edl.size()].split(7):
        evaluation.update(part % 3, part % 5 % 3)
        other["mean"].update(part.double())
        other["spread"].update(part)
    values = evaluation.compute() | {name: each.compute() for name, each in other.items()}
    for each in (evaluation, *other.values()):
        each.reset()
    return {name: float(value) for name, value in values.items()}


diary = Diary(args)
for epoch in loader.epochs(args.epochs):
    for indices in loader:
        diary.begin_step(model.steps.item())
        model(indices).backward()
        diary.in_step()
        optimizer.step()
        optimizer.zero_grad()
        other["trained"].update(float(edl.batch_weight()))
        if not edl.is_warming_up():
            diary.end_step(model.steps.item(), model.tally())
    shown = evaluate()
    if not edl.is_warming_up():
        diary.end_epoch(epoch, model.count, **shown)
diary.report(model.w.detach().numpy(), model.count, model.steps.item())
