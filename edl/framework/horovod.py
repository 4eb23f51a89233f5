"""Call Horovod's ``init()`` for edl (:func:`call_init`); edl's Horovod refuses a script's call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.basics import HorovodBasics

from edl.horovod_build import EDL_CALLS


def call_init(init: Callable[[], Any]) -> None:
    """Call `init`, marked as a call by edl; its exceptions pass through, its result is dropped."""
    setattr(HorovodBasics, EDL_CALLS, True)
    try:
        init()
    finally:
        setattr(HorovodBasics, EDL_CALLS, False)
