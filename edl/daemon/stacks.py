"""Where the threads of a worker are, written down on a signal: also when no Python runs any more.

A worker that does not answer may hold Python's lock (the GIL) in a library, for ever. Python's
faulthandler writes from the signal handler itself, in C, and takes no lock.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal

logger = logging.getLogger(__name__)


def offer_stacks(path: str, number: int) -> None:
    """From now on signal ``number`` writes the stacks of all threads to the end of ``path``.

    The file is there from now on, and tells the agent that it may send the signal. Without a path
    or a number nothing happens, nor when the script has a handler for that signal.
    """
    if not path or not number or signal.getsignal(number) is not signal.SIG_DFL:
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)  # for good
        faulthandler.register(number, file=file, all_threads=True)
    except (OSError, ValueError, RuntimeError) as error:
        logger.warning("a worker that freezes will not say where: %s: %s", path, error)
