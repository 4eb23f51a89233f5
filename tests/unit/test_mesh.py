"""What a member is told of a mesh: of each other one's value the part that is meant for it."""

from __future__ import annotations

import struct

import pytest

from edl.errors import RingError
from edl.ring.rendezvous import ADDRESS_BYTES, MESH_BYTES, MOST_MEMBERS, MeshRequest, question


def address(owner: int, peer: int, width: int = ADDRESS_BYTES) -> bytes:
    return f"{owner} awaits {peer}".encode().ljust(width, b".")


def published(owner: int, size: int) -> bytes:
    return b"".join(address(owner, peer) for peer in range(size) if peer != owner)


def split(answer: bytes, size: int) -> list[bytes]:
    lengths = struct.unpack_from(f"!{size}I", answer)
    assert len(answer) == 4 * size + sum(lengths)
    begin, parts = 4 * size, []
    for length in lengths:
        parts.append(answer[begin : begin + length])
        begin += length
    return parts


@pytest.mark.parametrize("size", [2, 3, 7, 64])
def test_each_rank_gets_the_addresses_that_are_meant_for_it(size: int) -> None:
    values = [published(owner, size) for owner in range(size)]
    for rank in range(size):
        asked = question(f"global/edl-addresses/{size}/{rank}")
        assert asked is not None
        assert asked.keys == tuple(f"global/{owner}" for owner in range(size))
        expected = [address(owner, rank) if owner != rank else b"" for owner in range(size)]
        assert split(asked.answer(values), size) == expected


def test_hosts_are_told_as_they_are() -> None:
    asked = question("local_host0/edl-hosts/3")
    assert asked == MeshRequest("local_host0", 3, -1)
    assert asked.keys == ("local_host0/rank_0", "local_host0/rank_1", "local_host0/rank_2")
    assert split(asked.answer([b"one", b"", b"\x00\xff"]), 3) == [b"one", b"", b"\x00\xff"]


@pytest.mark.parametrize(
    "key",
    ["global/1", "global/rank_1", "edl/go", "edl-hosts/2", "global/edl-hosts/x", "a/edl-hosts/"],
)
def test_other_keys_ask_no_mesh(key: str) -> None:
    assert question(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "global/edl-hosts/0",
        "global/edl-hosts/1",
        f"global/edl-hosts/{MOST_MEMBERS + 1}",
        "global/edl-addresses/1/0",
        "global/edl-addresses/3/3",
        "global/edl-addresses/3/999999999",
    ],
)
def test_a_mesh_that_cannot_be_is_refused(key: str) -> None:
    with pytest.raises(RingError, match=f"{key}: a ring has 2 to 1024 members here"):
        question(key)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ([6, 6, 3], "3 or 6 bytes"),
        ([6, 4, 6], "4 or 6 bytes"),
        ([3, 3, 3], "3 bytes"),
        ([0, 0, 0], "0 bytes"),
    ],
)
def test_values_that_hold_no_address_for_each_other_member_are_refused(
    stored: list[int], said: str
) -> None:
    for rank in range(3):
        with pytest.raises(RingError, match=f"3 members of global stored {said} of addresses"):
            MeshRequest("global", 3, rank).answer([bytes(length) for length in stored])


def test_the_limit_is_that_of_a_full_mesh() -> None:
    assert MOST_MEMBERS * len(published(0, MOST_MEMBERS)) == MESH_BYTES
