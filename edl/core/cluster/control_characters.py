"""Find the characters that no text of a manifest may have."""

from __future__ import annotations

import re

# Ranges of a regular expression, of Python and of JSON schemas.
CONTROL = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff"
_FIRST = re.compile(rf"[{CONTROL}\ud800-\udfff]")


def first_control_character(text: str) -> tuple[str, int] | None:
    """Return the first character of `text` that YAML does not allow, and its index."""
    found = _FIRST.search(text)
    return None if found is None else (found[0], found.start())
