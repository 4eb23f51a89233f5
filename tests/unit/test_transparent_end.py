"""Where an unchanged Horovod script may end, and where its job fails instead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from edl.errors import NewcomerDiffers, UsageError
from edl.torch.replica import TorchReplica
from edl.transparent.training import ScriptEpochs, Training

STEPS = 4  # of an epoch


class _Loader:
    """A loader of edl, of an epoch of four steps, each of ``pieces`` passes of the loop."""

    def __init__(self, pieces: int, first_epoch: int) -> None:
        self.next_epoch = first_epoch
        self.batches = SimpleNamespace(pieces=pieces, pieces_left=0)
        self.engine = SimpleNamespace(is_open=False, batches=self.batches)
        self.ledger = SimpleNamespace(done=0, finished=False)

    @property
    def open(self) -> bool:
        return self.engine.is_open

    def endless_epochs(self) -> Iterator[int]:
        while True:
            self.ledger.done, self.ledger.finished = 0, False
            self.next_epoch += 1
            yield self.next_epoch - 1

    def __iter__(self) -> Iterator[int]:
        while not self.ledger.finished:
            for left in reversed(range(self.batches.pieces)):
                self.engine.is_open, self.batches.pieces_left = True, left
                yield self.ledger.done

    def update(self) -> None:
        if self.batches.pieces_left == 0:
            self.engine.is_open, self.ledger.done = False, self.ledger.done + 1
            self.ledger.finished = self.ledger.done == STEPS


class _Script:
    """A script whose process has ``pieces`` of the ranks, in a job that begins in ``epoch``."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        epoch: int = 0,
        pieces: int = 2,
        ranks: int = 2,
        newcomer: bool = False,
    ) -> None:
        self.loader = _Loader(pieces, 0 if newcomer else epoch)
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.worker = SimpleNamespace(
            warming_up=newcomer,
            epoch_of_job=lambda: epoch,
            show_epoch=lambda _: None,
            replica=TorchReplica(self.model, self.optimizer),
            loader=self.loader,
            finishing=SimpleNamespace(),
        )
        for module in ("training", "script"):
            monkeypatch.setattr(f"edl.transparent.{module}.current_worker", lambda: self.worker)
        monkeypatch.setattr("edl.transparent.script.ranks", lambda: ranks)
        epochs = ScriptEpochs()
        for number in range(epoch):
            epochs.name(number, number, number)
        epochs.name(0, 0, 0)
        loader = cast(Any, self.loader)
        self.training = Training(loader, self.optimizer, epochs, lambda: torch.ones(1, 2))

    def loop(self, epoch: int) -> Iterator[Any]:
        return self.training.batches(epoch, epoch)

    def train(self) -> None:
        """Make the update of the batch that was taken last."""
        self.training.note_step()
        self.loader.update()

    def train_epoch(self, epoch: int) -> None:
        for _ in self.loop(epoch):
            self.train()

    def train_epochs(self, count: int) -> None:
        for epoch in range(count):
            self.train_epoch(epoch)

    def end(self) -> None:
        self.worker.finishing.check_end()


@pytest.mark.parametrize("newcomer", [False, True])
def test_a_script_does_not_end_in_an_epoch_of_the_past(
    newcomer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops early, by a validation that does not change while it passes over epochs."""
    script = _Script(monkeypatch, epoch=5, newcomer=newcomer)
    script.train_epochs(2)
    ends = NewcomerDiffers if newcomer else UsageError  # which fails the job
    with pytest.raises(ends, match="ended in epoch 1, which the job has behind it"):
        script.end()


@pytest.mark.parametrize("trains", [False, True])
def test_a_newcomer_that_joins_while_the_job_goes_on_ends_alone(
    trains: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It joins in the job's epoch, passes over that one, and stops early; the others train on."""
    script = _Script(monkeypatch, epoch=2, newcomer=True)
    script.train_epochs(2)
    script.worker.warming_up, script.loader.next_epoch = False, 3
    script.train_epoch(2)
    assert script.training.passes_over
    script.loader.ledger.done = 1
    if trains:
        script.train_epoch(3)
        script.end()
        return
    with pytest.raises(NewcomerDiffers, match="which the job has behind it"):
        script.end()


@pytest.mark.parametrize(("epochs", "done", "may"), [(5, 0, True), (5, 3, False), (4, 0, False)])
def test_a_resumed_script_has_all_its_epochs_behind_it(
    epochs: int, done: int, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job had trained them all; a part of a further one says that it had not."""
    script = _Script(monkeypatch, epoch=5)
    script.train_epochs(epochs)
    script.loader.ledger.done = done
    if may:
        script.end()
        return
    with pytest.raises(UsageError, match="which the job has behind it"):
        script.end()


def test_a_script_that_has_nothing_left_to_train_changes_no_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last checkpoint would have the averages of BatchNorm that the past epochs have moved."""
    script = _Script(monkeypatch, epoch=1)
    before = script.model.weight.detach().clone()
    for _ in script.loop(0):
        with torch.no_grad():
            script.model.weight += 1.0
    script.end()
    assert torch.equal(script.model.weight, before)


@pytest.mark.parametrize("first", [0, 3])
def test_a_script_stops_early_after_an_epoch_that_it_has_trained(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = _Script(monkeypatch, epoch=first)
    script.train_epochs(first + 2)
    script.end()


EARLY = "left its loop over the training data early"
Body = Callable[[int], bool]
LEFT: dict[str, tuple[Callable[[Iterator[int]], Iterator[int]], Body, Body, bool]] = {
    "islice": (lambda loop: itertools.islice(loop, 2), lambda _: False, lambda _: False, True),
    "as_many_as_len": (
        lambda loop: itertools.islice(loop, 4),
        lambda _: False,
        lambda _: False,
        True,
    ),
    "break_after_an_update": (iter, lambda _: False, lambda made: made == 2, True),
    "break_within_a_step": (iter, lambda _: False, lambda made: made == 1, True),
    "all": (iter, lambda _: False, lambda _: False, False),
    "more_than_there_are": (
        lambda loop: itertools.islice(loop, 9),
        lambda _: False,
        lambda _: False,
        False,
    ),
    "break_before_the_batch_is_trained": (iter, lambda step: step == 2, lambda _: False, False),
    "first_batch": (iter, lambda _: True, lambda _: False, False),
}


@pytest.mark.parametrize(("ranks", "pieces"), [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("how", LEFT)
def test_a_loop_that_is_left_by_a_number_of_batches(
    how: str, ranks: int, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused in a job of several ranks, however many of them this process has now."""
    taken, leaves_before, leaves_after, is_refused = LEFT[how]
    script = _Script(monkeypatch, pieces=pieces, ranks=ranks)
    loop = taken(script.loop(0))
    for trained, step in enumerate(loop, start=1):
        if leaves_before(step):
            break
        script.train()
        if leaves_after(trained):
            break
    del loop
    if ranks == 1 or not is_refused:
        script.training.check_not_left_early()
        return
    with pytest.raises(UsageError, match=EARLY):
        script.training.check_not_left_early()


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("keeps", [True, False])
def test_a_script_that_takes_a_number_of_batches_ends_early(
    keeps: bool, pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its iterator is alive, or it has left its loop; however many ranks its process has."""
    script = _Script(monkeypatch, pieces=pieces)
    batches = script.loop(0)
    for _ in range(3):
        next(batches)
        script.train()
    if not keeps:
        del batches
    with pytest.raises(UsageError, match=EARLY):
        script.end()


@pytest.mark.parametrize("batches", [0, 2])
def test_a_loop_that_is_left_before_a_batch_is_trained_is_within_no_step(
    batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The weights that rank 0 loads after it are sent to the others."""
    script = _Script(monkeypatch, pieces=1)
    seen = []
    for number in script.loop(0):
        seen.append(script.training.is_in_step)
        if number == batches:
            break
        script.train()
        seen.append(script.training.is_in_step)
    assert seen == [True, False] * batches + [True]
    assert script.loader.open
    assert not script.training.is_in_step


def test_the_error_with_which_a_script_leaves_its_loop_is_not_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its handlers ask hvd.rank(), which refuses a loop that was left early."""
    script = _Script(monkeypatch)

    def train() -> None:
        try:
            for _ in script.loop(0):
                script.training.note_step()
                raise ValueError("loss is nan")
        finally:
            script.training.check_not_left_early()

    with pytest.raises(ValueError, match="loss is nan"):
        train()
    with pytest.raises(UsageError, match=EARLY):
        script.training.check_not_left_early()


def test_a_script_that_keeps_an_iterator_begins_no_other_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = _Script(monkeypatch)
    kept = script.loop(0)
    next(kept)
    script.train()
    with pytest.raises(UsageError, match=EARLY):
        next(script.loop(1))


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("pieces", "taken", "may"), [(1, 4, True), (2, 8, False), (2, 7, False)])
def test_a_script_may_end_its_loop_with_the_epoch_where_each_rank_has_a_process(
    pieces: int, taken: int, may: bool, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two ranks in a process, 8 passes are one epoch, and were to be two."""
    script = _Script(monkeypatch, pieces=pieces)
    batches = script.loop(0)
    for _ in range(taken):
        next(batches)
        script.train()
    if not keeps:
        del batches
    if may:
        script.end()
        return
    with pytest.raises(UsageError, match=EARLY):
        script.end()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_script_may_leave_its_loop_before_it_trains_a_batch(
    keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of the step, which is the same in each pass of it."""
    script = _Script(monkeypatch)
    batches = script.loop(0)
    for step in batches:
        if step == 2:
            break
        script.train()
    if not keeps:
        del batches
    script.end()


def test_with_one_rank_a_loop_may_be_left_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    script = _Script(monkeypatch, pieces=1, ranks=1)
    kept = script.loop(0)
    next(kept)
    script.train()
    script.end()


def test_an_iterator_for_a_look_at_a_batch_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left early is the last loop, also if an older iterator is dropped in it."""
    script = _Script(monkeypatch)
    kept = script.loop(0)
    next(kept)
    batches = script.loop(1)
    next(batches)
    script.train()
    del kept
    script.training.check_not_left_early()
    next(batches)
    script.train()
    del batches
    with pytest.raises(UsageError, match=EARLY):
        script.training.check_not_left_early()


def test_a_checkpoint_after_an_epoch_was_passed_over_is_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The optimizer of a resumed job has no memory of the copy that a checkpoint is written of."""
    script = _Script(monkeypatch, epoch=1)
    model, optimizer = script.model, script.optimizer

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    step()
    for _ in script.loop(0):  # passed over
        step()
    next(script.loop(1))
    momentum = optimizer.state[model.bias]["momentum_buffer"]
    before = momentum.item()
    captured = script.worker.replica.capture()
    step()
    saved = captured["optimizers"][0]["state"][1]["momentum_buffer"]
    assert np.frombuffer(saved.data, np.float32).item() == before != momentum.item()
