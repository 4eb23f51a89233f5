"""What a worker reports of a broken ring: short for people, and a rank where it is clear."""

from __future__ import annotations

import pytest

from edl.records import RingMember
from edl.worker.switching import MAX_CHARS, blamed_rank, short_error

CLOSED = (
    "Horovod has been shut down: [/x/third_party/gloo/gloo/transport/tcp/pair.cc:603] "
    "Connection closed by peer [10.0.0.2]:31427\nand more"
)


def ring(*addresses: str) -> tuple[RingMember, ...]:
    return tuple(
        RingMember(i, f"h{i}", 0, address, 4000 + i) for i, address in enumerate(addresses)
    )


def test_an_error_is_one_line_without_source_files() -> None:
    assert short_error(CLOSED) == (
        "Horovod has been shut down: Connection closed by peer [10.0.0.2]:31427"
    )
    everybody = "Horovod has been shut down. This was caused by an exception on one of the ranks"
    assert short_error(everybody) == "another worker has left it"
    assert short_error("") == ""
    assert len(short_error("x" * 1000)) == MAX_CHARS


@pytest.mark.parametrize(
    ("addresses", "own", "rank"),
    [
        (("10.0.0.1", "10.0.0.2", "10.0.0.3"), 0, 1),
        (("10.0.0.1", "10.0.0.2", "10.0.0.2"), 0, None),  # two on that host
        (("10.0.0.1", "10.0.0.2", "10.0.0.2"), 2, 1),  # the other one is this worker
        (("10.0.0.1", "10.0.0.3"), 0, None),
    ],
)
def test_a_rank_is_blamed_where_its_address_is_its_own(
    addresses: tuple[str, ...], own: int, rank: int | None
) -> None:
    assert blamed_rank(CLOSED, ring(*addresses), own) == rank


def test_nobody_is_blamed_by_an_error_without_an_address() -> None:
    assert blamed_rank("Wait timeout after 30 seconds", ring("10.0.0.1", "10.0.0.2"), 0) is None
