"""What a checkpoint holds of PyTorch: every kind of tensor, copied, and only where it fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from edl.checkpoint import format as files
from edl.errors import CheckpointError
from edl.torch import optimizer_state as groups_module
from edl.torch import optimizer_state as names_module
from edl.torch import replica as replica_module
from edl.torch.replica import Copier, TorchReplica, to_tensors


class Tracked:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def through_a_file(directory: Path, state: Any) -> Any:
    manifest = files.Manifest("digits", "r1", 1, 0, "torch", {}, {})
    path = files.path_of(directory, 1)
    files.write(path, manifest, files.pack_state(state))
    return files.read_checkpoint(path).state


def network(width: int = 4) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(3, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
    )


def trained(optimizer_kind: Any = torch.optim.Adam, width: int = 4) -> tuple[Any, Any]:
    model = network(width)
    optimizer = optimizer_kind(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 3)).sum().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 4).to(torch.bfloat16),
        torch.randn(3, 4).t(),
        torch.tensor(2.5, dtype=torch.float64),
        torch.empty(0, 5),
        torch.tensor([True, False, True]),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(3, dtype=torch.complex128),
        torch.arange(5, dtype=torch.uint8),
        torch.randn(6).to(torch.float8_e4m3fn),
    ],
    ids=lambda tensor: f"{str(tensor.dtype).removeprefix('torch.')}-{list(tensor.shape)}",
)
def test_a_tensor_comes_back(tmp_path: Path, tensor: torch.Tensor) -> None:
    back = to_tensors(through_a_file(tmp_path, Copier().copy({"t": tensor})))["t"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    plain = tensor.resolve_conj().contiguous().reshape(-1).view(torch.uint8)
    assert torch.equal(back.contiguous().reshape(-1).view(torch.uint8), plain)
    as_others = load_file(files.path_of(tmp_path, 1))["t"]
    if tensor.dtype != torch.complex128:  # safetensors has none: it is there as bytes
        assert (as_others.dtype, as_others.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(as_others.contiguous().reshape(-1).view(torch.uint8), plain)


def test_later_steps_do_not_change_a_copy() -> None:
    tensor, array = torch.zeros(3), np.zeros(3)
    copied = Copier().copy({"t": tensor, "a": array, "l": [tensor]})
    tensor += 1
    array += 1
    assert to_tensors(copied)["t"].tolist() == [0, 0, 0]
    assert copied["a"].tolist() == [0, 0, 0]


def test_a_copy_uses_the_memory_of_the_one_before() -> None:
    copier, tensor = Copier(), torch.zeros(3)
    first = copier.copy([tensor])[0]
    second = copier.copy([tensor + 1])[0]
    assert first.data.obj.ctypes.data == second.data.obj.ctypes.data
    copier.copy([torch.zeros(4)])


class OnGpu(torch.Tensor):
    """A tensor that says that it is on a GPU, for a machine without one."""

    gpu: int
    is_cuda = True

    @classmethod
    def number(cls, gpu: int) -> OnGpu:
        tensor = torch.ones(2).as_subclass(cls)
        tensor.gpu = gpu
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", self.gpu)

    def detach(self) -> OnGpu:
        return self


def test_a_copy_waits_for_each_gpu_that_it_copies_from(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    empty = torch.empty
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    monkeypatch.setattr(torch, "empty", lambda *given, pin_memory, **named: empty(*given, **named))
    copier = Copier()
    copier.copy([OnGpu.number(1), OnGpu.number(3), OnGpu.number(1), torch.ones(2)])
    assert sorted(map(str, waited)) == ["cuda:1", "cuda:3"]  # whatever the current device is
    copier.copy([torch.ones(2)])
    assert len(waited) == 2


def test_a_copy_lies_in_host_memory_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        copied = Copier().copy(
            {"t": torch.ones(2, device="cpu"), "none": torch.ones(0, device="cpu")}
        )
        back = to_tensors(copied)
    assert back["t"].tolist() == [1, 1]
    assert back["none"].device.type == "cpu"


def test_what_a_forward_pass_makes_need_not_be_there_in_a_resumed_job(tmp_path: Path) -> None:
    def made(length: int) -> tuple[Any, TorchReplica]:
        model = network()
        model.register_buffer("mask", torch.ones(length) if length else None, persistent=False)
        return model, TorchReplica(model, torch.optim.SGD(model.parameters(), lr=0.1))

    trained_model, replica = made(3)
    state = through_a_file(tmp_path, replica.capture())
    for length in (0, 3, 5):
        model, other = made(length)
        other.restore(state)
        assert torch.equal(model[0].weight, trained_model[0].weight)
        assert (model.mask is None) == (length == 0)


class Compiled(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


@pytest.mark.parametrize("earlier", [False, True], ids=["", "earlier edl"])
def test_a_job_may_be_resumed_with_the_compiled_model_or_the_bare_one(
    earlier: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if earlier:  # it had the names of the compiled model in the file
        for module in (replica_module, groups_module, names_module):
            monkeypatch.setattr(module, "plain_name", lambda name: name)
    model, optimizer = trained()
    model[0].bias.requires_grad_(False)
    state = through_a_file(tmp_path, TorchReplica(Compiled(model), optimizer).capture())
    assert any("_orig_mod" in name for name in state["model"]) is earlier
    monkeypatch.undo()
    for wrapped in (False, True):
        other, its_optimizer = trained()
        its_model = Compiled(other) if wrapped else other
        TorchReplica(its_model, its_optimizer).restore(state)
        assert torch.equal(other[0].weight, model[0].weight)
        momenta = [its_optimizer.state[p]["exp_avg"] for p in other.parameters()]
        theirs = [optimizer.state[p]["exp_avg"] for p in model.parameters()]
        assert all(map(torch.equal, momenta, theirs))


def test_a_tensor_without_plain_bytes_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"state\['t'\] is a torch.sparse_coo tensor"):
        Copier().copy({"t": torch.eye(2).to_sparse()})


def test_model_optimizer_and_tracked_objects_come_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    replica = TorchReplica(model, optimizer)
    replica.track({"random": Tracked(np.random.default_rng(5).bit_generator.state)})
    state = through_a_file(tmp_path, replica.capture())

    other, its_optimizer = trained()
    tracked = Tracked(None)
    again = TorchReplica(other, its_optimizer)
    again.track({"random": tracked})
    again.restore(state)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    for mine, theirs in zip(
        optimizer.state_dict()["state"].values(),
        its_optimizer.state_dict()["state"].values(),
        strict=True,
    ):
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert optimizer.state_dict()["param_groups"] == its_optimizer.state_dict()["param_groups"]
    assert tracked.state == np.random.default_rng(5).bit_generator.state


class WithRows(torch.nn.Linear):
    def get_extra_state(self) -> Any:
        return np.zeros(2, [("step", "i4"), ("loss", "f4")])


def test_an_extra_state_that_a_file_cannot_hold_is_left_out() -> None:
    model = WithRows(2, 1)
    captured = TorchReplica(model, torch.optim.SGD(model.parameters())).capture()
    assert captured["extra"] == [{}]
    files.pack_state(captured)


def test_what_does_not_fit_is_refused_with_its_names(tmp_path: Path) -> None:
    replica = TorchReplica(*trained())
    state = through_a_file(tmp_path, replica.capture())
    with pytest.raises(CheckpointError, match=r"0\.bias has shape \(4,\) there and \(5,\) here"):
        TorchReplica(*trained(width=5)).restore(state)
    with pytest.raises(CheckpointError, match="a job with Adam, and this script trains with SGD"):
        TorchReplica(*trained(torch.optim.SGD)).restore(state)
    linear = torch.nn.Linear(3, 4)
    with pytest.raises(CheckpointError, match=r"only it has 0.bias; 0.weight; 1.bias and"):
        TorchReplica(linear, torch.optim.Adam(linear.parameters())).restore(state)
    tracking = TorchReplica(*trained())
    tracking.track({"scheduler": Tracked({})})
    with pytest.raises(CheckpointError, match="only one of checkpoint and script tracks scheduler"):
        tracking.restore(state)
    model = network()
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    with pytest.raises(CheckpointError, match="does not fit this script"):
        TorchReplica(model, torch.optim.Adam(groups)).restore(state)
