"""Raise, in the thread of the user's script, an error that edl found in a framework's thread.

:func:`raise_in` does it.
"""

from __future__ import annotations

import ctypes
import threading

from edl.errors import EdlError
from edl.framework.hidden_error import hide


def raise_in(thread: int, error: EdlError) -> bool:
    """Raise an error in another thread, as soon as that thread runs Python code again.

    The call does not wait for that. It is for a thread that waits inside a call of a framework,
    such as ``fit``, which then seems to raise ``error``. (An error raised in the framework's own
    thread would reach the script with another type, and the framework would print a traceback.) If
    the framework is raising an error of its own at that moment, pybind11 wraps ``error`` in a
    RuntimeError, which :func:`edl.framework.hidden_error.unhiding` turns back into ``error``.

    Args:
        thread: the identifier of the other thread, as :func:`threading.get_ident` returns it.
        error: the error to raise. The thread gets a new exception, of a subclass of the error's
            class and with the error's arguments.

    Returns:
        Whether the error will be raised in that thread. False if there is no such thread, or if it
        is the calling thread, which must raise the error itself. ``unhiding`` knows the error in
        each case.
    """
    hide(error)
    if thread == threading.get_ident():
        return False

    def __init__(self: EdlError) -> None:
        Exception.__init__(self, *error.args)

    # Python takes a class here, and calls it without arguments.
    kind = type(type(error).__name__, (type(error),), {"__init__": __init__})
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return bool(set_error(ctypes.c_ulong(thread), ctypes.py_object(kind)))
