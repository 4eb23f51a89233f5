"""Keeps the code that dataclasses generate, as Python keeps that of modules in `__pycache__`.

``@dataclass`` writes the methods of a class as text and compiles them: for the 180 dataclasses of a
process that imports edl this is a sixth of its start. All texts, and what they were compiled to,
are in a file beside the compiled modules. A process that tests are forked from adds to it what it
has compiled (:mod:`keeps_dataclasses`), and those that are started by ``exec`` read it.
"""

import dataclasses
import functools
import marshal
import os
import sys
from types import CodeType
from typing import Any

PLACE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__pycache__")
FILE = os.path.join(PLACE, f"dataclasses.{sys.implementation.cache_tag}")
MOST = 10_000  # texts: those of earlier versions of a class stay there, too

codes: dict[str, bytes] = {}  # what a text is compiled to, marshalled
compiled: set[str] = set()  # the texts that were compiled here


def read() -> dict[str, bytes]:
    """Return what is in the file; nothing if it is not there, or is that of another Python."""
    try:
        with open(FILE, "rb") as file:
            version, found = marshal.loads(file.read())
    except (OSError, EOFError, ValueError, TypeError):
        return {}
    return found if version == sys.version else {}


def _exec(text: str, *names: Any) -> None:
    """Stand in for the built-in `exec` in :mod:`dataclasses`."""
    kept = codes.get(text)
    code: CodeType = compile(text, "<string>", "exec") if kept is None else marshal.loads(kept)
    if kept is None:
        codes[text] = marshal.dumps(code)
        compiled.add(text)
    exec(code, *names)


class _Pattern:
    """By which dataclasses look three times at each annotation, of which few are different."""

    match = staticmethod(functools.cache(dataclasses._MODULE_IDENTIFIER_RE.match))  # type: ignore[attr-defined]


codes.update(read())
dataclasses.exec = _exec  # type: ignore[attr-defined]
dataclasses._MODULE_IDENTIFIER_RE = _Pattern  # type: ignore[attr-defined]
