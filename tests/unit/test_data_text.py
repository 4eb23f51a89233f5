"""Lines: where they begin and end, and which of them are no text."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

import edl.data
from edl.data import Skipped
from edl.data.text_file import TextLines
from edl.errors import DataError, UsageError


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def written(tmp_path: Path, content: bytes, name: str = "a.txt") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"one", ["one"]),
        (b"one\n", ["one"]),
        (b"one\n\nthree", ["one", "", "three"]),
        (b"one\r\n\r\nthree\r\n", ["one", "", "three"]),
        (b"a\rb\n\r", ["a\rb", ""]),
        ("\ufeffone\n\ufefftwo".encode(), ["one", "\ufefftwo"]),
        ("Łódź\n日本\x85\u2028\n".encode(), ["Łódź", "日本\x85\u2028"]),
    ],
)
@pytest.mark.parametrize("on_error", ["error", "skip"])
def test_lines(tmp_path: Path, content: bytes, lines: list[str], on_error: str) -> None:
    source = edl.data.text_lines(written(tmp_path, content), on_error=on_error)
    assert len(source) == len(lines)
    assert list(source) == lines
    assert source.skipped == ()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_lines_across_chunks(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, b"first\n\nx\xff\nlast one")
    as_bytes = TextLines(path, None, None, "error", chunk_bytes=size)
    assert list(as_bytes) == [b"first", b"", b"x\xff", b"last one"]
    as_text = TextLines(path, "utf-8", None, "skip", chunk_bytes=size)
    assert list(as_text) == ["first", "", "last one"]


@pytest.mark.parametrize("on_error", ["error", "skip"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "UTF_8_SIG"])
def test_utf_8_with_a_byte_order_mark(tmp_path: Path, encoding: str, on_error: Any) -> None:
    path = written(tmp_path, "\ufeffone\n\ufefftwo\n".encode())
    lines = edl.data.text_lines(path, encoding=encoding, on_error=on_error)
    assert list(lines) == ["one", "\ufefftwo"]


def test_files_follow_one_another(tmp_path: Path) -> None:
    written(tmp_path, b"three", "b.txt")
    written(tmp_path, b"", "a2.txt")
    written(tmp_path, b"one\ntwo\n", "a.txt")
    source = edl.data.text_lines(str(tmp_path / "*.txt"), parse=str.upper)
    assert source.__getitems__([2, 0, -2, 2]) == ["THREE", "ONE", "TWO", "THREE"]
    with pytest.raises(IndexError, match="there is no record 3: the source has 3"):
        source[3]
    with pytest.raises(TypeError):
        source[0:1]  # type: ignore[index]


def test_a_line_that_is_no_text_is_named_with_its_byte(tmp_path: Path) -> None:
    path = written(tmp_path, b"one\nt\xffo\nthree\n")
    source = edl.data.text_lines(path)
    assert source[2] == "three"
    with pytest.raises(
        DataError, match=r"a.txt: the line at byte 4 is not valid utf-8 .* byte 5\)"
    ):
        source[1]
    assert edl.data.text_lines(path, encoding="latin-1")[1] == "tÿo"


def test_lines_that_are_no_text_are_left_out_for_all(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xc3\none\n\x80\x80\r\ntwo\ncut \xe2\x82")
    source = edl.data.text_lines(path, on_error="skip")
    assert list(source) == ["one", "two"]
    reason = "the line is not valid utf-8"
    assert source.skipped == (
        (str(path), Skipped(0, 1, reason)),
        (str(path), Skipped(6, 3, reason)),
        (str(path), Skipped(14, 6, reason)),
    )


def test_wrong_use_gets_a_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, b"\xff\n")
    with pytest.raises(DataError, match=r"nothing is left of 1 text file: .*a.txt at byte 0"):
        edl.data.text_lines(path, on_error="skip")
    for encoding in ("utf-9", "utf\0", "rot13"):
        with pytest.raises(UsageError, match=re.escape(f"there is no encoding {encoding!r}")):
            edl.data.text_lines(path, encoding=encoding)
    with pytest.raises(UsageError, match="lines cannot be found in utf-16"):
        edl.data.text_lines(path, encoding="utf-16")
    with pytest.raises(UsageError, match="on_error is 'ignore'; it is 'error' or 'skip'"):
        edl.data.text_lines(path, on_error="ignore")  # type: ignore[call-overload]
    packed = written(tmp_path, gzip.compress(b"one\n"), "b.txt.gz")
    for policy in ("error", "skip"):
        with pytest.raises(DataError, match=r"b.txt.gz is compressed \(gzip\); records are read"):
            edl.data.text_lines(packed, on_error=policy)


def test_what_fails_to_parse_is_named(tmp_path: Path) -> None:
    source = edl.data.text_lines(written(tmp_path, b"1\ntwo\n"), parse=int)
    assert source[0] == 1
    with pytest.raises(ValueError, match="two") as caught:
        source[1]
    assert caught.value.__notes__ == [f"while parsing {tmp_path}/a.txt, the record at byte 2"]
