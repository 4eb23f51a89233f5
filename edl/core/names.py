"""Define which texts can be the name of a job, a host, a queue or a cluster."""

from __future__ import annotations

import re

RULE = "1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)"
"""The same as a regular expression, of Python and of JSON schema. Python's ``$`` alone would accept
a line break at the end."""

_NAME = re.compile(PATTERN)


def is_name(name: str) -> bool:
    """Return whether ``name`` can be the name of a job, a host, a queue or a cluster.

    A name has 1 to 64 letters, digits, dots, dashes and underscores, and begins with a letter or a
    digit.
    """
    return _NAME.match(name) is not None
