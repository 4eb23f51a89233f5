"""Read the policy of a job from what a script, a program or a command gives: a file, or its text.

The main entry is :func:`read_policy`. The text is not parsed here.
"""

from __future__ import annotations

import os
from pathlib import Path

from edl.errors import UsageError


def read_policy(policy: str | os.PathLike[str], reader: str) -> tuple[str, str]:
    """Return the text of a policy, and the name of its source for messages."""
    if isinstance(policy, str) and "\n" in policy:
        return policy, reader
    try:
        return Path(policy).read_text(), os.fspath(policy)
    except TypeError:
        raise UsageError(
            f"{reader} needs the file of a policy or its text, and was given {policy!r}"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"cannot read the policy {os.fspath(policy)}: {why}") from None
