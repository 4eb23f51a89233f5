"""Averages of the weights in an unchanged script are a part of the job's state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

from edl.errors import CheckpointError, UsageError
from edl.torch.replica import TorchReplica
from edl.transparent import data_loading
from edl.transparent.training import ScriptAverages, watch_averages


@pytest.fixture
def averages(monkeypatch: pytest.MonkeyPatch) -> ScriptAverages:
    for name in ("__init__", "__init_subclass__"):  # put back afterwards
        monkeypatch.setattr(AveragedModel, name, getattr(AveragedModel, name))
    monkeypatch.setattr(Earlier, "__init__", Earlier.__init__)
    found = ScriptAverages()
    watch_averages(found)
    return found


def average_of(value: float) -> AveragedModel:
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, value)
    average = AveragedModel(model)
    average.update_parameters(model)
    return average


def value_of(average: AveragedModel) -> tuple[float, int]:
    (weight,) = average.module.parameters()
    return weight.item(), int(average.n_averaged)


def test_a_newcomer_gets_the_averages_of_the_job(averages: ScriptAverages) -> None:
    theirs = [average_of(value) for value in (1.0, 2.0)]
    theirs[1].update_parameters(nn.Linear(1, 1))
    state = averages.state_dict()
    newcomer = ScriptAverages()
    mine = [average_of(0.0) for _ in range(2)]
    for average in mine:
        newcomer.add(average)
    newcomer.load_state_dict(state)
    assert [value_of(one) for one in mine] == [value_of(one) for one in theirs]


def test_an_average_that_is_made_later_gets_its_state_then(averages: ScriptAverages) -> None:
    """Until then the state is sent on; what is made after all those of the job begins anew."""
    waiting = [dict(average_of(value).state_dict()) for value in (1.0, 2.0)]
    resumed = ScriptAverages()
    watch_averages(resumed)
    resumed.load_state_dict({"states": waiting})
    assert resumed.state_dict() == {"states": waiting}
    made = [AveragedModel(nn.Linear(1, 1, bias=False)) for _ in range(3)]
    assert [value_of(one) for one in made[:2]] == [(1.0, 1), (2.0, 1)]
    assert value_of(made[2])[1] == 0
    assert len(resumed.state_dict()["states"]) == 3


def test_a_deleted_average_keeps_its_number(averages: ScriptAverages) -> None:
    made = [average_of(value) for value in (1.0, 2.0)]
    del made[0]
    state = averages.state_dict()
    assert state["states"][0] is None
    other = ScriptAverages()
    mine = [average_of(0.0) for _ in range(2)]
    for average in mine:
        other.add(average)
    other.load_state_dict(state)
    assert [value_of(one)[0] for one in mine] == [0.0, 2.0]


def resumed(averages: ScriptAverages) -> None:
    model = nn.Linear(1, 1)
    replica = TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.1))
    checkpoint = replica.capture()
    replica.track({"averages of the weights": averages})
    replica.restore(checkpoint)


def test_a_checkpoint_without_averages_is_of_a_script_without_them(
    averages: ScriptAverages,
) -> None:
    resumed(averages)
    assert averages.state_dict() == {"states": []}
    made = average_of(1.0)
    assert averages.state_dict() == {"states": [made.state_dict()]}


def test_a_script_with_averages_needs_a_checkpoint_with_them(averages: ScriptAverages) -> None:
    made = average_of(1.0)
    with pytest.raises(CheckpointError, match="an earlier edl wrote the checkpoint, and saved no"):
        resumed(averages)
    assert value_of(made) == (1.0, 1)


def test_an_average_from_an_epoch_before_the_checkpoint_is_missed(averages: ScriptAverages) -> None:
    passes_over = iter([True, False])
    found = ScriptAverages(lambda: next(passes_over))
    watch_averages(found)
    resumed(found)
    with pytest.raises(CheckpointError, match="an earlier edl wrote the checkpoint, and saved no"):
        average_of(1.0)
    assert value_of(average_of(2.0)) == (2.0, 1)


class Earlier(AveragedModel):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.register_buffer("own", torch.zeros(1))


def own_of(kind: type[AveragedModel]) -> float:
    saved = kind(nn.Linear(1, 1))
    saved.update_parameters(nn.Linear(1, 1))
    saved.own.fill_(7.0)
    resumed = ScriptAverages()
    resumed.load_state_dict({"states": [saved.state_dict()]})
    watch_averages(resumed)
    made = kind(nn.Linear(1, 1))
    assert len(resumed.state_dict()["states"]) == 1
    made.update_parameters(nn.Linear(1, 1))
    assert made.n_averaged == 2
    return made.own.item()


def test_the_own_buffer_of_a_subclass_comes_back(averages: ScriptAverages) -> None:
    class Later(AveragedModel):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model)
            self.register_buffer("own", torch.zeros(1))

    class Derived(Later):
        pass

    assert [own_of(kind) for kind in (Earlier, Later, Derived)] == [7.0, 7.0, 7.0]


def test_an_average_whose_constructor_was_replaced_is_added_once(averages: ScriptAverages) -> None:
    class Replaced(AveragedModel):
        pass

    def make(self: AveragedModel, model: nn.Module) -> None:
        AveragedModel.__init__(self, model)

    Replaced.__init__ = make  # type: ignore[assignment,method-assign]
    Replaced(nn.Linear(1, 1))
    assert len(averages.state_dict()["states"]) == 1


@pytest.mark.parametrize("first", ["own", "n_averaged"])
def test_a_buffer_that_the_first_update_makes_comes_back(
    first: str, averages: ScriptAverages
) -> None:
    class Late(AveragedModel):
        def update_parameters(self, model: nn.Module) -> None:
            if not hasattr(self, "own") if first == "own" else self.n_averaged == 0:
                self.register_buffer("own", torch.zeros(1))
            self.own += 1
            super().update_parameters(model)

    assert own_of(Late) == 8.0
    theirs, mine = Late(nn.Linear(1, 1)), Late(nn.Linear(1, 1))
    theirs.update_parameters(nn.Linear(1, 1))
    newcomer = ScriptAverages()
    newcomer.add(mine)
    newcomer.load_state_dict({"states": [theirs.state_dict()]})
    theirs.own += 1
    assert mine.own.item() == 1.0


def test_the_state_of_another_average_is_refused_in_a_sentence(averages: ScriptAverages) -> None:
    resumed = ScriptAverages()
    resumed.load_state_dict({"states": [AveragedModel(nn.Linear(1, 2)).state_dict()]})
    watch_averages(resumed)
    with pytest.raises(
        UsageError, match=r"is not like the job's: AveragedModel must .*\)$"
    ) as told:
        AveragedModel(nn.Linear(1, 1))
    assert "\n" not in str(told.value)


def test_the_training_of_a_script_has_its_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    tracked: dict[str, Any] = {}
    loaders = data_loading.ScriptLoaders()
    loaders.optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    monkeypatch.setattr(loaders, "_exchange_early", lambda payload: [payload])
    monkeypatch.setattr(data_loading, "_elastic", lambda *_: data_loading.edl.torch.DataLoader)
    monkeypatch.setattr("edl.torch.DataLoader.endless_epochs", lambda: iter(()))
    worker = SimpleNamespace(finishing=SimpleNamespace())
    monkeypatch.setattr("edl.transparent.training.current_worker", lambda: worker)
    monkeypatch.setattr("edl.torch.track", lambda **objects: tracked.update(objects))
    data: Any = range(4)
    loaders._begun(DataLoader(data, sampler=DistributedSampler(data, 2, 0)), 0)
    assert data_loading.averages in tracked.values()
