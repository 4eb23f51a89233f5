"""The weights of a checkpoint without its job: found, loaded, listed, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_model

from edl.checkpoint import format as files
from edl.checkpoint.format import Manifest, pack_state
from edl.checkpoint.weights import export_weights, newest
from edl.cli import checkpoint
from edl.cli.main import invoke
from edl.errors import CheckpointError, UsageError
from edl.torch.replica import TorchReplica, load_weights
from edl.worker.progress import Receive


def net(width: int = 3) -> torch.nn.Module:
    torch.manual_seed(width)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))


def save(directory: Path, step: int, model: torch.nn.Module) -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    source = {"total": 100, "seed": 7, "shuffle": True, "batch_size": 4, "fingerprint": ""}
    manifest = Manifest("digits", "r1", step, 1, "torch", source, {}, 1_700_000_000.0)
    path = files.path_of(directory, step)
    files.write(path, manifest, pack_state(TorchReplica(model, optimizer).capture()))
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
    assert invoke(["checkpoint", "list", str(empty), "--json"]) == 1
    assert capsys.readouterr() == ("[]\n", f"edl: there is no checkpoint in {empty}\n")


def test_a_newest_file_with_damaged_data_is_named_by_each_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    good, damaged = save(tmp_path, 10, net()), save(tmp_path, 20, net())
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert invoke(["checkpoint", "list", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert f"{damaged} is damaged" in first["error"]
    assert (second["checked"], second["error"]) == (True, None)
    target = tmp_path / "weights.safetensors"
    for words in (["show", str(tmp_path)], ["export", str(tmp_path), str(target)]):
        caplog.clear()
        assert invoke(["checkpoint", *words]) == 0
        (said,) = caplog.messages
        assert f"{damaged} is damaged" in said
        assert said.endswith(f"taken instead: {good}")


def test_what_is_large_is_listed_by_its_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20, 30):
        size = save(tmp_path, step, net()).stat().st_size
    monkeypatch.setattr(checkpoint, "MAX_CHECKED_BYTES", size)
    assert invoke(["checkpoint", "list", str(tmp_path)]) == 0
    assert "Only the headers of the last 2 files were read" in capsys.readouterr().out


@pytest.mark.parametrize("goes", ["before it is read", "before its size is asked for"])
def test_a_file_that_a_running_job_removes_meanwhile_is_not_listed(
    goes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (10, 20):
        save(tmp_path, step, net())
    read = files.read_manifest

    def read_late(path: Path) -> files.Manifest:
        is_old = path == files.path_of(tmp_path, 10)
        manifest = None if is_old and goes == "before it is read" else read(path)
        if is_old:
            path.unlink()
        return manifest or read(path)

    monkeypatch.setattr(files, "read_manifest", read_late)
    assert invoke(["checkpoint", "list", str(tmp_path), "--json"]) == 0
    assert [one["step"] for one in json.loads(capsys.readouterr().out)] == [20]


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


class Parts(torch.nn.Module):
    def __init__(self, seed: float = 0.0) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(5, 4)
        self.output = torch.nn.Linear(4, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.normed = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))
        self.narrow = torch.nn.Linear(4, 2).bfloat16()
        self.register_buffer("waves", torch.full((3,), 1j * seed, dtype=torch.complex64))
        self.register_buffer("turned", torch.arange(12.0).view(3, 4).t() + seed)
        self.register_buffer("cache", torch.full((2,), seed), persistent=False)
        self.register_buffer("none", None)
        self.counted = int(seed)
        torch.nn.init.constant_(self.embedding.weight, seed)

    def get_extra_state(self) -> object:
        return torch.tensor(self.counted)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.counted = int(state)


@pytest.mark.parametrize("exported", [False, True], ids=["checkpoint", "exported"])
def test_weights_have_the_names_and_ties_of_the_models_state_dict(
    exported: bool, tmp_path: Path
) -> None:
    trained, path = Parts(2.0), tmp_path / "parts.safetensors"
    saved = save(tmp_path, 10, trained)
    if exported:
        export_weights(saved, path)
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"output.weight": "embedding.weight", "format": "pt"}
        Parts().load_state_dict(load_file(path))  # without edl
    source = path if exported else saved
    model, wanted = Parts(), trained.state_dict()
    found = load_weights(source, model)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype, name
    assert_same(model, trained)
    assert model.output.weight is model.embedding.weight
    assert model.counted == 2
    assert model.cache.tolist() == [0.0, 0.0], "no file has it"


def test_a_tied_tensor_under_one_name_is_what_load_model_wants(tmp_path: Path) -> None:
    trained, path = Parts(2.0), tmp_path / "once.safetensors"
    export_weights(save(tmp_path, 10, trained), path, tied_once=True)
    for load in (load_model, lambda model, path: load_weights(path, model)):
        model = Parts()
        load(model, path)
        assert_same(model, trained)


def test_a_file_of_safetensors_own_and_an_older_checkpoint_fit_a_tied_model(tmp_path: Path) -> None:
    trained, path = Parts(2.0), tmp_path / "own.safetensors"
    save_model(trained, path)
    model = Parts()
    load_weights(path, model)
    assert_same(model, trained)

    capture = TorchReplica.capture

    def older(replica: TorchReplica) -> dict[str, object]:
        state = capture(replica)
        del state["state_dict"], state["extra"]
        return state

    plain, tied = torch.nn.Linear(3, 3), torch.nn.Sequential(torch.nn.Linear(3, 3))
    tied.append(tied[0])
    for one in (plain, tied[0]):
        one.register_buffer("cache", torch.zeros(1), persistent=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchReplica, "capture", older)
        saved = save(tmp_path, 10, tied)
    model = torch.nn.Sequential(plain, plain)
    load_weights(saved, model)
    assert torch.equal(plain.weight, tied[1].weight)


class Compiled(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


def test_a_compiled_model_and_the_bare_one_fit_each_other(tmp_path: Path) -> None:
    trained, model = net(), net(3)
    torch.nn.init.zeros_(model[0].weight)
    load_weights(save(tmp_path, 10, Compiled(trained)), model)
    assert_same(model, trained)
    torch.nn.init.zeros_(model[0].weight)
    load_weights(save(tmp_path, 20, trained), Compiled(model))
    assert_same(model, trained)


def test_what_is_exported_of_a_compiled_model_fits_the_bare_one(tmp_path: Path) -> None:
    trained, model = net(), net(3)
    export_weights(save(tmp_path, 10, Compiled(trained)), tmp_path / "weights.safetensors")
    model.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert_same(model, trained)


def test_a_file_with_more_than_the_model_is_refused(tmp_path: Path) -> None:
    deeper = torch.nn.Sequential(*net(), torch.nn.Linear(3, 1))
    with pytest.raises(CheckpointError, match=r"another model: only it has 2\.bias"):
        load_weights(save(tmp_path, 10, deeper), net())


def test_a_type_that_safetensors_has_not_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1, dtype=torch.complex128)
    path = save(tmp_path, 10, model)
    with pytest.raises(UsageError, match=r"no type for bias, weight \(complex128\)"):
        export_weights(path, tmp_path / "weights.safetensors")
    other = torch.nn.Linear(1, 1, dtype=torch.complex128)
    load_weights(path, other)
    assert torch.equal(other.weight, model.weight)


def test_extra_state_of_modules_reaches_a_newcomer() -> None:
    job, newcomer = Parts(2.0), Parts()
    states = [
        TorchReplica(one, torch.optim.SGD(one.parameters(), lr=0.1)) for one in (job, newcomer)
    ]
    states[1].load(states[0].state(), Receive.ALL)
    assert newcomer.counted == 2
