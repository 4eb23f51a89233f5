"""Let the forks of a worker (data loader processes, pools) close its sockets and end by SIGTERM.

A fork has copies of the worker's connections, and of the port that the worker listens on. While the
fork lives, other workers cannot see that the worker is gone: no connection closes, and the port
does not refuse. The fork also has the worker's handler for SIGTERM, which asks the worker to leave
the job. With this handler SIGTERM would not end the fork, and ``multiprocessing.Pool``, which ends
its processes by this signal, would wait for them for ever. :func:`free_all_forks` does all of it.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# What asks a worker to leave; Slurm's --signal, submitit and Lightning send SIGUSR1 or SIGUSR2.
NOTICES = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

_held = threading.local()  # the signal masks from before the forks that this thread is making


def free_all_forks() -> None:
    """Make every future fork of this process close its internet sockets, and let SIGTERM end it."""
    end_forks_by_sigterm()
    _free_from_the_network()


@functools.cache
def end_forks_by_sigterm() -> None:
    """Let SIGTERM end every future fork of this process, even right after the fork was made."""
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_let_sigterm_end)


@functools.cache
def _free_from_the_network() -> None:
    os.register_at_fork(after_in_child=let_go_of_the_network)


@contextmanager
def holding_sigterm() -> Iterator[None]:
    """Block SIGTERM in this thread, and in forks that it makes, during the `with` block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NOTICES)
    _held.__dict__.setdefault("masks", []).append(before)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.masks.pop())


def _let_sigterm_end() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for number in NOTICES[1:]:  # else a notice to all processes of a host would kill this one
        if is_ours(signal.getsignal(number)):
            signal.signal(number, signal.SIG_IGN)
    _release()


def is_ours(handler: object) -> bool:
    """Return whether a handler of a signal is one that lets this worker leave."""
    return getattr(handler, "__module__", "") == "edl.framework.notices"


def let_go_of_the_network() -> None:
    """Replace every internet socket of this process, a fork, by the null device `/dev/null`."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in [int(name) for name in os.listdir("/proc/self/fd")]:
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode) and _is_internet(descriptor):
                # Not closed: who still knows the number might close a file that is opened later.
                os.dup2(null, descriptor, inheritable=False)
        except OSError:
            continue  # the descriptor of the listing itself
    os.close(null)


def _is_internet(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as duplicate:
        return duplicate.family in (socket.AF_INET, socket.AF_INET6)
