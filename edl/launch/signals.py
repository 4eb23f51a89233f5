"""Signals that ask a command of ours to end, which then ends in its own way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

TO_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """``handler`` has these signals; afterwards whoever had them before.

    The end of the terminal stays ignored if it is, for that is what `nohup` is for. Outside of the
    main thread Python does not allow any of this, and nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [one for one in numbers if not _ignored_by_nohup(one)]
    before = {number: signal.signal(number, handler) for number in ours}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _ignored_by_nohup(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN
