"""How much a job may use of a host for each of its slots there."""

from __future__ import annotations

import pytest

from edl.cluster.host_jobs import NO_LIMITS, SlotLimits, slot_limits
from edl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("67108864", 64 << 20),
        ("64M", 64 << 20),
        ("16G", 16 << 30),
        ("1.5g", 3 << 29),
        ("500MB", 500 << 20),
        ("16GiB", 16 << 30),
        ("70000K", 70000 << 10),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert slot_limits(text, None, None) == SlotLimits(memory_bytes=size)


@pytest.mark.parametrize("text", ["", "G", "-1G", "1e3M", "16 gigabytes", "1P", "nan", "16G;x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="give bytes, or a size like 16G"):
        slot_limits(text, None, None)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("63M", None, None), "too little to start a worker"),
        (("0", None, None), "too little"),
        ((None, 0.0, None), "at least 0.01"),
        ((None, float("nan"), None), "at least 0.01"),
        ((None, float("inf"), None), "at least 0.01"),
        ((None, None, 10), "too few"),
    ],
)
def test_limits_with_which_nothing_starts_are_refused(
    values: tuple[str | None, float | None, int | None], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        slot_limits(*values)


def test_they_grow_with_the_slots() -> None:
    limits = slot_limits("1G", 0.5, 200)
    assert not limits.is_empty
    assert limits.properties(1) == (
        f"MemoryMax={1 << 30}",
        "MemorySwapMax=0",
        "CPUQuota=50%",
        "TasksMax=200",
    )
    assert limits.properties(3) == (
        f"MemoryMax={3 << 30}",
        "MemorySwapMax=0",
        "CPUQuota=150%",
        "TasksMax=600",
    )


def test_what_is_not_limited_is_not_named() -> None:
    assert NO_LIMITS.is_empty
    assert NO_LIMITS.properties(4) == ()
    assert slot_limits(None, None, 64).properties(2) == ("TasksMax=128",)
    assert slot_limits(None, 0.01, None).properties(1) == ("CPUQuota=1%",)
