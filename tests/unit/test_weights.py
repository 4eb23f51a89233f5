"""The weights of a checkpoint without its job: found, loaded, listed, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from edl.checkpoint import format as files
from edl.checkpoint.format import Manifest, pack
from edl.checkpoint.weights import newest
from edl.cli.main import invoke
from edl.errors import CheckpointError
from edl.torch.replica import TorchReplica
from edl.torch.weights import load_weights


def net(width: int = 3) -> torch.nn.Module:
    torch.manual_seed(width)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))


def save(directory: Path, step: int, model: torch.nn.Module) -> Path:
    """A checkpoint as a job writes it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    source = {"total": 100, "seed": 7, "shuffle": True, "batch_size": 4, "fingerprint": ""}
    manifest = Manifest("digits", "r1", step, 1, "torch", source, {}, 1_700_000_000.0)
    path = files.path_of(directory, step)
    files.write(path, manifest, pack(TorchReplica(model, optimizer).capture()))
    return path


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def assert_same(one: torch.nn.Module, other: torch.nn.Module) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def test_a_model_gets_the_newest_good_weights_of_a_directory(tmp_path: Path) -> None:
    first, second, third = net(), net(), net()
    torch.nn.init.ones_(second[0].weight)
    save(tmp_path, 10, first)
    save(tmp_path, 20, second)
    tear(save(tmp_path, 30, third))
    model = net()
    found = load_weights(tmp_path, model)
    assert_same(model, second)
    model.load_state_dict(found)  # as PyTorch's users know it


def test_an_exported_file_is_what_other_tools_and_we_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained, target = net(), tmp_path / "weights.safetensors"
    source = save(tmp_path, 10, trained)
    assert invoke(["checkpoint", "export", str(source), str(target)]) == 0
    assert "wrote 7 tensors of step 10 of job digits" in capsys.readouterr().out
    for found in (load_file(target), load_weights(target)):
        model = net()
        model.load_state_dict(found)
        assert_same(model, trained)
    assert invoke(["checkpoint", "export", str(tmp_path), str(target)]) == 2
    assert f"edl: {target} exists; remove it" in capsys.readouterr().err
    assert invoke(["checkpoint", "export", str(tmp_path), str(tmp_path / "weights.pt")]) == 2
    assert f"choose {target}" in capsys.readouterr().err


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, 10, net())
    with pytest.raises(CheckpointError, match=r"0\.bias has shape \(3,\) there and \(5,\) here"):
        load_weights(path, net(5))
    deeper = torch.nn.Sequential(*net(), torch.nn.Linear(3, 1))
    with pytest.raises(CheckpointError, match=r"another model: 2\.bias is not there"):
        load_weights(path, deeper)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        newest(tmp_path)
    tear(save(tmp_path, 10, net()))
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*; refused: .* is torn"):
        newest(tmp_path)
    with pytest.raises(CheckpointError, match="No such file"):
        load_weights(tmp_path / "nothing.safetensors")
    other = tmp_path / "other.safetensors"
    for content in (b"", b"hello", (99).to_bytes(8, "little") + b"{}"):
        other.write_bytes(content)
        with pytest.raises(CheckpointError, match="no whole safetensors file"):
            load_weights(other)


def test_files_are_listed_with_what_is_wrong_with_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path, 10, net())
    tear(save(tmp_path, 20, net()))
    assert invoke(["checkpoint", "list", str(tmp_path), "--json"]) == 0
    torn, good = json.loads(capsys.readouterr().out)
    assert "is torn" in torn["error"]
    assert torn["step"] is None
    assert (good["job"], good["step"], good["epoch"], good["error"]) == ("digits", 10, 1, None)
    assert invoke(["checkpoint", "list", str(tmp_path)]) == 0
    assert "step-000000000010.safetensors" in capsys.readouterr().out
    assert invoke(["checkpoint", "list", str(tmp_path / "none")]) == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert invoke(["checkpoint", "list", str(empty)]) == 1
    assert capsys.readouterr().err.endswith(f"edl: there is no checkpoint in {empty}\n")


def test_one_is_shown_with_every_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, 10, net())
    assert invoke(["checkpoint", "show", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "step 10, epoch 1" in shown
    assert "28 values in 7 tensors" in shown  # 12 + 3 and 3 + 3 + 3 + 3 + 1
    assert "3 x 4" in shown
    assert invoke(["checkpoint", "show", str(tmp_path), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["optimizer"] == "SGD"
    assert about["model"]["0.weight"] == {"dtype": "float32", "shape": [3, 4]}
