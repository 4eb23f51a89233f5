"""Durations as people read and write them."""

from __future__ import annotations

import pytest

from edl.text import duration_in_words, rounded, seconds


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (-1.0, "0s"),
        (0.4, "0s"),
        (179.9, "179s"),
        (180.0, "3m"),
        (3 * 3600.0 - 1, "179m"),
        (3 * 3600.0, "3h"),
        (71 * 3600.0, "71h"),
        (400 * 86400.0, "400d"),
    ],
)
def test_it_is_written_in_its_largest_unit(duration_s: float, text: str) -> None:
    assert rounded(duration_s) == text
    assert (seconds(text) or 0.0) <= max(0.0, duration_s)


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (-1.0, "0 s"),
        (0.4, "0 s"),
        (2.6, "3 s"),
        (59.7, "1 min"),
        (250.0, "4 min 10 s"),
        (3600.0, "1 h"),
        (3 * 3600.0 + 300.0, "3 h 5 min"),
        (2 * 86400.0 + 4 * 3600.0 + 59.0, "2 d 4 h"),
        (86400.0 + 60.0, "1 d"),
    ],
)
def test_it_is_written_as_the_page_writes_it(duration_s: float, text: str) -> None:
    assert duration_in_words(duration_s) == text
