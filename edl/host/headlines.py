"""Combine a job's events into the lines that an agent shows: one for each crash, join or leave.

A crash is several events, and one line that begins with the cause: "step 72: w0 was killed by
SIGKILL; w1 and w2 went on after 0.18 s; a replacement starts". It is held back until the last of
its events has come, or for :data:`HOLD_S` (5) seconds: then it says what is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from edl.errors import NO_PROGRAM_EXIT
from edl.event_text import longest_stall, without_step_s
from edl.events import (
    EndedDetails,
    Event,
    EventKind,
    EvictedDetails,
    GenerationDetails,
    SwitchDetails,
)
from edl.host.process import LAST_LINE, UNSTARTED_EXIT, how
from edl.text import counted, verb

UNSTARTED = (UNSTARTED_EXIT, NO_PROGRAM_EXIT)
HOLD_S = 5.0  # the longest time that a line waits for its other events

# An agent's last line says how the job has ended, and rank 0 itself warns of epochs that are left
# early. Leaders, and workers that end well, are left to `edl events`.
NOT_SHOWN = frozenset(
    {
        EventKind.LEADER,
        EventKind.EPOCH_LEFT,
        EventKind.WORKER_EXITED,
        EventKind.FINISHED,
        EventKind.JOB_FINISHED,
        EventKind.JOB_FAILED,
        EventKind.JOB_STOPPED,
    }
)
# Kinds of events whose reason is clear without the name of the kind before it.
SELF_EVIDENT = frozenset({EventKind.GENERATION, EventKind.DESIRED, EventKind.STALLED})


class Headlines:
    """A collector that combines the events of one job, as they come, into lines for a terminal."""

    # Workers of `host` write to the same terminal: the last lines of their output are not repeated.
    def __init__(self, host: str) -> None:
        self._host = host
        self._causes: dict[str, str] = {}  # worker -> how it ended, not shown yet
        self._reported: set[str] = set()  # workers whose end was shown
        self._left: list[str] = []  # by the repairs that are not shown yet
        self._repair: Event | None = None
        self._planned: Event | None = None
        self._ready: Sequence[str] = ()
        self._since_s: float | None = None  # when the first part came that is not shown

    def take(
        self, events: Iterable[Event], wanted: int, now_s: float, ready: Sequence[str] = ()
    ) -> list[str]:
        """Return the lines to show, given the newest events, each passed once; call it often."""
        self._ready = ready
        lines = [line for event in events for line in self._take(event, wanted)]
        waits = bool(self._causes) or self._repair is not None or self._planned is not None
        if not waits:
            self._since_s = None
        elif self._since_s is None:
            self._since_s = now_s
        elif now_s - self._since_s >= HOLD_S:
            lines += self.rest(wanted)
        return lines

    def rest(self, wanted: int) -> list[str]:
        lines = [] if self._planned is None else [_line(self._planned)]
        self._planned = None
        if self._repair is not None or self._causes:
            lines += self._crash(wanted, None)
        self._since_s = None
        return lines

    def _take(self, event: Event, wanted: int) -> list[str]:
        details = event.details
        if isinstance(details, EndedDetails) and event.kind is EventKind.WORKER_FAILED:
            return self._ended(event, details)
        if isinstance(details, EvictedDetails):
            if details.worker not in self._reported:
                cause = event.reason.removeprefix(f"{details.worker} ")
                self._causes.setdefault(details.worker, cause)
            return []
        if isinstance(details, GenerationDetails):
            return self._generation(event, details)
        if isinstance(details, SwitchDetails):
            return self._switched(event, details, wanted)
        return [] if event.kind in NOT_SHOWN else [_line(event)]

    def _ended(self, event: Event, details: EndedDetails) -> list[str]:
        if details.worker in self._reported:
            return []
        here = details.host == self._host
        cause = ("" if here else f"on {details.host} ") + how(details.exit_code or 0)
        shown = here and details.exit_code not in UNSTARTED
        if LAST_LINE in event.reason and not shown:
            cause += LAST_LINE + event.reason.partition(LAST_LINE)[2]
        if details.worker is None:  # it was in no ring
            return [f"step {event.step}: slot {details.slot} {cause}"]
        self._causes[details.worker] = cause
        return []

    def _generation(self, event: Event, details: GenerationDetails) -> list[str]:
        if not details.members:
            return []  # the job ends, which the agent's last line says
        before, self._planned = self._planned, None
        lines = [] if before is None else [_line(before)]
        if details.repair and details.left:
            self._repair = event
            self._left += [name for name in details.left if name not in self._left]
            return lines
        if details.left or (details.joined and event.generation > 1):
            self._planned = event
            return lines
        return [*lines, _line(event)]

    def _switched(self, event: Event, details: SwitchDetails, wanted: int) -> list[str]:
        old = [parts for parts in details.workers.values() if parts.role == "old"]
        if self._repair is not None and self._repair.generation <= event.generation:
            return self._crash(wanted, max(map(without_step_s, old), default=None))
        planned = self._planned
        if planned is None or planned.generation > event.generation:
            return []  # it was told already, without what it has cost
        self._planned, longest = None, longest_stall(details)
        if longest is None or not longest.stall_s:
            return [_line(planned)]
        still = f"; the others stood still for {_seconds(longest.stall_s)}"
        return [_line(planned) + still]

    def _crash(self, wanted: int, seconds: float | None) -> list[str]:
        repair, causes = self._repair, self._causes
        left = self._left or [*causes]
        parts = [", ".join(_causes({name: causes.get(name, "left the ring") for name in left}))]
        step = 0
        if repair is not None and isinstance(repair.details, GenerationDetails):
            step, members = repair.step, repair.details.members
            went = "go on" if seconds is None else f"went on after {_seconds(seconds)}"
            went = went if len(members) > 1 or seconds is not None else "goes on"
            parts.append(f"{_names(members)} {went}")
            lacking = max(0, wanted - len(members))
            if ready := self._ready[:lacking]:
                parts.append(f"{_names(ready)} {verb(len(ready), 'waits', 'wait')} to join")
            if lacking == len(ready) + 1:
                parts.append("a replacement starts")
            elif lacking > len(ready):
                parts.append(f"{counted(lacking - len(ready), 'replacement')} start")
        others = {name: how_ for name, how_ in causes.items() if name not in left}
        self._reported |= {*left, *others}
        self._causes, self._left, self._repair = {}, [], None
        when = f"step {step}: " if repair is not None else ""
        return [when + "; ".join(parts), *_causes(others)]


def _line(event: Event) -> str:
    kind = "" if event.kind in SELF_EVIDENT else f"{event.kind}: "
    return f"step {event.step}: {kind}{event.reason}"


def _causes(causes: Mapping[str, str]) -> list[str]:
    alike: dict[str, list[str]] = {}
    for name, cause in causes.items():
        alike.setdefault(cause, []).append(name)
    texts = []
    for cause, names in alike.items():
        were = f"were {cause[4:]}" if len(names) > 1 and cause.startswith("was ") else cause
        texts.append(f"{_names(names)} {were}")
    return texts


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def _names(names: Iterable[str]) -> str:
    some = [*names]
    if len(some) > 6:
        return f"{counted(len(some), 'worker')}"
    return " and ".join([", ".join(some[:-1]), some[-1]] if len(some) > 1 else some)
