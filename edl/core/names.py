"""Define which texts can be the name of a job, a host, a queue or a cluster."""

from __future__ import annotations

import re

RULE = "1 to 64 letters, digits, dots, dashes and underscores, beginning with a letter or a digit"
PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)"
"""The same as a regular expression, of Python and of JSON schema. Python's ``$`` alone would accept
a line break at the end."""

ALONE = "alone"
"""The name of the job of a script without a launcher."""

_NAME = re.compile(PATTERN)
_MADE_UP = re.compile(r".+-(?=[0-9]*[a-f])[0-9a-f]{4}")


def is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def ends_made_up(job: str) -> bool:
    """Return whether a name ends as those that edl makes up, like "train-3f9a", not "run-2024"."""
    return _MADE_UP.fullmatch(job) is not None


def is_given_name(job: str) -> bool:
    """Return whether a user has certainly given a job its name, and edl has not made it up."""
    return job != ALONE and not ends_made_up(job)
