"""Train with Hugging Face's ``Trainer`` on workers that may join and leave during the training.

A script calls ``edl.init()`` at its top, and changes one import::

    import edl.torch as edl

    edl.init()

    from edl.huggingface import Trainer
    from transformers import TrainingArguments

    trainer = Trainer(model=model, args=TrainingArguments(...), train_dataset=dataset)
    trainer.train()

:class:`ElasticTrainerMixin` makes a further subclass of ``transformers.Trainer`` elastic. No other
package of edl imports this one. See docs/guides/huggingface.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl.binding.api import import_adapter

if TYPE_CHECKING:
    from edl.huggingface.accelerator import Accelerator
    from edl.huggingface.trainer import ElasticTrainerMixin, Seq2SeqTrainer, Trainer

__all__ = ["Accelerator", "ElasticTrainerMixin", "Seq2SeqTrainer", "Trainer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "accelerator" if name == "Accelerator" else "trainer"
    libraries = ("transformers", "accelerate")
    return getattr(import_adapter(f"{__name__}.{module}", libraries, "huggingface"), name)
