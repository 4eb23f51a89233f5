"""An error that shows in a framework's thread, raised in the user's thread instead."""

from __future__ import annotations

import ctypes
import threading

from edl.errors import EdlError
from edl.framework import process


def raise_in(thread: int, error: EdlError) -> bool:
    """Raise ``error`` in the thread of that identifier, as soon as it runs Python again.

    For a thread that waits for a framework: it sees the error come from the call that it is in,
    while the framework, which would print a traceback and change the error's kind, knows nothing.
    If the framework makes an error of its own just then, ours strikes in the midst of that, and
    pybind11 wraps it in a RuntimeError: see :func:`edl.framework.process.unhiding`.

    Returns:
        False when there is no such thread, or when it is the calling one: raise it there.
    """
    process.hide(error)
    if thread == threading.get_ident():
        return False

    def __init__(self: EdlError) -> None:
        Exception.__init__(self, *error.args)

    # Python takes a class here, and calls it without arguments.
    kind = type(type(error).__name__, (type(error),), {"__init__": __init__})
    set_error = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return bool(set_error(ctypes.c_ulong(thread), ctypes.py_object(kind)))
