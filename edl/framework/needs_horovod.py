"""Raise an ImportError that says how to install Horovod, if Horovod is not installed.

The error is raised when this module is imported; it offers nothing else. Modules of edl that need
Horovod import it before they import Horovod.
"""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("horovod") is None:
    raise ImportError(
        "edl.torch and edl.tensorflow need Horovod, and there is none here: run `edl build-horovod`"
    )
