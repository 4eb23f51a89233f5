"""The layers of a PyTorch model, as their balance is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from edl.contrib.torch_balance import layer_balance
from edl.errors import UsageError
from edl.torch.replica import Copier, to_tensors


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.norm = nn.LayerNorm(4)
        self.conv = nn.Conv2d(1, 4, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.conv(x).mean((2, 3))))


def test_weights_with_two_dimensions_or_more_are_layers() -> None:
    net = Net()
    assert layer_balance(net).names == ("last.weight", "conv.weight")
    balance = layer_balance(net, layers=["conv.weight", "last.weight"], matrices=True)
    with torch.no_grad():
        net.conv.weight.fill_(2.0)  # 36 of them
        net.last.weight.fill_(1.0)  # 8
    balance.record(0)
    with torch.no_grad():
        net.last.weight.fill_(3.0)
    net.conv.weight = nn.Parameter(net.conv.weight.detach() / 2)  # another one in its place
    balance.record(10)
    assert balance.squared_norms.tolist() == [[144.0, 8.0], [36.0, 72.0]]
    assert np.isnan(balance.matrix_drift()).all()  # a convolution has no matrix


def test_frozen_layers_are_left_out_unless_they_are_named() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    net[0].requires_grad_(False)
    assert layer_balance(net).names == ("1.weight", "2.weight")
    assert layer_balance(net, ["0.weight", "1.weight"]).names == ("0.weight", "1.weight")


def test_rows_are_outputs() -> None:
    """W2^T W2 - W1 W1^T stays what it is when a column of W2 and the row of W1 change alike."""
    net = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 4, bias=False)).double()
    balance = layer_balance(net, matrices=True)
    with torch.no_grad():
        net[0].weight[:] = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        net[1].weight[:] = torch.tensor([[1.0, 0], [0, 1], [0, 0], [0, 0]])
        balance.record(0)
        net[0].weight[1, 1] = net[1].weight[1, 1] = 5.0
        balance.record(1)
    assert balance.matrix_drift().tolist() == [[0.0], [0.0]]
    assert balance.drift().tolist() == [[0.0], [0.0]]


def test_half_precision_is_summed_up_in_double() -> None:
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 1)).bfloat16()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1.0)
    balance = layer_balance(net)
    balance.record(0)
    assert balance.rows[0].squared_norms == (90000.0, 300.0)


def test_a_model_without_two_layers_is_refused() -> None:
    with pytest.raises(UsageError, match="there is only weight"):
        layer_balance(nn.Linear(2, 2))
    with pytest.raises(UsageError, match="there is none"):
        layer_balance(nn.LayerNorm(2))
    with pytest.raises(UsageError, match=r"has no weight matrix 7.weight; it has 0.weight; 1.wei"):
        layer_balance(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), ["0.weight", "7.weight"])
    with pytest.raises(UsageError, match=r"needs a torch.nn.Module, not a list"):
        layer_balance([nn.Linear(2, 2)])  # type: ignore[arg-type]
    lazy = nn.Sequential(nn.LazyLinear(2), nn.Linear(2, 2))
    with pytest.raises(UsageError, match=r"0.weight has no shape yet; run a batch through"):
        layer_balance(lazy)


def test_a_tracked_balance_is_saved_and_not_compared() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    balance, resumed = layer_balance(net, matrices=True), layer_balance(net, matrices=True)
    for samples in (0, 8, 16):
        resumed.load_state_dict(to_tensors(Copier().copy(balance.state_dict())))
        assert resumed.rows == balance.rows
        balance.record(samples)
    assert not balance.edl_compared  # another kind of processor may round otherwise
