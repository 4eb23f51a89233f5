"""TFRecord files: sound ones, cut ones, damaged ones, and what is none."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from tfrecords import framed, masked_crc

import edl.data
from edl.data import Skipped, tfrecord_file
from edl.errors import DataError

RECORDS = [b"first", b"", b"x" * 1000, b"last"]
CONTENT = b"".join(map(framed, RECORDS))  # at bytes 0, 21, 37, 1053; ends at 1073


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(tmp_path: Path, content: bytes, name: str = "a.tfrecord") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :]


def test_the_checksum_is_the_one_of_the_format() -> None:
    """A value from RFC 3720 (B.4), and the mask's; so the tests' own writer is right as well."""
    assert tfrecord_file._sum(bytes(32)) == 0x8A9136AA
    for data in (b"", b"123456789", bytes(32)):
        assert tfrecord_file.masked(tfrecord_file._sum(data)) == masked_crc(data)


@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_records(tmp_path: Path, on_error: str) -> None:
    written(tmp_path, CONTENT, "a.tfrecord")
    written(tmp_path, b"", "b.tfrecord")
    written(tmp_path, framed(b"more"), "c.tfrecord")
    source = edl.data.tfrecord(tmp_path / "*.tfrecord", on_error=on_error)
    assert list(source) == [*RECORDS, b"more"]
    assert source.__getitems__([4, 0, 3]) == [b"more", b"first", b"last"]
    assert source.skipped == ()
    assert edl.data.tfrecord(tmp_path / "a.tfrecord", parse=len)[2] == 1000


DAMAGED = {
    "data": (flipped(CONTENT, 38 + 12), 37, 1016, "checksum of the record's data does not match"),
    "sum of data": (flipped(CONTENT, 1053 - 2), 37, 1016, "checksum of the record's data does not"),
}
LOST = {
    "length": (flipped(CONTENT, 39), 37, 1036, "the checksum of a record's length does not match"),
    "sum of length": (flipped(CONTENT, 37 + 9), 37, 1036, "the checksum of a record's length"),
    "cut in data": (CONTENT[:1050], 37, 1013, "the file ends within a record"),
    "cut in last sum": (CONTENT[:-1], 1053, 19, "the file ends within a record"),
    "cut in header": (CONTENT[:1060], 1053, 7, "the file ends within a record's header"),
    "cut in first": (CONTENT[:3], 0, 3, "the file ends within a record's header"),
    "no such file": (b"id,name\n" * 4, 0, 32, "is it a TFRecord file?"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_is_an_error_when_it_is_read(tmp_path: Path, name: str) -> None:
    content, offset, _, _ = DAMAGED[name]
    source = edl.data.tfrecord(written(tmp_path, content))
    assert source.__getitems__([0, 1, 3]) == [RECORDS[0], RECORDS[1], RECORDS[3]]
    sentence = rf"a.tfrecord: the record at byte {offset} is damaged: .* on_error='skip'"
    with pytest.raises(DataError, match=sentence):
        source[2]


@pytest.mark.parametrize("name", LOST)
def test_a_file_without_its_lengths_is_an_error_at_once(tmp_path: Path, name: str) -> None:
    content, offset, _, reason = LOST[name]
    with pytest.raises(DataError) as caught:
        edl.data.tfrecord(written(tmp_path, content))
    assert reason in str(caught.value)
    assert "a.tfrecord: " in str(caught.value)
    assert f" at byte {offset} of {len(content)}; " in str(caught.value)


@pytest.mark.parametrize("name", [*DAMAGED, *LOST])
def test_what_is_damaged_is_left_out(tmp_path: Path, name: str) -> None:
    content, offset, length, reason = (DAMAGED | LOST)[name]
    sound = written(tmp_path, CONTENT, "b.tfrecord")
    path = written(tmp_path, content)
    source = edl.data.tfrecord([path, sound], on_error="skip")
    before = sum(start < offset for start in (0, 21, 37, 1053))
    kept = RECORDS[:before] + (RECORDS[before + 1 :] if name in DAMAGED else [])
    assert list(source) == [*kept, *RECORDS]
    ((name, skipped),) = source.skipped
    assert (name, skipped.offset, skipped.bytes) == (str(path), offset, length)
    assert reason in skipped.reason


def test_a_record_that_is_damaged_later_is_an_error_even_then(tmp_path: Path) -> None:
    path = written(tmp_path, CONTENT)
    source = edl.data.tfrecord(path, on_error="skip")
    assert source[0] == b"first"  # it is open now
    path.write_bytes(flipped(CONTENT, 60))
    with pytest.raises(DataError, match=r"byte 37 is damaged: .*it was sound when it was indexed"):
        source[2]


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("zlib", zlib.compress)])
def test_a_compressed_file_gets_a_sentence(
    tmp_path: Path, policy: str, name: str, pack: object
) -> None:
    path = written(tmp_path, pack(CONTENT))  # type: ignore[operator]
    with pytest.raises(DataError, match=rf"compressed \({name}\); .* needs an uncompressed file"):
        edl.data.tfrecord(path, on_error=policy)


def test_two_damaged_records_side_by_side(tmp_path: Path) -> None:
    path = written(tmp_path, flipped(flipped(CONTENT, 13), 21 + 13))
    source = edl.data.tfrecord(path, on_error="skip")
    assert list(source) == RECORDS[2:]
    reason = "the checksum of the record's data does not match"
    assert [one for _, one in source.skipped] == [Skipped(0, 21, reason), Skipped(21, 16, reason)]
