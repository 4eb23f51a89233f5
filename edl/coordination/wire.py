"""Convert JSON objects to the bytes of a ZooKeeper node and back: :func:`encode`, :func:`decode`.

Equal objects have equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edl.errors import CoordinationError


def encode(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as the ASCII bytes of compact JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decode(path: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``, the bytes of the node at ``path``; no bytes are ``{}``.

    Raises:
        CoordinationError: ``data`` is not JSON, or not a JSON object.
    """
    if not data:
        return {}
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CoordinationError(f"the node {path} does not hold JSON: {error}") from error
    if not isinstance(value, dict):
        raise CoordinationError(f"the node {path} does not hold a JSON object")
    return value
