"""Shorten texts of any length, such as a script's error message, before they are stored.

A node of ZooKeeper holds 1 MB, and ZooKeeper disconnects a client that sends more.
"""

from __future__ import annotations

from typing import Any

CHARS = 8000
_MARK_CHARS = 50  # so that an excerpt of an excerpt is the same


def excerpt(text: str, chars: int = CHARS) -> str:
    """Return ``text``, or its beginning and its end if it is longer than ``chars`` characters.

    The result has at most ``chars`` characters; a mark in its middle says how many were left out.
    """
    if len(text) <= chars:
        return text
    half = (chars - _MARK_CHARS) // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def excerpts(value: Any) -> Any:
    """Return a copy of a JSON ``value`` in which each text is replaced by its :func:`excerpt`."""
    if isinstance(value, str):
        return excerpt(value)
    if isinstance(value, dict):
        return {key: excerpts(one) for key, one in value.items()}
    return [excerpts(one) for one in value] if isinstance(value, list | tuple) else value
