"""Imported last by a process that tests fork from: the ends of its forks free no libraries' memory.

Python's own end is as ever: exit handlers, destructors of the script, files, the exit code. What is
left out comes after it, the destructors of the C++ libraries: a tenth of a second of processor time
in each process, nearly all of it to copy shared pages before they are freed.
"""

import ctypes

_c = ctypes.CDLL(None)
_c.on_exit(_c._exit, None)  # exit() calls the last one first: so this comes after all that follow,
_c.__cxa_atexit(_c.fflush, None, None)  # and all output is written before
