"""Tensors that do not change lie once beside the checkpoints that name them."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_checkpoint_format import MANIFEST, STATE
from test_checkpoints import Start

from edl.checkpoint import format as files
from edl.checkpoint import writer
from edl.checkpoint.format import pack_state
from edl.checkpoint.location import Location, RemotePath, location
from edl.checkpoint.safetensors import serialized
from edl.checkpoint.tensors import TensorRecord
from edl.checkpoint.weights import newest
from edl.checkpoint.writer import UnchangedTensors
from edl.errors import CheckpointError

FROZEN = {"backbone": np.arange(400_000.0), "embedding": np.arange(10, dtype=np.int16)}


def save(start: Start, step: int, value: object) -> None:
    start.progress.step, start.replica.value = step, value
    assert start.checkpoints.save_last(start.at, start.replica, timeout_s=10) == ""


def saved(start: Start, step: int, **other: object) -> None:
    save(start, step, {**FROZEN, "head": np.full(3, float(step)), **other})


def names(directory: Location) -> list[str]:
    found = [name for name in files.names_in(directory) if name.endswith(".safetensors")]
    return sorted(re.sub(r"-[0-9a-f]{8}\.", ".", name) for name in found)


def unchanged_file(directory: Path, step: int) -> Path:
    (path,) = directory.glob(f"unchanged-{step:012d}-*.safetensors")
    return path


def steps(*numbers: int) -> list[str]:
    return [files.path_of(Path(), step).name for step in numbers]


def aside(*numbers: int) -> list[str]:
    return [f"unchanged-{step:012d}.safetensors" for step in numbers]


def test_frozen_arrays_are_written_twice_and_then_named(tmp_path: Path) -> None:
    start = Start(tmp_path)
    for step in (0, 10, 20, 30):
        saved(start, step)
    assert names(tmp_path) == steps(10, 20, 30) + aside(10)
    assert set(load_file(unchanged_file(tmp_path, 10))) == {"value.backbone", "value.embedding"}
    assert all((tmp_path / name).stat().st_size < 5000 for name in steps(10, 20, 30))
    for step in (10, 20, 30):
        state = files.read_checkpoint(files.path_of(tmp_path, step)).state["value"]
        assert np.array_equal(state["head"], np.full(3, float(step)))
        for name, array in FROZEN.items():
            np.testing.assert_array_equal(state[name], array, strict=True)
    reasons = [reason for kind, _, reason in start.logged if kind == "checkpoint"]
    assert [": 3.2 MB" in reason for reason in reasons] == [True, True, False, False]


def test_what_changes_again_is_written_and_the_old_file_goes_with_its_last_checkpoint(
    tmp_path: Path,
) -> None:
    start = Start(tmp_path)
    for step in (0, 10):
        saved(start, step)
    for step in (20, 30, 40):
        saved(start, step, backbone=FROZEN["backbone"] + step)
        assert aside(10)[0] in names(tmp_path)
    read = files.read_checkpoint(files.path_of(tmp_path, 40)).state["value"]
    assert np.array_equal(read["backbone"], FROZEN["backbone"] + 40)
    assert np.array_equal(read["embedding"], FROZEN["embedding"]), "it is named still"
    for step in (50, 60, 70):
        saved(start, step, backbone=FROZEN["backbone"] + step, embedding=np.zeros(step))
    assert names(tmp_path) == steps(50, 60, 70)


def test_another_worker_goes_on_with_the_files_of_the_one_before(tmp_path: Path) -> None:
    first = Start(tmp_path)
    for step in (0, 10):
        saved(first, step)
    second = Start(tmp_path)
    assert second.restore() == 10
    saved(second, 20)
    assert names(tmp_path) == steps(0, 10, 20) + aside(10)
    saved(second, 30, dtype=np.zeros(200_000, np.float32))
    unchanged_file(tmp_path, 10).unlink()  # by hand: what is not there is written again
    saved(second, 40, dtype=np.zeros(200_000, np.float64))
    assert names(tmp_path)[-1] == aside(40)[0]
    assert files.read_checkpoint(files.path_of(tmp_path, 40)).manifest.step == 40


def test_in_a_directory_with_a_url(request: pytest.FixtureRequest) -> None:
    directory = location(f"memory://{request.node.name}")
    assert isinstance(directory, RemotePath)
    start = Start(directory)
    for step in (0, 10, 20):
        saved(start, step)
    assert aside(10)[0] in names(directory)
    again = Start(directory)
    assert again.restore() == 20
    saved(again, 30)
    assert (directory / steps(30)[0]).size < 5000
    for step in (40, 50, 60):
        save(again, step, step)
    assert aside(10)[0] not in names(directory)


def test_a_few_bytes_stay_in_each_checkpoint(tmp_path: Path) -> None:
    start = Start(tmp_path)
    for step in (0, 10, 20):
        save(start, step, {"frozen": np.zeros(writer.LEAST // 8 - 1), "step": step})
    assert names(tmp_path) == steps(0, 10, 20)


@pytest.mark.parametrize("damage", ["missing", "torn", "changed", "foreign"])
def test_damage_is_a_sentence_and_the_checkpoint_before_is_used(
    tmp_path: Path, damage: str
) -> None:
    start = Start(tmp_path)
    for step in (0, 10):
        saved(start, step)
    path = unchanged_file(tmp_path, 10)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        wrong = {
            "torn": content[:-5],
            "changed": content[:-5] + b"wrong",
            "foreign": b"not a safetensors file",
        }
        path.write_bytes(wrong[damage])
    with pytest.raises(CheckpointError, match=path.name) as refused:
        files.read_checkpoint(files.path_of(tmp_path, 10))
    assert "\n" not in str(refused.value)
    assert newest(tmp_path).manifest.step == 0
    assert Start(tmp_path).restore() == 0


def test_files_that_a_checkpoint_may_name_stay(tmp_path: Path) -> None:
    start = Start(tmp_path)
    for step in (0, 10, 20, 30):
        saved(start, step)
    files.path_of(tmp_path, 20).write_bytes(b"damaged")
    for step in (40, 50):
        saved(start, step, backbone=np.zeros(1), embedding=np.zeros(1))
    assert aside(10)[0] in names(tmp_path), "nobody knows what the damaged one names"


def test_two_workers_that_save_the_same_step_spoil_nothing(tmp_path: Path) -> None:
    """After a break each worker saves: the second one finds the first one's checkpoint there."""
    first, second = Start(tmp_path), Start(tmp_path)
    trained = np.arange(300_000.0)
    for step in (0, 10):
        saved(first, step, head=trained + step)
    saved(second, 10, head=trained + 10)
    for start, step in ((first, 20), (second, 20), (second, 30)):
        saved(start, step, head=trained + step)
    for step in (10, 20, 30):
        state = files.read_checkpoint(files.path_of(tmp_path, step)).state["value"]
        assert np.array_equal(state["head"], trained + step)
        assert np.array_equal(state["backbone"], FROZEN["backbone"])


def test_what_was_refused_is_not_named_again(tmp_path: Path) -> None:
    start = Start(tmp_path)
    for step in (0, 10):
        saved(start, step)
    path = unchanged_file(tmp_path, 10)
    path.write_bytes(path.read_bytes()[:-5] + b"wrong")
    again = Start(tmp_path)
    assert again.restore() == 0
    for step in (5, 20, 30, 40):
        saved(again, step)
        assert newest(tmp_path).manifest.step == max(step, 5)


def test_an_old_writer_is_refused_when_a_later_one_has_removed_its_file(tmp_path: Path) -> None:
    new = Start(tmp_path)
    state = pack_state({"frozen": FROZEN["backbone"]})
    tensors = UnchangedTensors(tmp_path)
    tensors.set_aside(5, state)
    records, _ = tensors.set_aside(10, state)  # it has not written its checkpoint yet
    for step in (0, 12, 20, 30):
        assert aside(10)[0] in names(tmp_path)
        saved(new, step)
    assert aside(10)[0] not in names(tmp_path), "all checkpoints are newer"
    with pytest.raises(FileNotFoundError):
        writer.check_named(files.path_of(tmp_path, 10), records)


def test_a_checkpoint_without_its_other_file_is_not_listed_as_good(tmp_path: Path) -> None:
    start = Start(tmp_path)
    for step in (0, 10):
        saved(start, step)
    alone = tmp_path / "alone"
    alone.mkdir()
    path = files.path_of(alone, 10)
    path.write_bytes(files.path_of(tmp_path, 10).read_bytes())
    for read in (files.read_manifest, files.read_checkpoint):
        with pytest.raises(CheckpointError, match=r"needs unchanged-.* copy the whole directory"):
            read(path)
    forged = path.read_bytes().replace(b"unchanged-", b"../changed-")
    path.write_bytes(forged)
    with pytest.raises(CheckpointError):
        files.read_manifest(path)


def test_a_file_of_the_format_before_is_read(tmp_path: Path) -> None:
    """It has one checksum of all data, and none of each tensor."""
    state = pack_state(STATE)
    payload = b"".join(map(bytes, serialized(state.blobs, {})[1:]))
    records = {name: asdict(TensorRecord.of(blob)) for name, blob in state.blobs.items()}
    for record in records.values():
        del record["sha256"], record["file"]
    about = {**asdict(MANIFEST), "state": state.tree, "tensors": records}
    metadata = {
        "edl-checkpoint": "2",
        "sha256": "0" * 64,
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
        "manifest": json.dumps(about, separators=(",", ":")),
    }
    header = bytes(serialized(state.blobs, metadata)[0])
    header = header.replace(b"0" * 64, hashlib.sha256(header).hexdigest().encode(), 1)
    path = files.path_of(tmp_path, 7)
    path.write_bytes(header + payload)
    found = files.read_checkpoint(path)
    assert found.manifest == MANIFEST
    np.testing.assert_array_equal(found.state["array"], STATE["array"], strict=True)  # type: ignore[call-overload]
    path.write_bytes(header + payload[:-1] + bytes([payload[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="its data do not fit their checksum"):
        files.read_checkpoint(path)
