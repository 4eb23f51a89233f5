"""Schedulers that end after a number of steps are warned of, at the start of a job."""

from __future__ import annotations

import logging

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from edl.torch import schedulers


@pytest.mark.parametrize(("steps", "warned"), [(105, True), (3, False)])
def test_steps_are_counted_and_epochs_are_not(
    steps: int, warned: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneCycleLR, "__init__", OneCycleLR.__init__)
    schedulers.watch_schedulers()
    schedulers.watch_schedulers()
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    scheduler = OneCycleLR(sgd, 0.5, total_steps=steps)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            schedulers.warn_of_counted_steps(epochs=3)
    assert scheduler.total_steps == steps
    expected = [f"OneCycleLR fails after its {steps} steps"] if warned else []
    assert [text.partition(",")[0] for text in caplog.messages] == expected
    assert all("give it total_steps=3, the number of epochs" in text for text in caplog.messages)
