"""Decide which options of a ``Trainer`` an elastic job refuses, and say what to write instead.

Hugging Face's libraries are not imported here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.torch.api import exchange_objects

# ------------------------------------------------------------
# Send a small value from rank 0, or from all workers, to all, between two steps.


SAME_ORDER = (
    "all must log, evaluate and save after the same steps; a callback must decide by what is equal "
    "on all workers, such as state, metrics and logs"
)


def from_all(what: str, value: Any) -> list[Any]:
    """Return the pickled values of all workers in rank order; `what` names the script's call."""
    return exchange_objects(what, value, SAME_ORDER)


def from_rank_0(what: str, value: Any) -> Any:
    return from_all(what, value)[0]


WHOLE_MODEL = "each worker of the job holds the whole model, and edl averages the gradients"
ONE_TRAINING = (
    "an elastic job is one training, which newcomers join; start a job for each of several"
)
LEAVE_OUT = f"{WHOLE_MODEL}; leave it out"
NO_RETRY = (
    "it begins the training again with a smaller batch, on one worker only; set "
    "per_device_train_batch_size to what fits into the memory of every worker"
)
IN_ORDER = (
    "batches out of order would break the link between batches and leases, by which each sample is "
    "trained once; leave it out"
)
SIGTERM_LEAVES = (
    "a worker that gets SIGTERM leaves the job, and the others train on; leave it out, and call "
    "edl.checkpoint(directory) for the end of the whole job"
)
ONE_SAVES = (
    "rank 0 saves, and may be on another host later; leave it out, and give an output_dir that all "
    "hosts share"
)
OWN_READS = "each worker reads the samples that it trains; leave it out"
ONE_BATCH = "the batch size is that of one worker; leave it out"
PLUGINS = (
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "megatron_lm_plugin",
    "torch_tp_plugin",
    "parallelism_config",
)
UPDATES_EARLY = (
    "it updates parameters inside of backward(), before their gradients are averaged over the "
    "workers; take another optimizer"
)
# Optimizers that do so; words in their names.
EARLY_OPTIMIZERS = ("lomo", "layerwise")


def refused_option(args: Any) -> str | None:
    strategy, optimizer = option_text(args.train_sampling_strategy), option_text(args.optim)
    config = args.accelerator_config
    dispatches = getattr(config, "dispatch_batches", None)
    splits = getattr(config, "split_batches", None)
    updates_early = any(word in optimizer for word in EARLY_OPTIMIZERS)
    ledger = 'the job\'s ledger decides which worker trains what; take "random" or "sequential"'
    # the option as users write it, whether it is set, and why not
    rules: list[tuple[str, Any, str]] = [
        ("deepspeed=...", args.deepspeed, LEAVE_OUT),
        ("fsdp=...", args.fsdp, LEAVE_OUT),
        ("parallelism_config=...", args.parallelism_config, LEAVE_OUT),
        ("auto_find_batch_size=True", args.auto_find_batch_size, NO_RETRY),
        (
            "dataloader_drop_last=True",
            args.dataloader_drop_last,
            "every sample is trained once in an epoch; leave it out",
        ),
        (
            f'train_sampling_strategy="{strategy}"',
            strategy not in ("random", "sequential"),
            ledger,
        ),
        ("dataloader_in_order=False", not args.dataloader_in_order, IN_ORDER),
        ("accelerator_config with dispatch_batches=True", dispatches, OWN_READS),
        ("accelerator_config with split_batches=True", splits, ONE_BATCH),
        ("enable_jit_checkpoint=True", args.enable_jit_checkpoint, SIGTERM_LEAVES),
        ("save_on_each_node=True", args.save_on_each_node, ONE_SAVES),
        (f'optim="{optimizer}"', updates_early, UPDATES_EARLY),
    ]
    for name, value, why in rules:
        if value:
            return f"edl.huggingface.Trainer does not take {name}: {why}"
    return None


def option_text(option: Any) -> str:
    return str(getattr(option, "value", option))


def refused_plugin(given: Mapping[str, Any]) -> str | None:
    for name in PLUGINS:
        if given.get(name) is not None:
            return f"edl.huggingface.Accelerator does not take {name}: {LEAVE_OUT}"
    config = given.get("dataloader_config")
    for name, why in (("split_batches", ONE_BATCH), ("dispatch_batches", OWN_READS)):
        if given.get(name) is True or getattr(config, name, None) is True:
            return f"edl.huggingface.Accelerator does not take {name}=True: {why}"
    return None


def refused_model(model: Any) -> str | None:
    sharded = getattr(model, "is_distributed_loading_by_transformers", False)
    if sharded or (getattr(model, "tp_size", None) or 1) > 1:
        return (
            f"this model was sharded over processes when it was loaded, and {WHOLE_MODEL}; load it "
            "without tp_plan and distributed_config"
        )
    return None
