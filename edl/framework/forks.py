"""Forks of a worker, above all the processes of data loaders: none of them holds up its death.

A fork has copies of the worker's connections and of the port that it listens on. While it lives,
the others cannot see that the worker is gone: no connection closes, and its port does not refuse.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import stat


@functools.cache
def free_all_forks() -> None:
    """From now on every fork of this process lets go of the network, and ends by SIGTERM.

    The worker's own handler for SIGTERM would let a fork live on, for it has nothing to leave.
    """
    os.register_at_fork(after_in_child=_freed)


def _freed() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    let_go_of_the_network()


def let_go_of_the_network() -> None:
    """In a fork: put the null device in the place of every internet socket.

    The numbers stay taken, so that what still knows one of them closes nothing else.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _is_internet(descriptor):
                os.dup2(null, descriptor, inheritable=False)
        except OSError:
            continue  # the descriptor of the listing itself
    os.close(null)


def _is_internet(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        return duplicate.family in (socket.AF_INET, socket.AF_INET6)
