"""Imported first by what needs Horovod: where it is not installed, says how to get it."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("horovod") is None:
    raise ImportError(
        "edl.torch and edl.tensorflow need Horovod, and there is none here: run `edl build-horovod`"
    )
