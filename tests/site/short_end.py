"""Shortens the end of processes that tests fork; imported last by those they are forked from.

Python's own end is as ever in what is forked: exit handlers, destructors of the script, files, the
exit code. What is left out are the modules that it was forked with (:mod:`early_end`), the
destructors of the C++ libraries, which come after it, and that PyTorch takes back the operators it
has registered: a fifth of a second of processor time in each process, nearly all of it to copy
shared pages before they are freed. `edl run` and `edl join`, which users start without PyTorch and
TensorFlow, and tests with them, leave out Python's end, too, after their exit handlers.
"""

import atexit
import ctypes
import os
import sys
import threading
import weakref
from typing import Any, NoReturn

import early_end

import edl.cli

_MAIN = os.path.join(os.path.dirname(edl.cli.__file__), "main.py")
_c = ctypes.CDLL(None)
_c.on_exit(_c._exit, None)  # exit() calls the last one first: so this comes after all that follow,
_c.__cxa_atexit(_c.fflush, None, None)  # and all output is written before

for _one, _what in weakref.finalize._registry.items():
    if _what.func.__module__ == "torch.library":
        _one.atexit = False

_exit = sys.exit


def _end(status: Any = None) -> NoReturn:
    caller = sys._getframe(1).f_code
    if (caller.co_name, caller.co_filename) != ("main", _MAIN):
        _exit(status)
    threading._shutdown()  # as the interpreter does: it waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


sys.exit = _end
early_end.keep()
