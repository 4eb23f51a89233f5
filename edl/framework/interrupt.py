"""Raise, in the thread of the user's script, an error that edl found in a framework's thread.

There it would reach the script with another type, and the framework would print a traceback.
"""

from __future__ import annotations

import ctypes
import threading

from edl.errors import EdlError
from edl.framework.hidden_error import hide


def raise_in(thread: int, error: EdlError) -> bool:
    """Raise `error` in a thread once that runs Python code again; return whether it will."""
    # If the framework is raising an error of its own at that moment, pybind11 wraps `error` in a
    # RuntimeError, which `unhiding` turns back.
    hide(error)
    if thread == threading.get_ident():
        return False  # the caller raises it

    def __init__(self: EdlError) -> None:
        Exception.__init__(self, *error.args)

    # Python takes a class here, and calls it without arguments.
    kind = type(type(error).__name__, (type(error),), {"__init__": __init__})
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return bool(set_error(ctypes.c_ulong(thread), ctypes.py_object(kind)))
