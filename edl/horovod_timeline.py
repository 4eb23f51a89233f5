"""Merge the timelines that the rings of a job have written into one, which Perfetto opens.

Horovod's rank 0 writes a timeline of its ring, in Chrome's trace format, and each ring of a job has
its own file. :func:`parse_timeline` reads one, also if its writer was killed, :func:`of_one_run`
leaves out what an earlier run has left, and :func:`merge_timelines` puts the rest side by side by
the clocks of their writers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl.events import Event

_START = "start_time_since_epoch_in_micros"
_RINGS, _EVENTS = 1, 2  # rows of the first process
TraceEvent = dict[str, Any]


@dataclass(frozen=True)
class RingTimeline:
    generation: int
    start_us: int  # when the ring began to write it, since 1970
    events: tuple[TraceEvent, ...]  # times are since `start_us`
    whole: bool  # the file ends as Horovod ends it; False: its writer was killed

    @property
    def end_us(self) -> int:
        """When the last event happened, since 1970."""
        ends = (event["ts"] + event.get("dur", 0) for event in self.events if "ts" in event)
        return self.start_us + max(ends, default=0)


def parse_timeline(generation: int, text: str) -> RingTimeline | None:
    """Return the timeline in the text of a file; None if Horovod has not written it."""
    decoder, found, at, whole = json.JSONDecoder(), [], text.find("[") + 1, False
    while True:
        while at < len(text) and text[at] in " \t\r\n,":
            at += 1
        if text[at : at + 1] != "{":
            whole = text[at : at + 1] == "]"
            break
        try:
            event, at = decoder.raw_decode(text, at)
        except ValueError:
            break
        found.append(event)
    starts = [event for event in found if _is_start(event)]
    kept = tuple(event for event in found if not _is_start(event))
    if not starts or not all(map(_is_event, kept)):
        return None
    return RingTimeline(generation, starts[0]["args"][_START], kept, whole)


def _is_start(event: TraceEvent) -> bool:
    args = event.get("args")
    return isinstance(args, dict) and isinstance(args.get(_START), int)


def _is_event(event: TraceEvent) -> bool:
    """Return whether `event` names a row, or has a kind and a time in numbers."""
    if event.get("ph") == "M":
        args = event.get("args")
        return isinstance(args, dict) and (event.get("name") != "process_name" or "name" in args)
    times = (event.get("ts"), event.get("dur", 0))
    return "ph" in event and all(isinstance(time, int | float) for time in times)


def of_one_run(timelines: Iterable[RingTimeline]) -> list[RingTimeline]:
    """Return the timelines of the last run of a job, in the order of generations."""
    ordered = sorted(timelines, key=lambda one: one.generation)
    # A run before that had more generations has left files: they are older than the first ring.
    return [one for one in ordered if one.start_us >= ordered[0].start_us]


def merge_timelines(
    timelines: Sequence[RingTimeline], events: Iterable[Event] = ()
) -> dict[str, Any]:
    """Return one timeline in Chrome's trace format."""
    zero_us = min(one.start_us for one in timelines)
    merged: list[TraceEvent] = [
        _name("process_name", 0, 0, "edl"),
        _name("thread_name", 0, _RINGS, "rings"),
        _name("thread_name", 0, _EVENTS, "events"),
    ]
    pids: dict[str, int] = {}
    for one in timelines:
        shift_us = one.start_us - zero_us
        merged.append(
            {
                "ph": "X",
                "name": f"generation {one.generation}",
                "pid": 0,
                "tid": _RINGS,
                "ts": shift_us,
                "dur": one.end_us - one.start_us,
            }
        )
        merged.extend(_of_ring(one, shift_us, pids))
    merged.extend(_mark(event, zero_us) for event in events)
    return {"traceEvents": merged, "displayTimeUnit": "ms"}


def _of_ring(one: RingTimeline, shift_us: int, pids: dict[str, int]) -> Iterator[TraceEvent]:
    """Yield the events of a ring, each in the row of its tensor, `shift_us` later."""
    rows: dict[int, int] = {}  # Horovod's number of a tensor in this ring -> its row
    opened: dict[int, int] = {}
    for event in one.events:
        pid = event.get("pid", 0)
        if event["ph"] == "M":
            if event.get("name") == "process_name":
                tensor = str(event["args"]["name"])
                is_new = tensor not in pids
                rows[pid] = pids.setdefault(tensor, len(pids) + 1)
                if is_new:
                    yield _name("process_name", rows[pid], 0, tensor)
            continue
        row = rows.get(pid, 0)
        opened[row] = opened.get(row, 0) + {"B": 1, "E": -1}.get(event["ph"], 0)
        yield {**event, "pid": row, "tid": 0, "ts": event["ts"] + shift_us}
    for row, count in opened.items():
        for _ in range(count):
            yield {"ph": "E", "pid": row, "tid": 0, "ts": one.end_us - one.start_us + shift_us}


def _mark(event: Event, zero_us: int) -> TraceEvent:
    """Return the mark of an event of the job."""
    facts: Mapping[str, Any] = {"generation": event.generation, "step": event.step}
    return {
        "ph": "i",
        "name": str(event.kind),
        "s": "t",
        "pid": 0,
        "tid": _EVENTS,
        "ts": round(event.time * 1e6) - zero_us,
        "args": {**facts, "reason": event.reason},
    }


def _name(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
