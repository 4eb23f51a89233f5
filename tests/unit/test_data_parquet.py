"""Parquet files: values as they arrive, row groups, damage."""

from __future__ import annotations

import builtins
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import edl.data
from edl.data import parquet_file
from edl.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(name: str, start: int = 0, stop: int = 10, group: int = 4) -> str:
    rows = range(start, stop)
    texts = pa.array([f"row {row}" for row in rows], pa.string())
    table = pa.table({"n": pa.array(rows, pa.int64()), "text": texts})
    pq.write_table(
        table,
        name,
        row_group_size=group,
        write_page_checksum=True,
        use_dictionary=False,
        compression="none",
    )
    return name


def numbers(source: edl.data.Dataset[Any]) -> list[int]:
    return [int(record["n"]) for record in source]


def test_rows_across_groups_and_files() -> None:
    written("a.parquet", 0, 10)
    written("b.parquet", 10, 10)
    written("c.parquet", 10, 15)
    source = edl.data.parquet("*.parquet")
    assert numbers(source) == list(range(15))
    for copy in (source, pickle.loads(pickle.dumps(source))):
        records = copy.__getitems__([14, 3, 4, -15, 3])
        assert [record["n"] for record in records] == [14, 3, 4, 0, 3]
        assert records[0] == {"n": 14, "text": "row 14"}
    assert list(edl.data.parquet("a.parquet", columns=["text"])[0]) == ["text"]
    assert edl.data.parquet("a.parquet", parse=lambda row: row["n"] * 2)[9] == 18


def test_values() -> None:
    columns = {
        "i": pa.array([1, 2], pa.int16()),
        "f": pa.array([0.5, float("nan")], pa.float32()),
        "b": pa.array([True, False]),
        "s": pa.array(["łódź", ""]),
        "raw": pa.array([b"\xff", b""]),
        "none": pa.array([None, 3], pa.int64()),
        "few": pa.array([None, 3], pa.uint8()),
        "maybe": pa.array([True, None]),
        "list": pa.array([[1.0, 2.0], []], pa.list_(pa.float64())),
        "large": pa.array([[], [7]], pa.large_list(pa.int8())),
        "fixed": pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)),
        "holes": pa.array([[1, None], [2, 3]], pa.list_(pa.int16())),
        "gone": pa.array([None, [2, 3]], pa.list_(pa.float32())),
        "pairs": pa.array([None, [2, 3]], pa.list_(pa.int8(), 2)),
        "nested": pa.array([[[1], [2, 3]], []], pa.list_(pa.list_(pa.int64()))),
        "struct": pa.array([{"a": 1}, {"a": 2}]),
        "word": pa.array(["x", "x"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), "a.parquet")
    first, second = edl.data.parquet("a.parquet")
    assert first["i"].dtype == np.int16
    assert (first["i"], second["i"]) == (1, 2)
    assert first["f"].dtype == np.float32
    assert np.isnan(second["f"])
    assert (bool(first["b"]), bool(second["b"])) == (True, False)
    assert (first["s"], first["raw"]) == ("łódź", b"\xff")
    for name, dtype in {"none": np.int64, "few": np.uint8}.items():  # beside a missing one, too
        assert (first[name], second[name]) == (None, 3)
        assert second[name].dtype == dtype
    assert (bool(first["maybe"]), second["maybe"]) == (True, None)
    for name, rows in {"list": ([1.0, 2.0], []), "large": ([], [7])}.items():
        assert [first[name].tolist(), second[name].tolist()] == list(rows)
    assert first["fixed"].dtype == np.int32
    assert [first["fixed"].tolist(), second["fixed"].tolist()] == [[1, 2], [3, 4]]
    assert first["holes"] == [1, None]
    assert (first["gone"], first["pairs"]) == (None, None)
    for name, dtype in {"holes": np.int16, "gone": np.float32, "pairs": np.int8}.items():
        assert second[name].dtype == dtype
        assert second[name].tolist() == [2, 3]
    assert (first["nested"], first["struct"], first["word"]) == ([[1], [2, 3]], {"a": 1}, "x")
    first["list"][0] = 5.0  # a copy, which may be written to


def test_a_batch_decodes_each_row_group_once_and_keeps_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[int] = []
    read_group = parquet_file.read_group

    def counting(file: Any, number: int, columns: list[str]) -> Any:
        decoded.append(number)
        return read_group(file, number, columns)

    monkeypatch.setattr(parquet_file, "read_group", counting)
    roomy = edl.data.parquet(written("a.parquet"))
    roomy.__getitems__([9, 0, 8, 1, 5, 4])
    roomy.__getitems__([9, 0, 5])
    assert decoded == [0, 1, 2]
    decoded.clear()
    narrow = edl.data.parquet("a.parquet", cache_bytes=1)
    narrow.__getitems__([0, 1, 4])
    narrow.__getitems__([5, 0])
    assert decoded == [0, 1, 0, 1]


# --- damage ---


def damage_group(name: str, group: int, column: int = 0) -> int:
    metadata = pq.read_metadata(name)
    begin = metadata.row_group(group).column(0).data_page_offset
    chunk = metadata.row_group(group).column(column)
    content = bytearray(Path(name).read_bytes())
    content[chunk.data_page_offset + chunk.total_compressed_size - 2] ^= 0x10
    Path(name).write_bytes(content)
    return int(begin)


@pytest.mark.parametrize("column", [0, 1])
def test_a_damaged_row_group(folder: Path, column: int) -> None:
    offset = damage_group(written("a.parquet"), 1, column)
    source = edl.data.parquet("a.parquet")
    assert source[3]["n"] == 3
    with pytest.raises(DataError, match=rf"a.parquet: row group 1, at byte {offset}, cannot be re"):
        source[4]
    skipping = edl.data.parquet("a.parquet", on_error="skip")
    assert numbers(skipping) == [0, 1, 2, 3, 8, 9]
    ((path, skipped),) = skipping.skipped
    assert (path, skipped.offset) == (str(folder / "a.parquet"), offset)
    assert "row group 1: " in skipped.reason
    metadata = pq.read_metadata("a.parquet").row_group(1)
    assert skipped.bytes == sum(metadata.column(n).total_compressed_size for n in (0, 1))


def test_a_value_that_python_does_not_have_is_damage() -> None:
    days = pa.array([0, 10**9], pa.int32()).cast(pa.date32())  # the year 2,739,877
    pq.write_table(pa.table({"day": days}), "a.parquet", row_group_size=1)
    source = edl.data.parquet("a.parquet")
    assert str(source[0]["day"]) == "1970-01-01"
    with pytest.raises(DataError, match=r"a.parquet: row group 1, at byte \d+, cannot be read: "):
        source[1]
    assert len(edl.data.parquet("a.parquet", on_error="skip")) == 1


def test_texts_take_no_more_memory_than_is_counted() -> None:
    texts = [f"row {row}" for row in range(20_000)]
    pq.write_table(pa.table({"text": texts}), "a.parquet")
    source = edl.data.parquet("a.parquet")
    source[0]  # imports
    tracemalloc.start()
    try:
        source = edl.data.parquet("a.parquet")
        assert source[1] == {"text": "row 1"}
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 50 * len(texts), "no Python object for each text"


def test_only_the_columns_that_are_read_matter() -> None:
    damage_group(written("a.parquet"), 1, column=1)
    assert numbers(edl.data.parquet("a.parquet", columns=["n"], on_error="skip")) == list(range(10))


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_file_without_a_footer(folder: Path, damage: str) -> None:
    written("b.parquet", 10, 12)
    content = Path(written("a.parquet")).read_bytes()
    content = {"cut": content[:-20], "empty": b"", "text": b"n,text\n" * 20}[damage]
    Path("a.parquet").write_bytes(content)
    with pytest.raises(DataError, match=rf"a.parquet cannot be read at byte \d+ of {len(content)}"):
        edl.data.parquet("*.parquet")
    source = edl.data.parquet("*.parquet", on_error="skip")
    assert numbers(source) == [10, 11]
    ((path, skipped),) = source.skipped
    assert (path, skipped.offset, skipped.bytes) == (str(folder / "a.parquet"), 0, len(content))


def test_a_file_that_changed() -> None:
    source = edl.data.parquet(written("a.parquet"))
    written("a.parquet", 0, 11)
    with pytest.raises(DataError, match=r"a.parquet has changed since the job began to read it"):
        source[0]


def test_wrong_use_gets_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    written("a.parquet")
    pq.write_table(pa.table({"n": ["text"], "other": [1]}), "b.parquet")
    with pytest.raises(DataError, match=r"a.parquet has no column 'm'; it has n, text"):
        edl.data.parquet("a.parquet", columns=["m"])
    with pytest.raises(DataError, match=r"b.parquet and .*'n' is string in the first and int64 in"):
        edl.data.parquet("*.parquet", columns=["n"])
    pq.write_table(pa.table({"n": [1]}), "b.parquet")
    with pytest.raises(DataError, match=r"'text' is missing in the first and string in the second"):
        edl.data.parquet("*.parquet")
    twice = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["n", "n", "m"])
    pq.write_table(twice, "c.parquet")
    for columns in (None, ["m", "n"]):
        with pytest.raises(DataError, match=r"c.parquet has 2 columns named 'n'"):
            edl.data.parquet("c.parquet", columns=columns)
    assert edl.data.parquet("c.parquet", columns=["m"])[0] == {"m": 3}
    with pytest.raises(UsageError, match="columns is empty"):
        edl.data.parquet("a.parquet", columns=[])
    with pytest.raises(UsageError, match="on_error is 'no'"):
        edl.data.parquet("a.parquet", on_error="no")  # type: ignore[arg-type]
    imports = builtins.__import__

    def without_pyarrow(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return imports(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(UsageError, match=r"pip install 'edl-horovod\[parquet\]'"):
        edl.data.parquet("a.parquet")
