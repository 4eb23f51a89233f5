"""Write the stacks of a worker's threads to a file on a signal, even if Python cannot run any more.

:func:`offer_stacks` chooses file and signal. A worker that does not answer may be stuck in a
library call that never releases Python's lock (the GIL). Python's faulthandler writes from the
signal handler itself, in C, and takes no lock.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal

logger = logging.getLogger(__name__)


def offer_stacks(path: str, number: int) -> None:
    """Make the signal `number` append the stacks of all threads to the file at `path`."""
    if not path or not number or signal.getsignal(number) is not signal.SIG_DFL:
        return
    try:
        # That the file is there tells the agent that it may send the signal.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)  # for good
        faulthandler.register(number, file=file, all_threads=True)
    except (OSError, ValueError, RuntimeError) as error:
        logger.warning("a worker that freezes will not say where: %s: %s", path, error)
