"""What edl.huggingface decides without Hugging Face's libraries: refusals, weights, the end."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from edl.huggingface.job_state import TrainerJobState
from edl.huggingface.label_weights import divisor
from edl.huggingface.refused import refused_model, refused_option, refused_plugin
from edl.step.source import open_parts, parts_of, steps_left
from edl.step.weighting import Counts, batch_factor, step_factor


def arguments(**changed: Any) -> SimpleNamespace:
    defaults = {
        "deepspeed": None,
        "fsdp": None,
        "parallelism_config": None,
        "auto_find_batch_size": False,
        "dataloader_drop_last": False,
        "train_sampling_strategy": "random",
        "dataloader_in_order": True,
        "accelerator_config": SimpleNamespace(dispatch_batches=None, split_batches=False),
        "enable_jit_checkpoint": False,
        "save_on_each_node": False,
        "optim": SimpleNamespace(value="adamw_torch_fused"),
    }
    return SimpleNamespace(**defaults | changed)


def test_usual_options_are_taken() -> None:
    assert refused_option(arguments()) is None
    assert refused_option(arguments(train_sampling_strategy="sequential")) is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"deepspeed": "ds.json"}, "deepspeed="),
        ({"fsdp": True}, "fsdp="),
        ({"parallelism_config": object()}, "parallelism_config="),
        ({"auto_find_batch_size": True}, "auto_find_batch_size=True"),
        ({"dataloader_drop_last": True}, "dataloader_drop_last=True"),
        ({"train_sampling_strategy": SimpleNamespace(value="group_by_length")}, "group_by_length"),
        ({"dataloader_in_order": False}, "dataloader_in_order=False"),
        ({"accelerator_config": SimpleNamespace(dispatch_batches=True)}, "dispatch_batches=True"),
        ({"accelerator_config": SimpleNamespace(split_batches=True)}, "split_batches=True"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint=True"),
        ({"save_on_each_node": True}, "save_on_each_node=True"),
        ({"optim": "adalomo"}, 'optim="adalomo"'),
        ({"optim": "galore_adamw_layerwise"}, "layerwise"),
    ],
)
def test_an_option_is_refused_in_one_sentence(changed: dict[str, Any], named: str) -> None:
    why = refused_option(arguments(**changed))
    assert why is not None
    assert named in why
    assert re.fullmatch(r"edl\.huggingface\.Trainer does not take [^\n]*; [^\n]*[^.]", why), why


def test_a_sharded_model_is_refused() -> None:
    assert refused_model(SimpleNamespace()) is None
    assert refused_model(SimpleNamespace(tp_size=1)) is None
    assert "sharded" in str(refused_model(SimpleNamespace(tp_size=2)))
    model = SimpleNamespace(is_distributed_loading_by_transformers=True)
    assert "sharded" in str(refused_model(model))


def test_each_label_counts_alike() -> None:
    """Two workers, two batches each: edl's mean over samples becomes the mean over labels."""
    batches = {0: [(4, 12), (4, 3)], 1: [(4, 40), (1, 5)]}  # (samples, labels)
    factor = step_factor(
        [
            Counts(worker, sum(n for n, _ in each), sum(t for _, t in each))
            for worker, each in batches.items()
        ],
        averaged=(0, 1),
    )
    samples = sum(n for each in batches.values() for n, _ in each)
    labels = sum(t for each in batches.values() for _, t in each)
    for each in batches.values():
        for n, t in each:
            # What edl makes of the mean loss over t labels: k * n / N of it.
            weight = 2 * n / samples * batch_factor(n, t, batches=2) * factor
            assert weight == pytest.approx(t / labels)


def test_a_worker_that_died_counts_for_nothing() -> None:
    counts = [Counts(0, 4, 10), Counts(1, 4, 30), Counts(7, 2, 2)]
    assert step_factor(counts, averaged=(0, 7)) == 6 / 12
    assert step_factor(counts, averaged=(1,)) == 4 / 30


def test_masked_labels_and_padding_divide_by_nothing() -> None:
    assert step_factor([Counts(0, 4, 0)], averaged=(0,)) == 1.0
    assert batch_factor(samples=0, labels=0, batches=4) == 0.25


@pytest.mark.parametrize("masked", [[True, True], [False, True]])
def test_a_batch_whose_labels_are_all_masked_has_finite_gradients(masked: list[bool]) -> None:
    """With a loss that masks by a product, 0 / 0 would make a NaN that no factor removes."""
    kept = ~torch.tensor(masked)
    each = torch.nn.Parameter(torch.ones(2))
    labels = kept.sum()
    loss = (each * kept).sum() / divisor(labels)
    (loss * batch_factor(samples=2, labels=int(labels), batches=1)).backward()
    assert each.grad is not None
    assert each.grad.tolist() == [0.0 if one else 0.5 for one in masked]


@pytest.mark.parametrize(
    ("epochs", "epoch", "done", "left"),
    [
        (2.0, 0, 0, 26),
        (2.0, 0, 96, 14),
        (2.0, 0, 97, 13),
        (2.0, 1, 8, 12),
        (2.0, 1, 97, 0),
        (1.5, 0, 97, 7),
        (1.5, 1, 49, 0),
        (0.5, 0, 40, 2),
        (2.0, 2, 0, 0),
    ],
)
def test_steps_that_are_left(epochs: float, epoch: int, done: int, left: int) -> None:
    assert steps_left(epochs, epoch, done, total=97, batch=8) == left


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"fsdp_plugin": object()}, "fsdp_plugin"),
        ({"deepspeed_plugin": object()}, "deepspeed_plugin"),
        ({"split_batches": True}, "split_batches=True"),
        ({"dataloader_config": SimpleNamespace(dispatch_batches=True)}, "dispatch_batches=True"),
    ],
)
def test_a_plugin_of_accelerate_is_refused(given: dict[str, Any], named: str) -> None:
    assert refused_plugin({"gradient_accumulation_steps": 2, "mixed_precision": "bf16"}) is None
    assert f"does not take {named}" in str(refused_plugin(given))


@dataclasses.dataclass
class LoggedState:
    """The part of ``transformers.TrainerState`` that has what a script logs."""

    log_history: list[dict[str, Any]]


def test_what_a_script_has_logged_reaches_a_newcomer() -> None:
    """Trainer.log() takes tensors, too, which JSON does not have."""
    logged = {
        "loss": 2 * torch.tensor(0.25, requires_grad=True),
        "each": torch.tensor([1, 2]),
        "best": np.float32(0.25),
        "file": Path("a"),
        "step": 3,
    }

    def trainer(log_history: list[dict[str, Any]]) -> SimpleNamespace:
        callbacks = SimpleNamespace(callbacks=[])
        return SimpleNamespace(state=LoggedState(log_history), callback_handler=callbacks)

    newcomer = trainer([])
    TrainerJobState(newcomer).load_state_dict(TrainerJobState(trainer([logged])).state_dict())
    found = {"loss": 0.5, "each": [1, 2], "best": 0.25, "file": "a", "step": 3}
    assert newcomer.state.log_history == [found]


@dataclasses.dataclass
class StartedState:
    """The part of ``transformers.TrainerState`` that follows from the arguments, and the step."""

    max_steps: int
    eval_steps: int
    train_batch_size: int
    global_step: int = 0
    logging_steps: int = 10
    save_steps: int = 500
    num_train_epochs: int = 1


def test_a_resumed_job_follows_the_arguments_of_its_present_script() -> None:
    """So it trains on with a larger ``max_steps``; ``eval_steps=0.1`` is a part of that."""

    def job_state(state: StartedState) -> tuple[StartedState, TrainerJobState]:
        callbacks = SimpleNamespace(callbacks=[])
        return state, TrainerJobState(SimpleNamespace(state=state, callback_handler=callbacks))

    before, saved = job_state(StartedState(100, 10, train_batch_size=8, global_step=60))
    old = {"json": json.dumps({"state": vars(before), "totals": {}, "callbacks": []})}
    for state in (saved.state_dict(), old):
        resumed, loaded = job_state(StartedState(300, 30, train_batch_size=4))
        loaded.load_state_dict(state)
        assert resumed == StartedState(300, 30, train_batch_size=4, global_step=60)


def test_workers_share_an_evaluation() -> None:
    parts = [parts_of([(0, 11)], rank, size=3) for rank in range(3)]
    assert parts == [((0, 3),), ((3, 7),), ((7, 11),)]
    assert parts_of([(0, 1)], rank=0, size=3) == ()
    assert open_parts([(0, 11)], 3, {(0, 3), (7, 11)}) == ((3, 7),)
    assert open_parts([(0, 11)], 3, {(0, 3), (3, 7), (7, 11)}) == ()
    assert parts_of([(3, 7), (9, 10)], rank=1, size=2) == ((5, 7), (9, 10))


@pytest.mark.parametrize("seed", range(100))
def test_each_batch_is_evaluated_once_whoever_dies(seed: int) -> None:
    """Workers die before the exchange, which has no answer of theirs, or after it."""
    random = Random(seed)
    total, members = random.randrange(40), list(range(random.randint(1, 6)))
    found: list[tuple[int, int]] = []
    left = ((0, total),) if total else ()
    while left:
        answering = random.sample(members, random.randint(1, len(members)))
        for rank in sorted(map(members.index, answering)):
            found += parts_of(left, rank, len(members))
        left = open_parts(left, len(members), found)
        members = sorted(answering)
    assert [n for start, stop in sorted(found) for n in range(start, stop)] == [*range(total)]
