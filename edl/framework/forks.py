"""Forks of a worker: data loaders' processes, pools. None holds up its death, all can be ended.

A fork has copies of the worker's connections and of the port that it listens on. While it lives,
the others cannot see that the worker is gone: no connection closes, and its port does not refuse.
It has the worker's handler for SIGTERM as well, which would let it live on, for it has nothing to
leave. ``multiprocessing.Pool`` waits for the processes that it ends in this way, for ever.
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

_held = threading.local()  # the signal masks from before the forks that this thread is making


def free_all_forks() -> None:
    """From now on every fork of this process lets go of the network, and ends by SIGTERM."""
    end_forks_by_sigterm()
    _free_from_the_network()


@functools.cache
def end_forks_by_sigterm() -> None:
    """From now on SIGTERM ends every fork of this process, also right after it was made.

    One that comes before the fork has its own handler waits until then: SIGTERM is blocked in the
    forking thread meanwhile.
    """
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_let_sigterm_end)


@functools.cache
def _free_from_the_network() -> None:
    os.register_at_fork(after_in_child=let_go_of_the_network)


@contextmanager
def holding_sigterm() -> Iterator[None]:
    """Block SIGTERM in this thread. What it forks meanwhile has it blocked until it says other."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    _held.__dict__.setdefault("masks", []).append(before)


def _release() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.masks.pop())


def _let_sigterm_end() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _release()


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
