"""The parts of `edl run --transparent` that need no job."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, Sampler

from edl.errors import UsageError
from edl.host.process import parse_command, python_script, title, transparent
from edl.job.script import answer_of, with_payload
from edl.transparent import data_loading
from edl.transparent.data_loading import ModelGroup, is_training, model_with, modules_with
from edl.transparent.script import StepNumbers
from edl.transparent.training import EpochNumbers, ScriptEpochs


@pytest.mark.parametrize(
    ("command", "through"),
    [
        ("python train.py --lr 1", "python -m edl.transparent train.py --lr 1"),
        ("python3 -u -W ignore a/train.py", "python3 -u -W ignore -m edl.transparent a/train.py"),
        ("python -m package.train", "python -m edl.transparent -m package.train"),
        ("python -m edl.transparent t.py", "python -m edl.transparent t.py"),
        ("./train.sh", None),
        ("python", None),
        ("python --version", None),
    ],
)
def test_a_command_through_edl(command: str, through: str | None) -> None:
    found = transparent(command.split())
    assert found == (None if through is None else tuple(through.split()))
    if found is not None:
        assert transparent(found) == found


def test_a_job_has_the_name_of_its_script() -> None:
    command = ["python", "-u", "-m", "edl.transparent", "a/train.py", "-m", "b"]
    assert python_script(command) == "a/train.py"
    assert title(command) == "train.py"
    assert python_script(["python", "-m", "edl.transparent", "-m", "package.train"]) is None
    inner = parse_command(["python", *command[4:]])
    assert inner is not None
    assert (inner.target, inner.arguments) == ("a/train.py", ("-m", "b"))


def test_an_exchange_has_an_answer_when_all_have_sent() -> None:
    values = with_payload({}, 0, 4, "a", (4, 2))
    assert answer_of(values, 0) is None
    values = with_payload(values, 0, 2, "b", (4, 2))
    assert answer_of(values, 0) == ["a", "b"], "in rank order"
    assert with_payload(values, 0, 7, "c", (7,)) == values, "it stays"
    assert answer_of(values, 1) is None


def test_an_exchange_goes_on_without_a_worker_that_died() -> None:
    values = with_payload({}, 0, 1, "b", (0, 1, 2))
    values = with_payload(values, 0, 0, "a", (0, 1, 2))
    again = with_payload(values, 0, 1, "b", (0, 1))
    assert answer_of(again, 0) == ["a", "b"]
    dead = with_payload(with_payload({}, 0, 2, "c", (0, 2)), 0, 0, "a", (0,))
    assert answer_of(dead, 0) == ["a"], "nor with what it has sent"


def test_script_and_job_number_epochs_differently() -> None:
    epochs = ScriptEpochs()
    epochs.name(0, 5, 5)
    epochs.name(0, 9, 9)
    assert [epochs.number(epoch) for epoch in (0, 1, 3)] == [5, 6, 8]
    assert [epochs.sampler_epoch(epoch) for epoch in (0, 1, 3)] == [5, 6, 8]
    epochs.name(1, 7, 5)
    other = ScriptEpochs()
    other.load_state_dict(epochs.state_dict())
    assert [other.number(epoch) for epoch in range(3)] == [5, 7, 8]
    assert [other.sampler_epoch(epoch) for epoch in range(4)] == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("sampler_epochs", "expected"),
    [
        ([4, 5, 6], [4, 5, 6]),
        ([0, 10, 20], [0, 10, 20]),
        ([0, 0, 0], [0, 1, 2]),  # set_epoch() is not called
        ([0, 0, 1, 2], [0, 1, 2, 3]),  # it is called within the loop
        ([0, 1, 2, 0, 1], [0, 1, 2, 3, 4]),  # two phases
        ([3, 0, 9, 2], [3, 4, 13, 14]),
    ],
)
def test_the_numbers_of_epochs_grow(sampler_epochs: list[int], expected: list[int]) -> None:
    numbers = EpochNumbers()
    assert [numbers.next(each) for each in sampler_epochs] == expected


class _Loader:
    """A loader with two passes for each step."""

    edl_numbers_steps = True
    edl_step_in_epoch = 0

    def __iter__(self) -> Iterator[str]:
        for number, item in builtins.enumerate("aabb"):
            self.edl_step_in_epoch = 3 + number // 2
            yield item


class _Bar:
    """What tqdm looks like."""

    def __init__(self, iterable: Any) -> None:
        self.iterable = iterable

    def __iter__(self) -> Iterator[Any]:
        yield from self.iterable


def test_enumerate_numbers_steps() -> None:
    steps = [(3, "a"), (3, "a"), (4, "b"), (4, "b")]
    assert list(StepNumbers(_Loader())) == steps
    assert list(StepNumbers(_Bar(_Loader()), 1)) == [(n + 1, item) for n, item in steps]
    assert list(StepNumbers("xy", start=2)) == [(2, "x"), (3, "y")]
    assert isinstance(StepNumbers("xy"), builtins.enumerate)


def test_the_model_of_an_optimizer_is_found() -> None:
    inner = nn.Linear(2, 2)
    model = nn.Sequential(inner, nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    assert model_with(optimizer, model.named_parameters()) is model
    assert model_with(optimizer, list(model.named_parameters())) is model
    assert model_with(torch.optim.SGD(inner.parameters(), lr=0.1), None) is model
    lone = nn.Parameter(torch.zeros(1))
    with pytest.raises(UsageError, match=r"named_parameters=model\.named_parameters"):
        model_with(torch.optim.SGD([lone], lr=0.1), None)


def test_the_modules_of_tensors_are_found() -> None:
    first, second = nn.Linear(2, 2), nn.BatchNorm1d(2)
    whole = nn.Sequential(first, second)
    outer = nn.ModuleDict({"model": whole})
    assert modules_with(whole.state_dict().values()) == [whole]
    assert modules_with([second.weight, torch.ones(2)]) == [second]
    apart = nn.Linear(2, 3)
    assert modules_with([*apart.parameters(), *second.buffers()]) == [apart, outer]
    assert modules_with([torch.ones(2), torch.empty(0)]) == []
    incomplete = nn.Linear.__new__(nn.Linear)
    table, head = nn.Embedding(3, 2), nn.Linear(2, 3)
    table.weight = head.weight  # tied: the same one on all processes, whichever was made first
    assert modules_with(table.parameters()) == [head]
    assert not vars(incomplete)


def test_the_models_of_one_optimizer_are_found() -> None:
    head, body = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for named in (None, body.named_parameters()):  # those given are not all that it trains
        model = model_with(optimizer, named)
        assert isinstance(model, ModelGroup)
        assert list(model) == [body, head]
    assert is_training(model)
    body.eval()
    assert is_training(model), "the head is trained on a frozen body"
    head.eval()
    assert not is_training(model)
    user = nn.Sequential(nn.Flatten(), head)
    with pytest.raises(UsageError, match="of a module that holds all of them"):
        model_with(torch.optim.SGD([*head.parameters(), nn.Parameter(torch.ones(1))], lr=0.1), None)
    assert list(user.parameters()) == list(head.parameters())


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_loader_processes_stay_as_long_as_the_scripts(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's default is to start new ones in each epoch; edl's is to keep them."""
    passed_on: dict[str, Any] = {}
    monkeypatch.setattr(data_loading, "ranks", lambda: 2)
    monkeypatch.setattr("edl.torch.DataLoader", lambda *_, **given: passed_on.update(given))
    sampler: Any = DistributedSampler(cast(Any, range(4)), num_replicas=2, rank=0)
    given = {"num_workers": 1} | options
    data_loading._elastic(DataLoader(cast(Any, range(4)), sampler=sampler, **given), ScriptEpochs())
    assert passed_on["persistent_workers"] is options.get("persistent_workers", False)


class _Shares:
    """A worker in the middle of a training of two ranks, which has both."""

    logical, size, id, rank = 2, 1, 0, 0


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> data_loading.ScriptLoaders:
    found = data_loading.ScriptLoaders()
    found.model = nn.Linear(1, 1)
    monkeypatch.setattr("edl.torch.elastic._allows_logical", True)
    monkeypatch.setattr(data_loading, "loaders", found)
    monkeypatch.setattr(data_loading, "ranks", lambda: 2)
    monkeypatch.setattr(data_loading.process, "is_initialized", lambda: True)
    monkeypatch.setattr(data_loading.process, "current_worker", _Shares)
    monkeypatch.setattr(found, "exchange", lambda: None)
    return found


def test_an_epoch_that_is_passed_over_has_no_batch_where_the_script_has_none(
    script: data_loading.ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it has one: validation data of less than a batch, and ``drop_last``."""
    monkeypatch.setattr(data_loading.ScriptLoaders, "passes_over", True)
    empty = DataLoader(cast(Any, [1.0, 2.0]), batch_size=4, drop_last=True)
    full = DataLoader(cast(Any, [1.0, 2.0, 3.0]), batch_size=2)
    for _ in range(2):
        assert list(data_loading._iterate(empty)) == []
        assert [each.tolist() for each in data_loading._iterate(full)] == [[1.0, 2.0]]


def _deals(replicas: int) -> DistributedSampler[Any]:
    return DistributedSampler(cast(Any, range(8)), num_replicas=replicas, rank=0, shuffle=False)


class _Around(Sampler[int]):
    """A script's own sampler, which changes the order of another one."""

    def __init__(self, sampler: DistributedSampler[Any]) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        return reversed(list(self.sampler))

    def __len__(self) -> int:
        return len(self.sampler)


LOADERS: dict[str, Callable[[DistributedSampler[Any]], dict[str, Any]]] = {
    "sampler": lambda inner: {"sampler": inner, "batch_size": 2},
    "batch_sampler": lambda inner: {"batch_sampler": BatchSampler(inner, 2, False)},
    "around_a_sampler": lambda inner: {"sampler": _Around(inner), "batch_size": 2},
    "no_batches": lambda inner: {"sampler": inner, "batch_size": None},
}


@pytest.mark.parametrize("how", LOADERS)
def test_an_evaluation_has_all_samples(how: str, script: data_loading.ScriptLoaders) -> None:
    """One process has both ranks."""
    loader = DataLoader(cast(Any, range(8)), **LOADERS[how](_deals(2)))
    with torch.no_grad():
        found = [each for batch in data_loading._iterate(loader) for each in np.ravel(batch)]
    assert sorted(map(int, found)) == [*range(8)]
    whole = DataLoader(cast(Any, range(8)), **LOADERS[how](_deals(1)))
    assert data_loading._shared_sampler(whole) is None


@pytest.mark.parametrize("how", LOADERS)
def test_how_a_loader_of_the_training_divides_its_data(
    how: str, script: data_loading.ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("edl.torch.DataLoader", lambda *it, order, **_: given.extend([it, order]))
    epochs = ScriptEpochs()
    epochs.name(0, 0, 0)
    loader = DataLoader(cast(Any, range(8)), **LOADERS[how](_deals(2)))
    assert script.is_training(loader)
    if how in REFUSED:
        with pytest.raises(UsageError, match=REFUSED[how]):
            data_loading._elastic(loader, epochs)
        return
    data_loading._elastic(loader, epochs)
    (data, batch_size), order = given
    assert (data, batch_size) == (loader.dataset, 2)
    assert list(order(0)) == [0, 2, 1, 3, 4, 6, 5, 7]


REFUSED = {
    "around_a_sampler": "a _Around chooses samples in a way of its own",
    "no_batches": "makes no batches",
}


def test_a_batch_sampler_of_the_script_cannot_divide_training_data(
    script: data_loading.ScriptLoaders,
) -> None:
    class Buckets(BatchSampler):
        pass

    loader = DataLoader(cast(Any, range(8)), batch_sampler=Buckets(_deals(2), 2, False))
    assert script.is_training(loader)
    with pytest.raises(UsageError, match="a Buckets chooses samples in a way of its own"):
        data_loading._elastic(loader, ScriptEpochs())
