"""Write a sentence of an incident in both tenses, and choose one when the page is made.

What happens now is told in the present tense. Once the incident is over, that would become false:
the disk that "is full" has space again.
"""

from __future__ import annotations

import re

_BEGIN, _OR, _END = "\x02", "\x03", "\x04"  # which no text has
_TENSES = re.compile(f"{_BEGIN}([^{_OR}]*){_OR}([^{_END}]*){_END}")


def tenses(present: str, past: str) -> str:
    """Return a part of a text that has both forms of a verb, for `in_tense`."""
    return f"{_BEGIN}{present}{_OR}{past}{_END}"


def in_tense(text: str, is_over: bool) -> str:
    """Return `text` with its verbs in the past tense if what it tells `is_over`."""
    return _TENSES.sub(lambda found: found[2 if is_over else 1], text)
