"""A tiny language model in Hugging Face's Trainer, with labels that are masked unevenly.

Every epoch has one step, of all samples, so the order of the samples makes no difference: what is
trained with any number of workers must be what the Trainer trains alone. With ``--plain`` it is the
Trainer of transformers itself.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--output", required=True)
parser.add_argument("--plain", action="store_true")
parser.add_argument("--samples", type=int, default=12)
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--bf16", action="store_true")
args = parser.parse_args()

if args.plain:
    from transformers import Trainer
else:
    import edl.torch as edl
    from edl.huggingface import Trainer
    from edl.testing import throttle

    edl.init()

torch.set_num_threads(1)
torch.manual_seed(1)
LENGTH, WORDS = 10, 30
words = torch.randint(WORDS, (args.samples, LENGTH))
labels = words.clone()
for number in range(args.samples):
    labels[number, : number % (LENGTH - 1)] = -100  # from 9 labels of a sample down to 1
model = transformers.LlamaForCausalLM(
    transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
    )
)
if not args.bf16:
    model = model.double()


class Slow(transformers.TrainerCallback):
    def on_step_begin(self, *_, **__):
        if not args.plain:
            throttle.throttle_step()


trainer = Trainer(
    model=model,
    args=transformers.TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=0.05,
        lr_scheduler_type="linear",
        warmup_steps=2,
        max_grad_norm=0.5,
        weight_decay=0.01,
        use_cpu=True,
        bf16=args.bf16,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=[
        {"input_ids": words[number], "labels": labels[number]} for number in range(args.samples)
    ],
    callbacks=[Slow()],
)
trainer.train()
report = {
    "weights": [p.flatten().tolist() for p in model.parameters()],
    "logs": [
        {name: one[name] for name in ("loss", "learning_rate", "grad_norm")}
        for one in trainer.state.log_history
        if "loss" in one
    ],
    "rank": 0 if args.plain else edl.rank(),
}
(args.out / f"{report['rank']}.json").write_text(json.dumps(report))
