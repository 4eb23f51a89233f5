"""Values to and from the bytes of a node: JSON, sorted, so equal values are equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edl.errors import CoordinationError


def encode(value: Mapping[str, Any]) -> bytes:
    """JSON bytes of ``value``."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decode(path: str, data: bytes) -> dict[str, Any]:
    """The JSON object in the node ``path``; an empty node is an empty object.

    Raises:
        CoordinationError: the node holds something else.
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
