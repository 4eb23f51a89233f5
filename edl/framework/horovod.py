"""Horovod's ``init()``, called by edl: our build of Horovod refuses it to a worker's script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.basics import HorovodBasics

from edl.horovod_build import EDL_CALLS


def call_init(init: Callable[[], Any]) -> None:
    """Call ``init()`` of one of Horovod's bindings."""
    setattr(HorovodBasics, EDL_CALLS, True)
    try:
        init()
    finally:
        setattr(HorovodBasics, EDL_CALLS, False)
