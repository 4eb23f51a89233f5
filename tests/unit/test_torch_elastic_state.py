"""The state of a Horovod script in PyTorch: what a commit keeps, a crash gives back exactly."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from edl.binding.replica import map_leaves
from edl.config import Config
from edl.errors import UsageError
from edl.step.batching import Batching
from edl.step.source import Source
from edl.torch.elastic import TorchState
from edl.worker.coordinator import JobOfOne
from edl.worker.progress import Receive, ScriptProgress
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker


def trained(steps: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        (model(torch.full((3, 4), step + 1.0)) ** 2).mean().backward()
        optimizer.step()


def numbers(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    found = [p.detach().reshape(-1) for p in model.parameters()]
    for each in optimizer.state_dict()["state"].values():
        found += [torch.as_tensor(v, dtype=torch.float32).reshape(-1) for v in each.values()]
    return torch.cat(found).tolist()


@pytest.fixture
def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def test_a_state_comes_back_as_often_as_it_is_needed(parts: Any) -> None:
    """Optimizers of PyTorch keep the tensors that they load, and would change the saved ones."""
    model, optimizer = parts
    state = TorchState(model, optimizer, epoch=0, losses=[])
    trained(3, model, optimizer)
    state.epoch, state.losses = 1, [0.5]
    state.commit()  # no ring: this is a copy
    kept = numbers(model, optimizer)
    for _ in range(3):
        trained(2, model, optimizer)
        state.epoch += 1
        state.losses.append(0.25)
        assert numbers(model, optimizer) != kept
        state.restore()
        assert numbers(model, optimizer) == kept
        assert (state.epoch, state.losses) == (1, [0.5])
    assert state.model is model
    assert state.optimizer is optimizer


def test_a_fresh_optimizer_comes_back_fresh(parts: Any) -> None:
    model, optimizer = parts
    state = TorchState(model, optimizer)
    before = numbers(model, optimizer)
    trained(1, model, optimizer)
    state.restore()
    assert numbers(model, optimizer) == before
    assert optimizer.state_dict()["state"] == {}


@pytest.mark.parametrize("named", ["model", "optimizer"])
def test_gradients_do_not_outlive_the_batch_that_is_undone(named: str, parts: Any) -> None:
    """Loops that clear them after the update would add them to the first batch that is redone."""
    model, optimizer = parts
    trained(1, model, optimizer)
    state = TorchState(**{named: model if named == "model" else optimizer})
    model(torch.ones(3, 4)).mean().backward()
    state.restore()
    assert [p.grad for p in model.parameters()] == [None, None]


def test_schedulers_keep_their_identity(parts: Any) -> None:
    model, optimizer = parts
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    state = TorchState(model, optimizer, scheduler=scheduler)
    trained(1, model, optimizer)
    scheduler.step()
    state.save()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.025]
    state.restore()
    assert state.scheduler is scheduler
    assert scheduler.get_last_lr() == [0.05]
    assert optimizer.param_groups[0]["lr"] == 0.05


def test_a_received_state_lies_in_memory_as_its_parameter() -> None:
    """A fused optimizer goes through the memory of both, and a sent state has lost its strides."""
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3, 4, 4)).sum().backward()
    optimizer.step()
    state = TorchState(model, optimizer)
    state._put(
        map_leaves(
            state._values(),
            lambda leaf, _: leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf,
        )
    )
    assert optimizer.state[model.weight]["exp_avg"].stride() == model.weight.stride()


def test_a_derived_class_may_save_what_its_constructor_makes_later() -> None:
    class Mine(TorchState):
        def __init__(self) -> None:
            super().__init__(epoch=0)
            self.table = [1]

        def save(self) -> None:
            super().save()
            self.kept = list(self.table)

        def restore(self) -> None:
            super().restore()
            self.table = list(self.kept)

    state = Mine()
    state.save()
    state.epoch, state.table = 1, [2]
    state.restore()
    assert (state.epoch, state.table) == (0, [1])


def test_callbacks_run_with_each_reset() -> None:
    state = TorchState()
    called: list[str] = []
    state.register_reset_callbacks([lambda: called.append("a"), lambda: called.append("b")])
    state.on_reset()
    assert called == ["a", "b"]


def test_a_script_that_keeps_its_place_counts_its_saves() -> None:
    mine, theirs = ScriptProgress(), ScriptProgress()
    for progress in (mine, theirs):
        progress.enter((0, 1))
    theirs.saved()
    theirs.saved()
    mine.take_over(theirs.header(), Receive.ALL)
    assert (mine.step, mine.has_state, mine.ended) == (2, True, False)
    mine.saved()
    mine.ended = True
    theirs.take_over(mine.header(), Receive.STEP)
    assert (theirs.step, theirs.ended) == (3, True)
    assert mine.row() == {"epoch": 0, "wanted": 0, "ledger": 0}
    assert mine.report(1, 2, 0.0, 0.0).epoch_total == 0


def test_a_script_has_one_place_in_its_data() -> None:
    worker = alone()
    worker.leave_data_to_script(MagicMock(), lambda: None)
    with pytest.raises(UsageError, match="create no edl data loader"):
        worker.attach_source(Source(8, Batching(2), False, 0, 0))
    worker = alone()
    worker.attach_source(Source(8, Batching(2), False, 0, 0))
    with pytest.raises(UsageError, match="edl data loader and a Horovod elastic state"):
        worker.leave_data_to_script(MagicMock(), lambda: None)


def alone() -> Worker:
    config = Config()
    return Worker(config, MagicMock(), SharedState(), JobOfOne(config))
