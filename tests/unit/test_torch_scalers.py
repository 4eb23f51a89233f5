"""GradScalers follow the job by themselves, whenever they are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp import GradScaler

from edl.checkpoint import format as files
from edl.torch import replica as module
from edl.torch.replica import TorchReplica
from edl.worker.progress import Receive


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_observe", None)
    monkeypatch.setattr(GradScaler, "scale", GradScaler.scale)


class Script:
    def __init__(self, *scales: float) -> None:
        self.model = torch.nn.Linear(1, 1)
        self.sgd = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.replica = TorchReplica(self.model, self.sgd)
        self.scalers = [GradScaler("cpu", init_scale=each, growth_interval=2) for each in scales]

    def train(self, *scalers: int, overflow: bool = False) -> None:
        module.watch_scalers(self.replica.add_scaler)
        for number in scalers:
            scaler = self.scalers[number]
            self.sgd.zero_grad()
            loss = self.model(torch.ones(1, 1)).sum() * (float("inf") if overflow else 1.0)
            scaler.scale(loss).backward()
            scaler.step(self.sgd)
            scaler.update()

    def scales(self) -> list[float]:
        return [scaler.get_scale() for scaler in self.scalers]


def joined(newcomer: Script, job: Script) -> list[float]:
    newcomer.replica.load(job.replica.state(), Receive.ALL)
    return newcomer.scales()


def test_a_newcomer_has_the_scale_of_the_job() -> None:
    job, newcomer = Script(8.0, 4.0), Script(8.0, 4.0)
    for _ in range(3):
        job.train(0, 1)
    newcomer.train(0, overflow=True)  # its warm-up
    assert joined(newcomer, job) == [16.0, 4.0], "the second one is not used here yet"
    newcomer.train(1, overflow=True)
    assert newcomer.scales() == [16.0, 4.0], "8 is the job's"
    for each in (job, newcomer):
        each.train(0)
    assert newcomer.scales()[0] == job.scales()[0] == 32.0, "they grow together"


def test_a_newcomer_to_a_job_without_a_scale_begins_anew() -> None:
    job, newcomer = Script(8.0), Script(8.0)
    newcomer.train(0, overflow=True)
    assert newcomer.scales() == [4.0]
    assert joined(newcomer, job) == [8.0]


@pytest.mark.parametrize("between", [0, 1])
def test_a_checkpoint_keeps_it_until_the_scaler_is_there(between: int, tmp_path: Path) -> None:
    state: Any = Script(8.0)
    state.train(0, overflow=True)
    for _ in range(1 + between):
        manifest = files.Manifest("digits", "r1", 1, 0, "torch", {}, {})
        path = files.path_of(tmp_path, 1)
        files.write(path, manifest, files.pack_state(state.replica.capture()))
        state = Script(8.0)
        state.replica.restore(files.read_checkpoint(path).state)
    newcomer = Script(8.0)
    joined(newcomer, state)
    for resumed in (state, newcomer):
        resumed.train(0)
        assert resumed.scales() == [4.0]


def test_a_checkpoint_fits_a_script_with_and_without_a_scaler() -> None:
    for saved, script in ((Script(), Script(8.0)), (Script(8.0), Script())):
        for number in range(len(saved.scalers)):
            saved.train(number)
        script.replica.restore(saved.replica.capture())
        script.train(*range(len(script.scalers)))
        assert script.scales() == [8.0] * len(script.scalers)


def test_what_the_script_tracks_is_left_to_it() -> None:
    job, newcomer = Script(8.0), Script(8.0)
    for each in (job, newcomer):
        each.replica.track({"scaler": each.scalers[0]})
    job.train(0, overflow=True)
    assert job.replica.state()["scalers"] == []
    assert joined(newcomer, job) == [4.0]


def test_a_scaler_that_is_off_is_none() -> None:
    job = Script()
    job.scalers = [GradScaler("cpu", enabled=False)]
    job.train(0)
    assert job.replica.state()["scalers"] == []


def test_a_worker_that_missed_a_step_keeps_its_scaler_and_learns_what_became_of_the_step() -> None:
    """Its script has yet to call update(), with gradients that make it do what the others did."""
    job, behind = Script(8.0), Script(8.0)
    behind.train(0)
    job.train(0, overflow=True)
    state = job.replica.state()
    state["skipped"] = [True]
    behind.replica.load(state, Receive.STEP)
    assert behind.scales() == [8.0]
    assert behind.replica.state()["skipped"] == [True]
