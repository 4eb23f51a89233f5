"""The weights that an unchanged script broadcasts, before its training and in it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from edl.errors import UsageError
from edl.transparent import data_loading
from edl.transparent import data_loading as weights
from edl.transparent.data_loading import ScriptLoaders

Answers = Callable[[bytes], list[bytes]]


class _Ring:
    """The other process of a ring of two, which gives an answer to each message."""

    def __init__(self, *answers: Answers) -> None:
        self._answers = list(answers)

    def __call__(self, payload: bytes) -> list[bytes]:
        return self._answers.pop(0)(payload)

    @property
    def is_over(self) -> bool:
        return not self._answers


def same(payload: bytes) -> list[bytes]:
    return [payload, payload]


def other(payload: bytes) -> list[bytes]:
    return [b"other", payload]


def sends(value: Any, what: str = "hvd.broadcast_parameters") -> Answers:
    """Return an answer in which the other process, of rank 0, sends ``value``."""
    return lambda own: [pickle.dumps((what, value)), own]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ScriptLoaders:
    worker = SimpleNamespace(id=7)
    monkeypatch.setattr(data_loading.process, "current_worker", lambda: worker)
    ranks(monkeypatch, 1, 2)
    return ScriptLoaders()


def ranks(monkeypatch: pytest.MonkeyPatch, rank: int, processes: int) -> None:
    monkeypatch.setattr(weights.process, "rank", lambda: rank)
    monkeypatch.setattr(weights.process, "num_processes", lambda: processes)


def shares(script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch, other: ScriptLoaders) -> Any:
    """Return what ``script`` agrees on with rank 0, in whose process ``other`` stands."""
    payloads: list[bytes] = []

    def noted(own: bytes) -> list[bytes]:
        payloads.append(own)
        return [own]

    monkeypatch.setattr(other, "_exchange_early", noted)
    other.agree_on_shares()
    theirs = payloads[0].replace(b"7", b"3", 1)
    monkeypatch.setattr(script, "_exchange_early", lambda own: [theirs, own])
    return script.agree_on_shares()


def seeded(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def test_an_evaluation_of_weights_that_differ_is_refused_before_the_training(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does an equal module, whose tensors have the same names, hide one that differs."""
    mine, theirs, teacher, same = seeded(1), seeded(2), seeded(3), seeded(3)
    root = ScriptLoaders()
    for loaders, modules in ((script, (mine, teacher)), (root, (theirs, same))):
        for module in modules:
            loaders.broadcast_parameters(module.state_dict().items(), 0)
    with pytest.raises(UsageError, match="the workers have different weights"):
        shares(script, monkeypatch, root)
    mine.load_state_dict(theirs.state_dict())  # all have loaded a checkpoint
    assert shares(script, monkeypatch, root) == (1, 2)


def test_only_the_weights_that_the_evaluation_has_are_compared(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tensor of no module differs, and a model that was moved, or is gone."""
    mine, theirs, root = seeded(1), seeded(1), ScriptLoaders()
    for seed, loaders, module in ((4, script, mine), (5, root, theirs)):
        loaders.broadcast_parameters([("loss", torch.tensor(float(seed)))], 0)
        loaders.broadcast_parameters(seeded(seed).state_dict().items(), 0)
        loaders.broadcast_parameters(module.double().named_parameters(), 0)
        module.float()
    assert shares(script, monkeypatch, root) == (1, 2)


def test_a_module_that_the_script_has_no_more_is_not_compared(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is in a cycle of references, which lives on until a collection of garbage."""
    root = ScriptLoaders()
    for seed, loaders in ((1, script), (2, root)):
        module = seeded(seed)
        module.register_forward_hook(module.forward)
        loaders.broadcast_parameters(module.state_dict().items(), 0)
        if loaders is root:
            del module
    assert shares(script, monkeypatch, root) == (1, 2)


def test_a_model_that_was_not_broadcast_is_not_compared(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop may compute the mean of the data, before the script gives the model its weights."""
    root = ScriptLoaders()
    script.model, root.model = seeded(1), seeded(2)
    assert shares(script, monkeypatch, root) == (1, 2)


def test_a_broadcast_within_a_step_changes_nothing(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come after the reduction; and the averages of BatchNorm differ in a step."""
    ring = _Ring(other)
    trains(script, monkeypatch, ring, is_in_step=True)
    script.broadcast_parameters(nn.BatchNorm1d(2).state_dict().items(), 0)
    assert not ring.is_over


def trains(
    script: ScriptLoaders,
    monkeypatch: pytest.MonkeyPatch,
    ring: _Ring | None,
    is_in_step: bool = False,
) -> None:
    """Let ``script`` be in its training, within a step or between two."""
    training = SimpleNamespace(passes_over=False, is_in_step=is_in_step)
    script._training = cast(Any, training)
    monkeypatch.setattr(script, "exchange", lambda: ring)


def test_weights_that_one_process_has_loaded_in_the_training_are_sent(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, best = nn.Linear(2, 1).to(torch.bfloat16), nn.Linear(2, 1).to(torch.bfloat16)
    ring = _Ring(other, sends(dict(best.state_dict())))
    trains(script, monkeypatch, ring)
    script.broadcast_parameters([*model.state_dict().items(), ("epoch", 3)], 0)
    assert ring.is_over
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, best.state_dict()[name])


def test_the_weights_of_the_next_process_count_if_the_root_dies(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survivor has sent nothing, and gets its own message; then it is rank 0."""
    message: list[Any] = []

    def alone(own: bytes) -> list[bytes]:
        ranks(monkeypatch, 0, 1)
        return [own]

    def noted(own: bytes) -> list[bytes]:
        message.append(pickle.loads(own)[1])
        return [own]

    model = nn.Linear(2, 1)
    before = model.weight.tolist()
    ring = _Ring(other, alone, noted)
    trains(script, monkeypatch, ring)
    script.broadcast_parameters(model.named_parameters(), 0)
    assert ring.is_over
    assert message[0]["weight"].tolist() == model.weight.tolist() == before


def test_equal_weights_are_not_sent(script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = _Ring(same)
    trains(script, monkeypatch, ring)
    script.broadcast_parameters(nn.Linear(2, 1).named_parameters(), 0)
    assert ring.is_over
    trains(script, monkeypatch, None)  # it passes over an epoch, or is alone
    script.broadcast_parameters(nn.Linear(2, 1).named_parameters(), 0)


def test_a_root_with_another_model_is_refused(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {"weight": torch.ones(1, 1), "bias": torch.ones(1), "scale": torch.ones(1)}
    trains(script, monkeypatch, _Ring(other, sends(theirs)))
    with pytest.raises(UsageError, match=r"other tensors than rank 0 \(scale, weight\)"):
        script.broadcast_parameters(nn.Linear(2, 1).named_parameters(), 0)


def test_an_optimizer_that_differs_in_the_training_is_refused(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    sent: list[bytes] = []

    def noted(own: bytes) -> list[bytes]:
        sent.append(own)
        return [own, own]

    script.compare_optimizer(optimizer)  # before the training
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        trains(script, monkeypatch, _Ring(noted))
        script.compare_optimizer(optimizer)
    assert len(set(sent)) == 2, "its state has changed"
    trains(script, monkeypatch, _Ring(other))
    with pytest.raises(UsageError, match="on all workers, not only on rank 0"):
        script.compare_optimizer(optimizer)
