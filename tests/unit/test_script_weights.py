"""The weights that an unchanged script broadcasts before its training."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from torch import nn

from edl.errors import UsageError
from edl.transparent import data_loading
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


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ScriptLoaders:
    """Return the loaders of a script in the process of rank 1."""
    worker = SimpleNamespace(id=7)
    monkeypatch.setattr(data_loading.process, "current_worker", lambda: worker)
    return ScriptLoaders()


def test_an_equal_module_does_not_hide_one_that_differs(
    script: ScriptLoaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, teacher = nn.Linear(2, 1), nn.Linear(2, 1)  # with the same names
    ring = _Ring(other, same, same, lambda own: [b"3", own])
    monkeypatch.setattr(script, "_exchange_early", ring)
    script.compare_weights(model.state_dict().items())
    script.compare_weights(teacher.state_dict().items())
    with pytest.raises(UsageError, match="the workers have different weights"):
        script.agree_on_shares()
    script.compare_weights(model.named_parameters())  # all have loaded a checkpoint
    assert script.agree_on_shares() == (1, 2)
    assert ring.is_over
