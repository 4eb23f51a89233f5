"""The file of a checkpoint: everything comes back, and nothing but a whole file is accepted."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import struct
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from edl.checkpoint import format as files
from edl.checkpoint import safetensors
from edl.checkpoint.format import Manifest, pack_state
from edl.checkpoint.safetensors import Blob
from edl.errors import CheckpointError

MANIFEST = Manifest(
    job="digits",
    run="r1",
    step=7,
    epoch=1,
    framework="torch",
    source={"total": 10, "seed": 0, "shuffle": True, "batch_size": 4},
    ledger={"total": 10, "epoch": 1, "free": [[3, 10]], "leases": {}},
    saved_at=1.5,
)
STATE = {
    "numbers": [1, -(2**70), 2.5, float("inf"), True, None, np.float32(0.5), np.int64(3)],
    0: ("a", b"\x00\xff", {}),
    ("key", 1): OrderedDict(x="y"),
    "array": np.arange(100, dtype=np.int16).reshape(4, 25),
    "empty": np.empty((0, 3), dtype=np.float64),
    "scalar": np.array(1.25),
    "blob": Blob("torch", "bfloat16", (3,), memoryview(b"abcdef"), "cuda"),
    "types": [np.arange(2).astype(dtype) for dtype in ("?", "u2", ">i4", "c8", "c16", "f2")],
    "text": np.array(["a", "łódź"]),
}


class Plain(dict[str, int]):
    """A dict of the script's own."""


def written(directory: Path, step: int = 7) -> Path:
    path = files.path_of(directory, step)
    files.write(path, MANIFEST, pack_state(STATE))
    return path


def test_everything_comes_back(tmp_path: Path) -> None:
    path = written(tmp_path)
    checkpoint = files.read_checkpoint(path)
    assert (checkpoint.path, checkpoint.manifest) == (path, MANIFEST)
    state = checkpoint.state
    assert state["numbers"] == [1, -(2**70), 2.5, float("inf"), True, None, 0.5, 3]
    assert state[0] == ("a", b"\x00\xff", {})
    assert state["key", 1] == {"x": "y"}
    for name in ("array", "empty", "scalar", "text"):
        np.testing.assert_array_equal(state[name], STATE[name], strict=True)  # type: ignore[call-overload]
    for mine, theirs in zip(state["types"], STATE["types"], strict=True):
        np.testing.assert_array_equal(mine, theirs, strict=True)
    blob = state["blob"]
    assert (blob.kind, blob.dtype, blob.shape, blob.device) == ("torch", "bfloat16", (3,), "cuda")
    assert bytes(blob.data) == b"abcdef"


def test_other_tools_find_the_tensors_by_their_path(tmp_path: Path) -> None:
    model = {
        "0.weight": np.ones((2, 3), np.float32),
        "0.bias": np.zeros(2),
        "bool": np.ones(1, "?"),
    }
    state = {
        "model": model,
        "tracked": [np.arange(4, dtype=">i2"), np.array(2, np.int16), np.empty((0, 2), "c8")],
        "a": {"b": np.ones(1)},
        "a.b": np.ones(2),
        "__metadata__": np.ones(3),
        "bfloat16": Blob("torch", "bfloat16", (3,), memoryview(b"abcdef")),
    }
    path = files.path_of(tmp_path, 7)
    size = files.write(path, MANIFEST, pack_state(state))
    assert size == path.stat().st_size
    with safe_open(path, "numpy") as file:
        assert json.loads(file.metadata()["manifest"])["step"] == 7
        assert file.get_slice("bfloat16").get_dtype() == "BF16"  # numpy has none
        tensors = {
            name: file.get_tensor(name) for name in sorted(file.keys()) if name != "bfloat16"
        }
    for name, array in model.items():
        np.testing.assert_array_equal(tensors[f"model.{name}"], array, strict=True)
    assert tensors["tracked.0"].tobytes() == state["tracked"][0].tobytes()  # as bytes
    np.testing.assert_array_equal(tensors["tracked.1"], state["tracked"][1], strict=True)
    np.testing.assert_array_equal(tensors["tracked.2"], state["tracked"][2], strict=True)
    assert sorted(len(tensors[name]) for name in tensors if name.startswith("a.b")) == [1, 2]


def test_a_state_without_arrays_and_one_that_is_an_array(tmp_path: Path) -> None:
    path = files.path_of(tmp_path, 7)
    for state in ({"a": 1}, np.arange(3)):
        files.write(path, MANIFEST, pack_state(state))
        assert np.array_equal(files.read_checkpoint(path).state, state)
        assert len(load_file(path)) == isinstance(state, np.ndarray)


def test_nothing_else_is_left_in_the_directory(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert os.listdir(tmp_path) == [path.name]


def test_a_file_is_synced_before_its_name_and_the_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def syncing(descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        calls.append("sync directory" if target == tmp_path else f"sync {target.suffix}")
        fsync(descriptor)

    def replacing(source: Path, target: Path) -> None:
        assert source.parent == target.parent
        assert files.read_checkpoint(source).manifest == MANIFEST  # it is complete already
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(os, "replace", replacing)
    written(tmp_path)
    assert calls == ["sync .tmp", "rename", "sync directory"]


@pytest.mark.parametrize(("code", "fails"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_syncs_no_directories_is_good_enough(
    code: int, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def syncing(descriptor: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")) == tmp_path:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", syncing)
    with pytest.raises(OSError, match="error") if fails else contextlib.nullcontext():
        written(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        written(tmp_path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_a_torn_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="is torn"):
            files.read_manifest(path)
    path.write_bytes(whole)
    assert files.read_checkpoint(path).manifest == MANIFEST


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x04]) + whole[place + 1 :])
        with pytest.raises(CheckpointError):
            files.read_checkpoint(path)


OPENING = b'{"__metadata__":{"edl-checkpoint":"'
CHECKSUM = b',"sha256":"' + b"0" * 64 + b'"}}'


def with_length(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"PK\x03\x04 a file of torch.save", "is no checkpoint of edl"),
        (b"not ours", "is no checkpoint of edl"),
        (with_length(b'{"__metadata__":{"format":"pt"}}'), "is no checkpoint of edl"),
        (with_length(OPENING + b'x"}}'), "is no checkpoint of edl"),
        (
            with_length(OPENING + b'1"' + CHECKSUM),
            "has format 1; this edl reads the formats 2 and 3",
        ),
        (with_length(OPENING + b'2"' + CHECKSUM), "header does not fit its checksum"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = files.path_of(tmp_path, 1)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=sentence):
        files.read_manifest(path)


@dataclass(frozen=True)
class LaterManifest(files.Manifest):
    added: int = 1


def test_what_a_later_edl_has_added_to_the_manifest_is_passed_over(tmp_path: Path) -> None:
    path = files.path_of(tmp_path, 7)
    files.write(path, LaterManifest(**vars(MANIFEST)), pack_state(STATE))
    assert files.read_manifest(path) == MANIFEST


def test_a_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(CheckpointError, match="is damaged: it has"):
        files.read_checkpoint(path)


def test_what_is_not_data_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"state\['tracked'\]\[1\] is a builtins\.object"):
        pack_state({"tracked": [1, object()]})


def test_a_dict_keeps_its_kind(tmp_path: Path) -> None:
    counts = Counter(cat=2)
    state = {
        "dicts": [counts, OrderedDict(x=counts, a=1), defaultdict(list, b=[1]), defaultdict(int)],
        "names it cannot": [defaultdict(lambda: 3, c=4), Plain(d=5)],
    }
    path = files.path_of(tmp_path, 7)
    files.write(path, MANIFEST, pack_state(state))
    found = files.read_checkpoint(path).state
    assert found == state
    assert [type(one) for one in found["dicts"]] == [type(one) for one in state["dicts"]]
    assert type(found["dicts"][1]["x"]) is Counter
    assert [one.default_factory for one in found["dicts"][2:]] == [list, int]
    assert [type(one) for one in found["names it cannot"]] == [dict, dict]


DATES = np.array(["2020-01-01", "NaT"], "M8[ns]")
ROWS = np.zeros(2, [("step", "i4"), ("loss", "f4")])


@pytest.mark.parametrize(
    "array",
    [
        DATES,
        DATES - DATES[0],
        np.ones(2, np.longdouble),
        np.array([b"a", b"bc"]),
        np.zeros(2, "V3"),
    ],
    ids=str,
)
def test_an_array_keeps_its_type(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    path = files.path_of(tmp_path, 7)
    files.write(path, MANIFEST, pack_state([array]))
    (found,) = files.read_checkpoint(path).state
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array, strict=True)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (ROWS, r"numpy\.ndarray of \[\('step', '<i4'\), \('loss', '<f4'\)\]"),
        (np.array([object()]), r"numpy\.ndarray of object"),
        (np.ma.masked_array([1, 2], [0, 1]), r"numpy\.ma\S*MaskedArray of int64"),
        (ROWS[0], r"numpy\.void"),
        (np.longdouble(1), r"numpy\.longdouble"),
        (np.complex64(1), r"numpy\.complex64"),
        (DATES[0], r"numpy\.datetime64"),
        (DATES[0] - DATES[0], r"numpy\.timedelta64"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_type_that_would_be_lost_is_refused(value: Any, sentence: str) -> None:
    sentence = rf"state\['rows'\] is a {sentence}\S*, which a checkpoint cannot hold"
    with pytest.raises(CheckpointError, match=sentence):
        pack_state({"rows": value})


def test_a_header_that_no_edl_reads_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(safetensors, "LONGEST_HEADER", 1 << 16)
    sentence = "its header would have 0.1 MB, and may have 0.1 MB at most: .* as NumPy arrays"
    with pytest.raises(CheckpointError, match=sentence):
        files.write(path, MANIFEST, pack_state({"tracked": bytes(40_000)}))  # two digits for each
    assert (os.listdir(tmp_path), path.read_bytes()) == ([path.name], before)


def test_the_newest_come_first_and_other_files_are_left_alone(tmp_path: Path) -> None:
    for step in (5, 100, 20):
        written(tmp_path, step)
    (tmp_path / "step-7.safetensors").touch()
    (tmp_path / "README").touch()
    assert files.checkpoint_files(tmp_path) == [
        files.path_of(tmp_path, step) for step in (100, 20, 5)
    ]


def test_the_newest_are_kept_and_refused_later_ones_do_not_count(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 90, 91):
        written(tmp_path, step)
    (tmp_path / "README").touch()
    files.prune(tmp_path, step=4, keep=2)
    kept = [files.path_of(tmp_path, step) for step in (91, 90, 4, 3)]
    assert files.checkpoint_files(tmp_path) == kept
    assert (tmp_path / "README").exists()


def test_leftovers_of_killed_writers_are_removed(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / f".{path.name}.1a2b3c4d.tmp").touch()
    (tmp_path / ".mine.tmp").touch()
    files.remove_leftovers(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".mine.tmp", path.name]


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot list"):
        files.checkpoint_files(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="cannot be read"):
        files.read_checkpoint(tmp_path / "nothing")
