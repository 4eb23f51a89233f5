"""Shorten long texts: before they are written to ZooKeeper, and to the width of a terminal.

The entry points are :func:`excerpt` for one text, such as a script's error message,
:func:`excerpts` for all texts of a JSON value, and :func:`cropped` for a line on a terminal. A node
of ZooKeeper holds at most 1 MB, and ZooKeeper disconnects a client that sends more.
:func:`printable` makes one line of a text that others have written.
"""

from __future__ import annotations

from typing import Any

CHARS = 8000
_MARK_CHARS = 50  # so that an excerpt of an excerpt is the same


def excerpt(text: str, chars: int = CHARS) -> str:
    """Return `text`, or its beginning and its end with at most `chars` characters in all."""
    if len(text) <= chars:
        return text
    half = (chars - _MARK_CHARS) // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def excerpts(value: Any) -> Any:
    """Return a copy of `value` in which each text longer than 8000 characters is an excerpt."""
    if isinstance(value, str):
        return excerpt(value)
    if isinstance(value, dict):
        return {key: excerpts(one) for key, one in value.items()}
    return [excerpts(one) for one in value] if isinstance(value, list | tuple) else value


def cropped(text: str, width: int) -> str:
    """Return `text`, made printable, with at most `width` characters, then with an ellipsis."""
    shown = printable(text)
    return shown if len(shown) <= width else f"{shown[: max(0, width - 1)]}…"


def printable(text: str) -> str:
    """Return `text` as one line that a terminal, a log and UTF-8 can have."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
