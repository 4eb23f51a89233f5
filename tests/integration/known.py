"""The secret of the job `digits`, which the tests of coordination know."""

from __future__ import annotations

from edl.zookeeper.access import Access

DIGITS = Access("digits", "0123456789abcdef" * 4)
