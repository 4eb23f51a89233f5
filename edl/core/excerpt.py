"""What is kept of a text of any length: a script's error may be as long as a file.

A node of ZooKeeper holds 1 MB, and who sends it more is disconnected.
"""

from __future__ import annotations

from typing import Any

CHARS = 8000
_MARK_CHARS = 50  # so that an excerpt of an excerpt is the same


def excerpt(text: str, chars: int = CHARS) -> str:
    """``text`` if it has at most ``chars`` characters; else its beginning and its end."""
    if len(text) <= chars:
        return text
    half = (chars - _MARK_CHARS) // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[-half:]}"


def excerpts(value: Any) -> Any:
    """A JSON value with an :func:`excerpt` of each text in it."""
    if isinstance(value, str):
        return excerpt(value)
    if isinstance(value, dict):
        return {key: excerpts(one) for key, one in value.items()}
    return [excerpts(one) for one in value] if isinstance(value, list | tuple) else value
