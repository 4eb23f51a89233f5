"""Train a small language model to write digits backwards, with Hugging Face's Trainer.

Alone, in half a minute:

    python examples/huggingface_trainer.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 4`:

    edl run -np 2 --max-np 4 python examples/huggingface_trainer.py --epochs 20 --step-delay 0.1

The model is made from a configuration, and the data here, so nothing is downloaded. What differs
from a script without edl is marked with (edl).
"""

import edl.torch as edl  # (edl)

edl.init()  # (edl) first, because the imports below take some seconds

import argparse  # noqa: E402 (after edl.init())
import time  # noqa: E402

import torch  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
    TrainingArguments,
)

from edl.huggingface import Trainer  # noqa: E402 (edl) in place of transformers' Trainer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=float, default=8)
parser.add_argument("--output", default="/tmp/edl-huggingface", help="for checkpoints and logs")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
args = parser.parse_args()

torch.set_num_threads(1)  # the workers share this machine's cores

DIGITS, ARROW = 10, 10  # the words of the language are ten digits and an arrow


def sample(number):
    """Return three digits, an arrow and the digits backwards; only the last three are labels."""
    digits = [number // 100, number // 10 % 10, number % 10]
    words = torch.tensor([*digits, ARROW, *reversed(digits)])
    labels = words.clone()
    labels[:4] = -100
    return {"input_ids": words, "labels": labels}


train = [sample(number) for number in range(1000) if number % 7]
test = [sample(number) for number in range(1000) if number % 7 == 0]


class StepDelay(TrainerCallback):
    def on_step_begin(self, *_, **__):
        time.sleep(args.step_delay)


torch.manual_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=DIGITS + 1,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=8,
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=args.output,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        max_grad_norm=1.0,
        logging_steps=20,
        eval_strategy="epoch",
        save_steps=100,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
    ),
    train_dataset=train,
    eval_dataset=test,
    callbacks=[StepDelay()],
)
trainer.train()
metrics = trainer.evaluate()
if trainer.is_world_process_zero():
    print(f"loss {metrics['eval_loss']:.3f} steps {trainer.state.global_step}", flush=True)
