"""The bytes of a node: JSON, compressed if it is large."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from edl.errors import CoordinationError
from edl.zookeeper import reads
from edl.zookeeper.reads import COMPRESSED_FROM, decode, encode


def test_equal_objects_have_equal_bytes() -> None:
    assert encode({"b": 1, "a": "ä"}) == encode({"a": "ä", "b": 1}) == b'{"a":"\\u00e4","b":1}'
    assert decode("/x", b"") == {}


def test_a_large_object_is_compressed() -> None:
    value: dict[str, Any] = {f"job-{n}": f"place {n} in the queue" for n in range(20_000)}
    data = encode(value)
    assert len(data) < len(json.dumps(value)) / 4
    assert decode("/x", data) == value
    small = {"x": "y" * (COMPRESSED_FROM - 20)}
    assert encode(small).startswith(b"{")


@pytest.mark.parametrize(
    "data", [b"{", b"x\x9cno", zlib.compress(b"{"), zlib.compress(encode({"a": 1}))[:-6], b"[1]"]
)
def test_what_is_no_object_is_an_error(data: bytes) -> None:
    with pytest.raises(CoordinationError, match="the node /x does not hold"):
        decode("/x", data)


def test_no_more_is_decompressed_than_a_node_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode({"x": "y" * 100_000})
    monkeypatch.setattr(reads, "MOST_BYTES", 1000)
    with pytest.raises(CoordinationError, match="the node /x does not hold JSON"):
        decode("/x", data)
