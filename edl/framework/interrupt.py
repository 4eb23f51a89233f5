"""Raise an error, which was found in a framework's thread, in the user's thread instead."""

from __future__ import annotations

import ctypes
import threading

from edl.errors import EdlError
from edl.framework import process


def raise_in(thread: int, error: EdlError) -> bool:
    """Raise ``error`` in another thread, as soon as that thread runs Python code again.

    Used for a thread that waits for a framework. The error seems to come from the call that the
    thread is in, and the framework, which would print a traceback and change the error's type, does
    not notice. If the framework is making an error of its own at that moment, ours interrupts that,
    and pybind11 wraps ours in a RuntimeError: see :func:`edl.framework.process.unhiding`.

    Args:
        thread: the identifier of the thread, as of :func:`threading.get_ident`.
        error: the error to raise.

    Returns:
        Whether the error will be raised there. False if there is no such thread, or if it is the
        calling thread, which can raise the error itself.
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
