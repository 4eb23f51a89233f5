"""What ties a process to the one that began it: it dies with it, or sees that nobody listens."""

from __future__ import annotations

import ctypes
import select
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In a child, before its program begins: it is killed when its parent dies, of whatever."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def is_unread(output: int) -> bool:
    """Whether nobody can read any more what is written to a pipe or a socket."""
    look = select.poll()
    look.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))
