"""Tie a process to its parent: kill it when the parent dies, or find out if its output is read.

A process calls :func:`die_with_parent` to be killed with its parent, :func:`behind_a_shell` to be a
child of a process that waits for it as a shell does, and :func:`is_unread` to ask about its output.
The functions are for Linux, and independent of each other.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from types import FrameType

from edl.core.host.exit_status import exit_status
from edl.launch.signals import TO_END, handled

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, unless that was before the call."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def behind_a_shell() -> None:
    """Fork and return in the child, while the parent waits for the child as a shell would."""
    # horovodrun signals the children of the shell that starts us, then kills the shell. But Bash as
    # /bin/sh replaces itself by its last command: we would be killed in its place. So the parent
    # stands in: it passes signals on, and exits with our code.
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
    """Return whether the reading end of the pipe or socket `output` is closed."""
    look = select.poll()
    look.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))
