"""Lines of a log as a terminal would show them, whatever the parts in which the log is read."""

from __future__ import annotations

import pytest

from edl.host.output import LineBuffer

LOG = b"one\r\n\ntwo\n\r  0%|\r 50%|#\r100%|##\n\xff\nthree\r 10%|"
LINES = ["one", "", "two", "100%|##", "\ufffd"]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(LOG)])
def test_parts_of_any_size(size: int) -> None:
    buffer = LineBuffer(100)
    parts = [LOG[start : start + size] for start in range(0, len(LOG), size)]
    assert [line for part in parts for line in buffer.add(part)] == LINES
    assert buffer.bar == " 10%|"
    assert buffer.finish() == [" 10%|"]
    assert buffer.finish() == []


def test_a_long_line_comes_in_pieces() -> None:
    buffer = LineBuffer(4)
    assert [buffer.add(b"abc"), buffer.add(b"def"), buffer.add(b"g\n")] == [[], ["abcdef"], ["g"]]


def test_a_bar_is_due_when_it_has_changed() -> None:
    buffer = LineBuffer(100)
    buffer.add(b"no bar")
    assert buffer.due_bar(0.0) == []
    buffer.add(b"\n\r 10%|\r 20%|")
    assert buffer.due_bar(100.0) == []
    assert buffer.due_bar(0.0) == [" 20%|"]
    assert buffer.due_bar(0.0) == []
    buffer.add(b"\r 30%|")
    assert buffer.due_bar(0.0) == [" 30%|"]
