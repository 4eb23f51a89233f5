"""Durations as people read and write them."""

from __future__ import annotations

import pytest

from edl.core.duration import rounded, seconds


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
