"""What all sources have in common: fingerprints, what is logged about them, PyTorch's loader."""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.utils.data
from tfrecords import framed

import edl.data
from edl.data import Skipped
from edl.data.dataset import LOGGED_ONE_BY_ONE, Dataset, Fragment, fingerprint_of, skip_events
from edl.errors import DataError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def text(folder: Path, **files: str) -> edl.data.Dataset[str]:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return edl.data.text_lines(folder / "*")


def test_the_fingerprint_knows_names_sizes_counts_and_places(folder: Path) -> None:
    one = text(folder / "one", a="x\ny\n", b="z")
    assert one.fingerprint.startswith("3 records in 2 text files of 5 bytes, digest ")
    assert repr(one) == f"<edl.data: {one.fingerprint}>"
    same = text(folder / "other", a="x\ny\n", b="z")
    os.utime(folder / "other" / "a", ns=(0, 0))
    assert same.fingerprint == one.fingerprint == pickle.loads(pickle.dumps(one)).fingerprint
    others = [
        text(folder / "name", a="x\ny\n", c="z"),
        text(folder / "size", a="x\ny\n", b="zz"),
        text(folder / "place", a="x\ny\n\n", b=""),
        text(folder / "count", a="x\nyz", b="z"),
        text(folder / "file", a="x\ny\n", b="z", c=""),
        text(folder / "order", a="z", b="x\ny\n"),
    ]
    assert len({each.fingerprint for each in [one, *others]}) == 1 + len(others)


def test_the_fingerprint_knows_what_is_left_out(folder: Path) -> None:
    for name, record in (("one", b"data"), ("other", b"dana")):
        (folder / name).mkdir()
        content = bytearray(framed(b"first") + framed(b"data") + framed(b"last"))
        content[21 + 12 : 21 + 16] = record
        (folder / name / "a").write_bytes(content)
    one, other = (
        edl.data.tfrecord(folder / name / "a", on_error="skip") for name in ("one", "other")
    )
    assert (len(one), len(other)) == (3, 2)
    assert one.fingerprint != other.fingerprint


def test_a_data_set_of_somebody_else_has_no_fingerprint() -> None:
    assert fingerprint_of([1, 2]) == ""
    assert list(skip_events([1, 2])) == []


def test_an_error_of_parse_does_not_end_a_loop_quietly(folder: Path) -> None:
    (folder / "a").write_text("1,2\n3\n4,5\n")
    seconds = edl.data.text_lines(folder / "a", parse=lambda line: line.split(",")[1])
    with pytest.raises(IndexError, match="list index out of range"):
        list(seconds)
    assert list(edl.data.text_lines(folder / "a")) == ["1,2", "3", "4,5"]


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize(
    "make", [edl.data.npy, edl.data.parquet, edl.data.text_lines, edl.data.tfrecord]
)
def test_a_compressed_file_is_a_mistake_and_not_left_out(
    folder: Path, make: Any, policy: str
) -> None:
    (folder / "a").write_bytes(gzip.compress(b"content"))
    with pytest.raises(DataError, match=r"/a is compressed \(gzip\); records are read by offset"):
        make(folder / "a", on_error=policy)


def test_threads_share_a_source(folder: Path) -> None:
    source = text(folder / "data", a="\n".join(map(str, range(2000))))
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(source.__getitem__, range(2000))) == [str(n) for n in range(2000)]


class Emptied(Dataset[Any]):
    def __init__(self, skipped: int) -> None:
        left_out = tuple(("f", Skipped(n, 2, "damage")) for n in range(skipped))
        super().__init__("text", [Fragment("f", 10, 1, 0, left_out)], None)

    def _read(self, part: int, rows: Sequence[int]) -> Sequence[Any]:
        return rows


def test_what_is_left_out_is_logged_in_a_limited_number_of_events() -> None:
    assert list(skip_events(Emptied(0))) == []
    few = list(skip_events(Emptied(2)))
    assert few[1] == (
        "f: 2 bytes from byte 1 are left out: damage",
        {"file": "f", "offset": 1, "bytes": 2},
    )
    many = list(skip_events(Emptied(LOGGED_ONE_BY_ONE + 7)))
    assert len(many) == LOGGED_ONE_BY_ONE + 1
    assert many[-1] == (
        "7 more parts of 1 file are left out, 14 bytes together",
        {"parts": 7, "files": 1, "bytes": 14},
    )


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["text", "parquet"])
def test_pytorch_takes_whole_batches(folder: Path, kind: str, num_workers: int) -> None:
    if kind == "text":
        source = text(folder / "data", a="\n".join(map(str, range(50))), b="50\n51\n")
    else:
        table = pa.table({"text": [str(n) for n in range(52)]})
        pq.write_table(table, folder / "a.parquet", row_group_size=5)
        source = edl.data.parquet(folder / "a.parquet", parse=lambda row: row["text"])
    assert source.__getitems__([0, 51]) == ["0", "51"]  # files are open when the loader forks
    loader = torch.utils.data.DataLoader(source, batch_size=8, num_workers=num_workers)  # type: ignore[arg-type]
    assert [line for batch in loader for line in batch] == [str(n) for n in range(52)]
