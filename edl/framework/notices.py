"""Let SIGTERM, SIGUSR1 and SIGUSR2 make a worker leave its job: :func:`leave_on_notices`."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from edl.framework import ending
from edl.framework.forks import NOTICES, end_forks_by_sigterm, is_ours
from edl.worker.worker import Worker

Handler = Callable[[int, FrameType | None], object]

_own: dict[signal.Signals, Handler | None] = {}  # the script's


def leave_on_notices(worker: Worker) -> None:
    """Let `worker` leave at these signals, and call the script's own handler of SIGTERM then."""
    end_forks_by_sigterm()
    if threading.current_thread() is not threading.main_thread():  # Python allows it there only
        return
    for number in NOTICES:
        before = signal.getsignal(number)
        if not is_ours(before):
            if number is not signal.SIGTERM and _is_handled(number):
                continue  # the script uses it for something else
            _own[number] = before if callable(before) else None  # perhaps set since the last call
        signal.signal(number, _handler(worker, _own[number]))


def _handler(worker: Worker, own: Handler | None) -> Handler:
    def leave(number: int, frame: FrameType | None) -> None:
        def call() -> None:
            assert own is not None
            name = signal.Signals(number).name
            said = f"edl: {name}: the script's handler is called; this worker then leaves the job\n"
            with suppress(OSError):  # no print(): the signal may have come in the middle of one
                os.write(2, said.encode())
            own(number, frame)

        if not ending.has_begun():  # else this would end an exit handler, with a traceback
            worker.request_leave(None if own is None else call)

    return leave


def _is_handled(number: int) -> bool:
    """Return whether this process catches or ignores a signal, perhaps by faulthandler, in C."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    masks = re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
