"""Any lines and any records: read by index they are what a plain reader finds in the file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tfrecords import framed, read_all

import edl.data
from edl.data.text_file import TextLines

RECORDS = st.lists(st.binary(max_size=40), max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _cache() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        yield


@given(
    contents=st.lists(
        st.lists(st.sampled_from([b"\n", b"\r\n", b"\r", b"a", b"\xc3\xa9", b"\xff", b" "])).map(
            b"".join
        ),
        min_size=1,
        max_size=3,
    ),
    chunk=st.integers(1, 9),
    data=st.data(),
)
def test_lines(contents: list[bytes], chunk: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected: list[bytes] = []
        for n, content in enumerate(contents):
            (folder / str(n)).write_bytes(content)
            lines = content.split(b"\n")
            expected += [
                line.removesuffix(b"\r") for line in lines[: -1 if lines[-1] == b"" else None]
            ]
        source = TextLines(folder / "*", None, None, "error", chunk)
        assert list(source) == expected
        order = data.draw(st.permutations(range(len(expected))))
        assert source.__getitems__(order) == [expected[index] for index in order]

        good = [line.decode() for line in expected if b"\xff" not in line]
        if good:
            skipping = TextLines(folder / "*", "utf-8", None, "skip", chunk)
            assert list(skipping) == good
            assert len(skipping.skipped) == len(expected) - len(good)


@given(files=st.lists(RECORDS, min_size=1, max_size=3), data=st.data())
def test_records(files: list[list[bytes]], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for n, records in enumerate(files):
            (folder / str(n)).write_bytes(b"".join(map(framed, records)))
        expected = [
            record for n in range(len(files)) for record in read_all((folder / str(n)).read_bytes())
        ]
        for policy in ("error", "skip"):
            source = edl.data.tfrecord(folder / "*", on_error=policy)
            assert list(source) == expected == [record for file in files for record in file]
            order = data.draw(st.permutations(range(len(expected))))
            assert source.__getitems__(order) == [expected[index] for index in order]


@given(records=RECORDS, data=st.data())
def test_one_flipped_bit(records: list[bytes], data: st.DataObject) -> None:
    """It costs one record, or the rest of the file; never does a wrong record appear."""
    content = bytearray(b"".join(map(framed, [*records, b"one at least"])))
    records = [*records, b"one at least"]
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    starts = [0]
    for record in records:
        starts.append(starts[-1] + len(record) + 16)
    hit = max(n for n, start in enumerate(starts) if start <= at)
    in_length = at - starts[hit] < 12
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a"
        path.write_bytes(content)
        (Path(name) / "b").write_bytes(framed(b"sound"))
        source = edl.data.tfrecord(Path(name) / "*", on_error="skip")
        after = [] if in_length else records[hit + 1 :]
        assert list(source) == [*records[:hit], *after, b"sound"]
        ((_, skipped),) = source.skipped
        length = len(content) - starts[hit] if in_length else len(records[hit]) + 16
        assert (skipped.offset, skipped.bytes) == (starts[hit], length)
