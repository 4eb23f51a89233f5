"""LR schedulers follow the job by themselves; those that end after some steps are warned of."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import SWALR

from edl.checkpoint import format as files
from edl.step.state_check import STEP_VALUE
from edl.torch import lr_schedules
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive

Make = Callable[[torch.optim.Optimizer], Any]


class OfTheirOwn(lr.LRScheduler):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.factor = 0.5
        self.shape = lambda epoch: self.factor**epoch
        self.after = lr.StepLR(optimizer, 2)
        super().__init__(optimizer)

    def get_lr(self) -> list[float | torch.Tensor]:
        return [base * self.shape(self.last_epoch) for base in self.base_lrs]


class WithRows(lr.StepLR):
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.rows = np.zeros(2, [("step", "i4"), ("loss", "f4")])
        self.seen = {"at": [np.datetime64(1, "ns"), 1j]}
        super().__init__(optimizer, 3)


class Halves:
    def __init__(self) -> None:
        self.shape = lambda epoch: 0.5**epoch
        self.calls = 0

    def __call__(self, epoch: int) -> float:
        self.calls += 1
        return float(self.shape(epoch)) / self.calls


KINDS: dict[str, Make] = {
    "StepLR": lambda sgd: lr.StepLR(sgd, 3),
    "ExponentialLR": lambda sgd: lr.ExponentialLR(sgd, 0.9),
    "MultiStepLR": lambda sgd: lr.MultiStepLR(sgd, [2, 8]),
    "LambdaLR": lambda sgd: lr.LambdaLR(sgd, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda sgd: lr.MultiplicativeLR(sgd, lambda epoch: 0.9),
    "CosineAnnealingLR": lambda sgd: lr.CosineAnnealingLR(sgd, 20),
    "CosineAnnealingWarmRestarts": lambda sgd: lr.CosineAnnealingWarmRestarts(sgd, 6),
    "CyclicLR": lambda sgd: lr.CyclicLR(sgd, 0.1, 0.5, 3),
    "OneCycleLR": lambda sgd: lr.OneCycleLR(sgd, 0.5, 20),
    "ReduceLROnPlateau": lambda sgd: lr.ReduceLROnPlateau(sgd, patience=1),
    "SequentialLR": lambda sgd: lr.SequentialLR(
        sgd, [lr.ConstantLR(sgd), lr.ExponentialLR(sgd, 0.9)], [3]
    ),
    "SequentialLR of MultiStepLR": lambda sgd: lr.SequentialLR(
        sgd, [lr.LinearLR(sgd, total_iters=7), lr.MultiStepLR(sgd, [1, 4, 4])], [7]
    ),
    "ChainedScheduler": lambda sgd: lr.ChainedScheduler(
        [lr.ConstantLR(sgd), lr.ExponentialLR(sgd, 0.9)]
    ),
    "LambdaLR of an object": lambda sgd: lr.LambdaLR(sgd, Halves()),
    "SequentialLR of objects": lambda sgd: lr.SequentialLR(
        sgd, [lr.LambdaLR(sgd, Halves()), lr.LambdaLR(sgd, Halves())], [3]
    ),
    "SWALR": lambda sgd: SWALR(sgd, 0.05),
    "OfTheirOwn": OfTheirOwn,
    "WithRows": WithRows,
}


class Script:
    def __init__(self, *makes: Make) -> None:
        model = torch.nn.Linear(1, 1)
        self.sgd = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        self.replica = TorchReplica(model, self.sgd)
        self.schedulers = [make(self.sgd) for make in makes]

    def steps(self, count: int) -> list[float]:
        rates = []
        for _ in range(count):
            self.sgd.step()
            for each in self.schedulers:
                if isinstance(each, lr.ReduceLROnPlateau):
                    each.step(1.0)
                else:
                    each.step()
            rates.append(float(self.sgd.param_groups[0]["lr"]))
        return rates

    def followed(self) -> list[str]:
        return [each["kind"] for each in self.replica.state()["schedulers"]]


def _types(scheduler: Any) -> dict[str, type]:
    return {name: type(value) for name, value in vars(scheduler).items()}


def saved_and_resumed(job: Script, script: Script, tmp_path: Path) -> None:
    path = files.path_of(tmp_path, 1)
    manifest = files.Manifest("digits", "r1", 1, 0, "torch", {}, {})
    files.write(path, manifest, files.pack_state(job.replica.capture()))
    script.replica.restore(files.read_checkpoint(path).state)


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_newcomers_and_a_resumed_job_go_on_where_the_job_is(make: Make, tmp_path: Path) -> None:
    job, newcomer, resumed = Script(make), Script(make), Script(make)
    job.steps(5)
    newcomer.steps(1)  # its warm-up
    newcomer.replica.load(job.replica.state(), Receive.ALL)
    saved_and_resumed(job, resumed, tmp_path)
    expected = job.steps(8)
    assert len({*expected}) > 1, "its rates say nothing"
    assert newcomer.steps(8) == expected
    assert resumed.steps(8) == expected
    states = [each.replica.digests() for each in (job, newcomer, resumed)]
    assert states[0] == states[1] == states[2]
    kinds = [_types(each.schedulers[0]) for each in (job, newcomer, resumed)]
    assert kinds[0] == kinds[1] == kinds[2], "as PyTorch's own methods expect them"


class Counts:
    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def with_plain_dicts(state: Any) -> Any:
    if isinstance(state, list):
        return [with_plain_dicts(one) for one in state]
    if isinstance(state, dict):
        return {name: with_plain_dicts(one) for name, one in state.items()}
    return state


@pytest.mark.parametrize("of_an_earlier_edl", [False, True])
def test_tracked_ones_go_on_where_the_job_is(of_an_earlier_edl: bool, tmp_path: Path) -> None:
    scripts = [Script(KINDS["SequentialLR of MultiStepLR"]) for _ in range(3)]
    things = [Counts() for _ in scripts]
    for script, thing in zip(scripts, things, strict=True):
        script.replica.track({"scheduler": script.schedulers[0], "thing": thing})
    job, newcomer, resumed = scripts
    job.steps(5)
    things[0].seen["cat"] += 1
    newcomer.replica.load(job.replica.state(), Receive.ALL)
    if of_an_earlier_edl:
        state = job.replica.capture()
        resumed.replica.restore({**state, "tracked": with_plain_dicts(state["tracked"])})
    else:
        saved_and_resumed(job, resumed, tmp_path)
        assert things[2].seen["dog"] == 0
    expected = job.steps(8)
    assert newcomer.steps(8) == expected
    assert resumed.steps(8) == expected


def test_one_that_differs_is_seen() -> None:
    job, other = Script(KINDS["ExponentialLR"]), Script(KINDS["ExponentialLR"])
    job.steps(1)
    mine, theirs = job.replica.digests(), other.replica.digests()
    mine |= {name: theirs[name] for name in mine if name.startswith("model.")}  # made by chance
    assert {name for name in mine if mine[name] != theirs[name]} == {"optimizer.param_groups.0.lr"}


def test_what_a_plateau_decided_by_is_told_with_the_rates() -> None:
    lr_schedules.watch_schedulers(lambda: False)
    model = torch.nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), 0.5)
    plateau = lr.ReduceLROnPlateau(sgd, patience=0)
    plateau.step(0.25)
    plateau.step(metrics=torch.tensor(0.375))
    rates = TorchReplica(model, sgd).learning_rates()
    assert rates == {"learning rate": 0.05, STEP_VALUE: 0.375}


def test_a_worker_that_missed_a_step_keeps_its_own() -> None:
    """Its script has yet to call its step()."""
    job, behind = Script(KINDS["StepLR"]), Script(KINDS["StepLR"])
    job.steps(3)
    behind.steps(2)
    behind.replica.load(job.replica.state(), Receive.STEP)
    assert behind.steps(1) == [float(job.sgd.param_groups[0]["lr"])]


def test_which_schedulers_are_the_jobs() -> None:
    elsewhere = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    job = Script(KINDS["StepLR"], KINDS["SequentialLR"], lambda _: lr.StepLR(elsewhere, 1))
    assert job.followed() == ["StepLR", "SequentialLR"], "not its parts, nor one of another's"
    job.replica.track({"scheduler": job.schedulers[0]})
    assert job.followed() == ["SequentialLR"], "what the script tracks is left to it"
    job.schedulers = [KINDS["CosineAnnealingLR"](job.sgd)]  # its next stage
    assert job.followed() == ["CosineAnnealingLR"]


class Lookahead(torch.optim.Optimizer):
    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})


def test_schedulers_of_a_wrapped_optimizer_are_the_jobs() -> None:
    def made(steps: int) -> tuple[TorchReplica, lr.StepLR]:
        model = torch.nn.Linear(1, 1)
        base = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = lr.StepLR(base, 3)
        for _ in range(steps):
            base.step()
            scheduler.step()
        return TorchReplica(model, Lookahead(Lookahead(base))), scheduler

    (job, _), (newcomer, scheduler) = made(4), made(0)
    newcomer.load(job.state(), Receive.ALL)
    assert scheduler.last_epoch == 4
    assert lr_schedules.schedulers_of(Lookahead(scheduler.optimizer)) == [scheduler]


def test_a_state_that_fits_no_scheduler_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    job = Script(KINDS["StepLR"], KINDS["CyclicLR"])
    for kinds, missing in (
        ([], "a StepLR and a CyclicLR"),
        (["OneCycleLR"], "a StepLR and a CyclicLR"),
        (["StepLR"], "a CyclicLR"),
    ):
        caplog.clear()
        script = Script(*(KINDS[kind] for kind in kinds))
        script.replica.load(job.replica.state(), Receive.ALL)
        (said,) = caplog.messages
        assert said.startswith(f"the job has the state of {missing}, and this script has made no")


def test_the_newest_of_a_kind_gets_the_newest() -> None:
    stages = [lambda sgd: lr.StepLR(sgd, 5), lambda sgd: lr.StepLR(sgd, 50)]
    job, newcomer = Script(*stages), Script(stages[1])
    newcomer.replica.load(job.replica.state(), Receive.ALL)
    assert newcomer.schedulers[0].step_size == 50


@pytest.mark.parametrize(
    ("steps", "in_samples", "warned"), [(105, False, True), (3, False, False), (105, True, False)]
)
def test_steps_are_counted_and_epochs_or_samples_are_not(
    steps: int, in_samples: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = lr.OneCycleLR(sgd, 0.5, total_steps=steps)
    if in_samples:
        lr_schedules.counts_samples(scheduler)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            lr_schedules.warn_of_counted_steps(epochs=3)
    assert scheduler.total_steps == steps
    expected = [f"OneCycleLR fails after its {steps} steps"] if warned else []
    assert [text.partition(",")[0] for text in caplog.messages] == expected
    assert all("give it total_steps=3, the number of epochs" in text for text in caplog.messages)


def test_who_counts_steps_is_named_once_the_batch_changes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lr_schedules, "_made", [])  # without those of other tests
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    by_step, by_epoch = lr.StepLR(sgd, 9), lr.ExponentialLR(sgd, 0.9)
    both = lr.SequentialLR(sgd, [lr.ConstantLR(sgd), lr.LinearLR(sgd)], [3])
    plateau = lr.ReduceLROnPlateau(sgd)
    for _ in range(4):
        sgd.step()
        by_step.step()
        both.step()
        plateau.step(1.0)
    by_epoch.step()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            lr_schedules.warn_of_a_changed_batch(8, 12, epochs=2)
    named = [text.partition(",")[0] for text in caplog.messages]
    assert named == ["StepLR counts steps", "SequentialLR counts steps"], "not its parts"
    for text in caplog.messages:
        assert "the global batch has gone from 8 to 12 samples" in text
        assert text.endswith("edl.in_samples(scheduler, batch=8)")
