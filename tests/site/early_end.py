"""Lets processes that tests fork end without taking apart what they were forked with.

At its end Python clears each module, here two thousand, whose pages are shared with the other
processes and so are copied first: that was two thirds of what a process cost that did nothing else.
A forked process now forgets the modules that it has from the beginning, last of its exit handlers,
and Python's end clears those that it has imported itself: the script's objects are destroyed as
ever, and files flushed. What only the other modules hold is not destroyed.

It is imported first, so that its exit handler is the last one, and `short_end` calls :func:`keep`.
"""

import atexit
import ctypes
import gc
import sys
from types import ModuleType

_here: dict[str, ModuleType] = {}  # which a forked process has from the beginning


def keep() -> None:
    """Note that the modules of this process are those that others are forked with."""
    _here.update(sys.modules)
    del _here["__main__"]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_here))  # it outlives Python itself


def _forget() -> None:
    """Forget the modules that were there from the beginning, of which no one is imported again."""
    sys.setswitchinterval(1e3)  # no other thread runs Python code any more
    gc.collect()  # what is garbage may still import something when it is destroyed
    for name, module in _here.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


atexit.register(_forget)
