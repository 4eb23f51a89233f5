"""Lets processes that tests fork write their threads' stacks to their stderr on SIGUSR2."""

import faulthandler
import signal
import sys

faulthandler.register(signal.SIGUSR2, file=sys.stderr.fileno(), all_threads=True)
