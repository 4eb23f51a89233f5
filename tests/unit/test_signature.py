"""A newcomer whose model is not the job's ends before it joins, and costs the others nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from edl.http import client
from edl.http.client import MODEL_PATH, script_of
from edl.job.script import DoneFit, ScriptFits, ScriptOfJob, Signature, why_unfit
from edl.records import RingMember
from edl.torch.replica import TorchReplica

FIT = {"until": 2, "epochs": [0, 1], "history": {"loss": [0.5, 0.25]}}
MODEL = {"0.weight": "(3, 2)", "0.bias": "(3,)"}


@pytest.mark.parametrize("other", [{}, MODEL], ids=["nobody has said it", "the same"])
def test_a_model_that_fits(other: Signature) -> None:
    assert why_unfit(MODEL, other) == ""
    assert why_unfit(other, MODEL) == ""


@pytest.mark.parametrize(
    ("theirs", "sentence"),
    [
        ({**MODEL, "lora.a": "(1,)"}, "the job's model has lora.a, and this newcomer's has not"),
        ({"0.bias": "(3,)"}, "this newcomer's model has 0.weight, and the job's has not"),
        ({**MODEL, "0.bias": "(4,)"}, "0.bias has shape (3,) in this newcomer's model and (4,) in"),
    ],
)
def test_what_differs_is_named(theirs: Signature, sentence: str) -> None:
    assert why_unfit(MODEL, theirs).startswith(sentence)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (
            (200, json.dumps({"signature": MODEL, "begun": 2, "done": [FIT]}).encode()),
            ScriptOfJob(
                MODEL, ScriptFits((DoneFit(2, [0, 1], {"loss": [0.5, 0.25]}),), 2), protocol=0
            ),
        ),
        ((200, b'{"signature": {}, "begun": 0, "done": []}'), ScriptOfJob(protocol=0)),
        (
            (200, b'{"signature": {}, "protocol": 17, "begun": 0, "done": []}'),
            ScriptOfJob(protocol=17),
        ),
        ((200, json.dumps(MODEL).encode()), None),  # of another version
        ((404, b""), None),
        ((200, b"no JSON"), None),
        (ConnectionRefusedError(), None),
    ],
)
def test_a_worker_is_asked_for_its_script(
    answer: Any, found: ScriptOfJob | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(address: str, port: int, path: str, _timeout_s: float) -> tuple[int, bytes]:
        assert (address, port, path) == ("10.0.0.1", 7, MODEL_PATH)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        return status, body

    monkeypatch.setattr(client, "fetch", fetch)
    assert script_of(RingMember(0, "a", 0, "10.0.0.1", 7)) == found


def test_a_model_in_pytorch_with_what_was_added_to_it() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3))
    replica = TorchReplica(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert replica.signature() == {"0.weight": "(3, 2)", "0.bias": "(3,)"}
    net.add_module("lora", torch.nn.Linear(3, 1, bias=False))
    assert replica.signature()["lora.weight"] == "(1, 3)"
