"""Read the JSON in the body of a request, which may have any bytes: :func:`decoded_json`."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from edl.errors import UsageError

T = TypeVar("T")


def decoded_json(body: bytes, kind: type[T]) -> T:
    """Return the JSON value in `body`, which must be of type `kind`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(_wrong_byte(body) or str(error)) from None


def _wrong_byte(body: bytes) -> str:
    """Return a sentence with the first byte of `body` that is not UTF-8; empty if all are."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        return f"the byte 0x{body[error.start]:02x} is not UTF-8; send JSON in UTF-8"
    return ""
