"""The counting model in Hugging Face's Trainer: it proves which samples were trained (tally.py)."""

import datasets
import torch
from tally import Diary, parser
from torch_model import CountingModel
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

import edl.torch as edl
from edl.huggingface import Trainer

edl.init()


class Samples(torch.utils.data.Dataset):
    def __init__(self, samples):
        self._samples = samples

    def __len__(self):
        return self._samples

    def __getitem__(self, index):
        return {"indices": index}


class Model(CountingModel):
    """The counting model, which returns its loss as models of Hugging Face do."""

    def forward(self, indices):
        if self.training:
            diary.in_step()
        return {"loss": super().forward(indices)}


class Tally(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        diary.begin_step(model.steps.item())

    def on_step_end(self, args, state, control, **_):
        problem = None if torch.equal(model.w, model.before) else model.tally()
        if state.global_step != edl.step():
            problem = f"{problem}; the Trainer is at step {state.global_step}"
        diary.end_step(model.steps.item(), problem)

    def on_epoch_end(self, args, state, control, **_):
        diary.end_epoch(round(state.epoch) - 1, model.count)


options = parser()
options.add_argument("--output", required=True, help="Trainer's output_dir")
options.add_argument("--max-steps", type=int, default=-1)
options.add_argument("--streams", action="store_true", help="an IterableDataset of datasets")
options.add_argument("--stops-early", action="store_true", help="no epoch is better than the first")
args = options.parse_args()
torch.set_num_threads(1)
diary = Diary(args)
model = Model(args.samples)
data = Samples(args.samples)
if args.streams:
    rows = datasets.Dataset.from_dict({"indices": list(range(args.samples)), "unused": data})
    data = rows.to_iterable_dataset(num_shards=4).shuffle(seed=7, buffer_size=50)
early = (
    {
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": True,
        "save_strategy": "epoch",
    }
    if args.stops_early
    else {"save_steps": 20}
)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, keep=args.keep)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        dataloader_num_workers=args.num_workers,
        lr_scheduler_type="constant",
        max_grad_norm=1.0,  # more than that of any mean over different samples
        seed=7,
        use_cpu=True,
        logging_steps=5,
        label_names=["indices"],  # so that an evaluation has a loss
        save_total_limit=2,
        eval_strategy="epoch",
        report_to="tensorboard",
        **early,
    ),
    train_dataset=data,
    eval_dataset=Samples(16),
    optimizers=(torch.optim.SGD(model.parameters(), lr=1.0), None),
    callbacks=[Tally(), *([EarlyStoppingCallback(2)] if args.stops_early else [])],
)
result = trainer.train()
diary.report(
    model.w.detach().numpy(),
    model.count,
    model.steps.item(),
    global_step=trainer.state.global_step,
    logged=[one["loss"] for one in trainer.state.log_history if "loss" in one],
    epoch=trainer.state.epoch,
    best=trainer.state.best_model_checkpoint,
    is_zero=trainer.is_world_process_zero(),
)
