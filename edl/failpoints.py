"""Announce named points (failpoints) of a worker's life to listeners, when the worker passes them.

Tests use them to kill a worker at an exact point, and so does ``edl chaos``: they call
:func:`subscribe`, and the code of the worker calls :func:`reached`. Without a listener the
announcements change nothing in what a worker does. A listener may raise RingBroken at ``records``
and ``averaged``: then this worker has missed a collective that other workers may have completed.

===============  ==================================================================================
``warmed_up``    a newcomer has warmed up and is about to say that it is ready
``boundary``     between two steps, before a switch that may be due
``step``         a batch is handed out, the step record is on its way
``accumulated``  a batch's gradients are accumulated, the step goes on with another batch
``gradient``     the first gradient of the step is on its way
``records``      the worker is about to wait for the records of the others
``averaged``     the averaged gradients of the step have arrived, none is stored yet
``reduced``      all gradients of the step are averaged, none is applied
``applied``      the update is applied, the ledger not yet moved
``exchange``     between two steps, the worker is about to exchange numbers with the others
``exchanged``    the numbers of all workers in an exchange have arrived
``agreed``       all workers have agreed to switch, the old ring still exists
``closed``       the old ring is closed
``build``        the worker is about to build a new ring
``built``        the new ring exists, no newcomer has the state yet
``broadcast``    the state is being sent
``broken``       the ring failed, the worker has not reported it yet
``reported``     the worker has reported its last complete step and waits for the repair
``deciding``     the leader has decided and is about to write the decision (daemon thread)
``decided``      the leader has written the decision (daemon thread)
``finish``       the worker has trained to the end and is about to say so
===============  ==================================================================================
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

NAMES = (
    "warmed_up", "boundary", "step", "accumulated", "gradient", "records", "averaged", "reduced",
    "applied", "exchange", "exchanged", "agreed", "closed", "build", "built", "broadcast",
    "broken", "reported", "deciding", "decided", "finish",
)  # fmt: skip
_listeners: list[Callable[[str], None]] = []
_last: dict[int, tuple[str, float]] = {}


def subscribe(listener: Callable[[str], None]) -> None:
    """Have `listener(name)` called at each failpoint passed, in the thread that passes it."""
    _listeners.append(listener)


def unsubscribe(listener: Callable[[str], None]) -> None:
    """Take back one `subscribe` of `listener`; do nothing if it is not subscribed."""
    if listener in _listeners:
        _listeners.remove(listener)


def reached(name: str) -> None:
    """Call all listeners, in this thread, with the failpoint `name` that the worker has reached."""
    _last[threading.get_ident()] = (name, time.monotonic())
    for listener in _listeners:
        listener(name)


def last(thread: int) -> tuple[str, float]:
    """Return the failpoint that a thread has passed last, and when (`time.monotonic()`)."""
    return _last.get(thread, ("", 0.0))
