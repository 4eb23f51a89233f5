"""Call Horovod's ``init()`` for edl; edl's build of Horovod refuses a call by a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from horovod.common.basics import HorovodBasics

from edl.horovod_build import EDL_CALLS


def call_init(init: Callable[[], Any]) -> None:
    """Call ``init``, the ``init()`` of one of Horovod's bindings, marked as a call by edl.

    edl's build of Horovod raises an error for a call without this mark.
    """
    setattr(HorovodBasics, EDL_CALLS, True)
    try:
        init()
    finally:
        setattr(HorovodBasics, EDL_CALLS, False)
