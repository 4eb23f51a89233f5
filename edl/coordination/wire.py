"""Convert JSON objects to the bytes of a ZooKeeper node and back: :func:`encode`, :func:`decode`.

Equal objects have equal bytes. A large object is compressed by zlib, for ZooKeeper takes at most
1 MB: what a cluster says of 10,000 jobs takes that, and a tenth of it compressed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from edl.errors import CoordinationError

COMPRESSED_FROM = 65_536  # bytes of JSON; most nodes stay readable by any tool
MOST_BYTES = 1 << 26  # of JSON that a compressed node may have
_LEVEL = 1  # the fastest one
_ZLIB = b"\x78"  # the first byte that zlib writes, with which no JSON begins


def encode(value: Mapping[str, Any]) -> bytes:
    """Return `value` as the ASCII bytes of compact JSON with sorted keys, compressed if large."""
    data = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return data if len(data) < COMPRESSED_FROM else zlib.compress(data, _LEVEL)


def decode(path: str, data: bytes, most_bytes: int | None = None) -> dict[str, Any]:
    """Return the JSON object in `data`, the bytes of the node at `path`; no bytes are `{}`."""
    if not data:
        return {}
    try:
        most = MOST_BYTES if most_bytes is None else most_bytes
        value = json.loads(_decompressed(data, most) if data.startswith(_ZLIB) else data)
    except (ValueError, zlib.error, RecursionError) as error:
        raise CoordinationError(f"the node {path} does not hold JSON: {error}") from error
    if not isinstance(value, dict):
        raise CoordinationError(f"the node {path} does not hold a JSON object")
    return value


def _decompressed(data: bytes, most_bytes: int) -> bytes:
    """Return the JSON in compressed `data`; cut off, so that it is none, if it is too large."""
    return zlib.decompressobj().decompress(data, most_bytes)
