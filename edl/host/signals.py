"""Handle the signals that ask a command to end, so that the command can end in its own way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# SIGUSR1 and SIGUSR2 are notices of preemption: of Slurm's --signal, of submitit, of Lightning.
TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
Handler = Callable[[int, FrameType | None], Any] | signal.Handlers


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Return a context manager; while it is entered, the signals `numbers` call `handler`."""
    if threading.current_thread() is not threading.main_thread():
        # Python allows handlers in the main thread only.
        yield
        return
    nohup = signal.SIGHUP if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else None
    before = {number: signal.signal(number, handler) for number in numbers if number is not nohup}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def child_ends_kept() -> Iterator[None]:
    """Let the system keep exit codes of children meanwhile, though SIGCHLD is ignored."""
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    with handled((signal.SIGCHLD,), signal.SIG_DFL):
        yield
