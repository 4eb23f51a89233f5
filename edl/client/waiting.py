"""What all requests to a running job share: it must run, and they wait with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from edl.coordination.job_store import JobStore
from edl.core.records import JobState, Snapshot
from edl.errors import CoordinationError, JobEnded, TimedOut, UsageError

POLL_S = 0.2
DISCOVERY_S = 5.0  # horovodrun calls its discovery script once a second
OnMessage = Callable[[str], None]  # called with sentences about how far it is


def silent(_told: str) -> None:
    """A ``Tell`` for callers that do not want to hear."""


class Messages:
    """Tells on, and knows what was told last."""

    def __init__(self, tell: OnMessage = silent) -> None:
        self._tell = tell
        self.last = ""

    def __call__(self, told: str) -> None:
        self.last = told
        self._tell(told)


def running(store: JobStore, what: str) -> Snapshot:
    """The job as it stands. ``what``: "scale job digits", for the message.

    Under horovodrun it may just have begun: then the first word of `edl-discover` is waited for.

    Raises:
        UsageError: it does not run.
    """
    deadline = time.monotonic() + DISCOVERY_S
    while True:
        now = store.snapshot()
        if now.job.state is not JobState.RUNNING:
            raise UsageError(f"cannot {what}: it is {now.job.state}")
        if now.desired.hosts or time.monotonic() >= deadline:
            return now
        time.sleep(POLL_S)


def resizable(store: JobStore, what: str) -> Snapshot:
    """The same of a job whose size can be asked for.

    Raises:
        UsageError: it does not run, or nothing is desired of it: others say how many there are.
    """
    now = running(store, what)
    if not now.desired.hosts:
        raise UsageError(
            f"cannot {what}: it is for the host discovery script of horovodrun to say how "
            "many workers there are; use `--host-discovery-script edl-discover`, without --file"
        )
    return now


def looks(
    store: JobStore, timeout_s: float, what: str, messages: Messages, late: str = ""
) -> Iterator[Snapshot]:
    """The job as it stands, again and again, until the caller has seen enough.

    While ZooKeeper does not answer it waits on. For the message when it is late: ``what`` is not
    done ("moving w3"), what ``story`` told last, and ``late``, which says what then stands.

    Raises:
        TimedOut: not enough was seen within ``timeout_s``.
        JobEnded: the job has ended.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        away = ""
        try:
            now = store.snapshot()
        except CoordinationError as error:
            away = str(error)
        else:
            yield now
            if now.job.state.over:
                state = f"{now.job.state}: {now.job.reason}"
                raise JobEnded(store.name, f"{what} is not done: job {store.name} is {state}")
        if time.monotonic() >= deadline:
            parts = filter(None, (away or messages.last, late))
            message = f"{what} is not done after {timeout_s:g} s"
            raise TimedOut(store.name, "; ".join((message, *parts)))
        time.sleep(POLL_S)
