"""Divide a switch or repair, or a checkpoint, into spans for a tracing system (OpenTelemetry)."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.step.step_record import SwitchTimes

SWITCH, CHECKPOINT = "edl.switch", "edl.checkpoint"
_WAIT = "edl.switch.wait"


@dataclass(frozen=True)
class TimedSpan:
    """A part of a switch or of a checkpoint."""

    name: str  # such as "edl.switch.init"
    parent: str  # the span that it is a part of; empty for the whole
    start_ns: int  # since 1970
    end_ns: int


def switch_spans(times: SwitchTimes, end_s: float) -> tuple[TimedSpan, ...]:
    """Return the spans of one worker's switch or repair: the whole, then its parts in order."""
    durations = {
        "edl.switch.detect": times.detect_us,
        _WAIT: times.wait_us,
        "edl.switch.shutdown": times.shutdown_us,
        "edl.switch.init": times.init_us,
        "edl.switch.broadcast": times.broadcast_us,
    }
    within_wait = {
        "edl.switch.election": times.election_us,
        "edl.switch.survivor_report": times.survivor_report_us,
    }
    end_ns = round(end_s * 1e9)  # since 1970
    start_ns = end_ns - 1000 * sum(durations.values())
    found = [TimedSpan(SWITCH, "", start_ns, end_ns)]
    for name, duration_us in durations.items():
        found += _parts({name: duration_us}, SWITCH, start_ns)
        if name == _WAIT:
            found += _parts(within_wait, _WAIT, start_ns)
        start_ns += 1000 * duration_us
    return tuple(found)


def checkpoint_spans(capture_s: float, write_s: float, end_s: float) -> tuple[TimedSpan, ...]:
    """Return the spans of a checkpoint: the whole, the copy of the state, and the writing."""
    end_ns = round(end_s * 1e9)  # since 1970
    written_ns = end_ns - round(write_s * 1e9)
    start_ns = written_ns - round(capture_s * 1e9)
    return (
        TimedSpan(CHECKPOINT, "", start_ns, end_ns),
        TimedSpan("edl.checkpoint.capture", CHECKPOINT, start_ns, written_ns),
        TimedSpan("edl.checkpoint.write", CHECKPOINT, written_ns, end_ns),
    )


def _parts(durations: dict[str, int], parent: str, start_ns: int) -> list[TimedSpan]:
    """Return spans one after the other, from `start_ns`; of 0 us, none."""
    found = []
    for name, duration_us in durations.items():
        end_ns = start_ns + 1000 * duration_us
        if duration_us:
            found.append(TimedSpan(name, parent, start_ns, end_ns))
        start_ns = end_ns
    return found
