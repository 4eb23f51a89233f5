"""Named points of a worker's life, announced as it passes them.

For tests that kill a worker at an exact point, and for `edl chaos`. Nothing here changes what a
worker does: without a listener an announcement is one comparison. A listener may raise RingBroken
at ``records`` and ``averaged``: then this worker has missed what the others may have.

===============  ==================================================================================
``warmed up``    a newcomer has warmed up and is about to say that it is ready
``boundary``     between two steps, before a switch that may be due
``step``         a batch is handed out, the step record is on its way
``accumulated``  a batch's gradients are added up here, the step goes on with another batch
``gradient``     the first gradient of the step is on its way
``records``      about to wait for the records of the others
``averaged``     the averages of the step's gradients are here, none is taken over
``reduced``      all gradients of the step are averaged, none is applied
``applied``      the update is applied, the ledger not yet moved
``exchange``     between two steps, about to exchange numbers with the others
``exchanged``    everybody's numbers of an exchange are in
``agreed``       all have agreed to switch, the old ring still stands
``closed``       the old ring is closed
``build``        about to build a new ring
``built``        the new ring stands, nobody has the state yet
``broadcast``    the state is being sent
``broken``       the ring failed, nobody was told yet
``reported``     the last complete step is reported, the repair is waited for
``deciding``     the leader has decided and is about to write it down (daemon thread)
``decided``      the leader has written it down (daemon thread)
``finish``       trained to the end, about to say so
===============  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable

NAMES = (
    "warmed_up", "boundary", "step", "accumulated", "gradient", "records", "averaged", "reduced",
    "applied", "exchange", "exchanged", "agreed", "closed", "build", "built", "broadcast",
    "broken", "reported", "deciding", "decided", "finish",
)  # fmt: skip

_listeners: list[Callable[[str], None]] = []


def subscribe(listener: Callable[[str], None]) -> None:
    """Call ``listener(name)`` at each point from now on, in the thread that passes it."""
    _listeners.append(listener)


def unsubscribe(listener: Callable[[str], None]) -> None:
    """Call it no more. Nothing happens when it was not called."""
    if listener in _listeners:
        _listeners.remove(listener)


def reached(name: str) -> None:
    """Announce that this worker is at the point ``name``."""
    for listener in _listeners:
        listener(name)
