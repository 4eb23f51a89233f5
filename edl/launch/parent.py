"""What ties a process to the one that began it: it dies with it, or sees that nobody listens."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from types import FrameType

from edl.core.host.process import exit_status
from edl.launch.signals import TO_END, handled

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """In a child, before its program begins: it is killed when its parent dies, of whatever."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def behind_a_shell() -> None:
    """Go on as a child of this process, where no shell stands between it and horovodrun.

    horovodrun tells the children of what it has started that they are to end, and then freezes and
    kills that. It means a shell, which Bash as `/bin/sh` is not any more: it has become the last
    command, this one. So this process waits in the shell's place. Both live as long as each other.
    """
    began = os.getpid()
    if os.getppid() != os.getsid(0):  # the leader of the session is horovodrun's
        return
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != began:
            os._exit(1)
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    with handled(TO_END, pass_on):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(exit_status(code))


def is_unread(output: int) -> bool:
    """Whether nobody can read any more what is written to a pipe or a socket."""
    look = select.poll()
    look.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))
