"""Translate the exit code of a worker process for a shell, for a sentence, and from a wrapper.

The exit code of a process is -n if signal n killed it, else 0 to 255. A shell shows 128 + n for a
kill by signal n, and ends with that itself if its last command was killed.
"""

from __future__ import annotations

import signal

UNKNOWN_EXIT = -1000  # it ended, and only its parent could have learned how: it is gone, or did

# They kill a process that has an error, lacks memory or is told to end. A script seldom ends with
# 128 plus one of these by itself.
_DEADLY = (
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGKILL,
    signal.SIGSEGV,
    signal.SIGTERM,
)


def exit_status(code: int) -> int:
    """Return the exit status, 0 to 255, that a shell shows for the exit `code` of a process."""
    if code == UNKNOWN_EXIT:
        return 1
    return 128 - code if code < 0 else code


def killed_in_wrapper(code: int) -> int:
    """Return -n for 128 + n, the code of a wrapper (a shell script) with a command killed by n."""
    # Not for a script that has reported its end: it has chosen the code.
    return 128 - code if code - 128 in _DEADLY else code


def how(code: int) -> str:
    """Return an exit code in words, such as "was killed by SIGKILL" for -9."""
    if code == UNKNOWN_EXIT:
        return "ended (an earlier agent had started it, or others reaped it: how is not known)"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"
