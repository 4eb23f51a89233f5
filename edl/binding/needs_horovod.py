"""Raise an ImportError that says what to do, if Horovod is not installed or something hides it.

The error is raised when this module is imported; it offers nothing else. Modules of edl that need
Horovod import it before they import Horovod.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.find_spec("horovod")
if _spec is None or _spec.origin is None:  # None: a mere folder of that name beside the script
    raise ImportError(
        "edl.torch and edl.tensorflow need Horovod, and there is none here: run `edl build-horovod`"
    )
if not Path(_spec.origin).with_name("common").is_dir():
    raise ImportError(f"{_spec.origin} hides Horovod, which edl needs: give it another name")
