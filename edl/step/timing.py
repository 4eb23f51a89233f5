"""Find the worker that the others wait for in every step, from the times in the step records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edl.status import holds_up
from edl.step.record import StepRecords, SwitchTimes

OF_STEPS = 50  # newest steps that are looked at

EVERY = 10  # steps between two looks


@dataclass(frozen=True)
class SlowestWorker:
    """A worker that is slower than the others, with the median times of a step."""

    worker: int
    own_s: float  # its median time in a step to wait for its batch and compute, not for others
    others_s: float  # the median of the others' medians

    def __str__(self) -> str:
        own, others = 1000.0 * self.own_s, 1000.0 * self.others_s
        return f"w{self.worker} computes {own:.0f} ms in a step, the others {others:.0f} ms"


class Slowest:
    """A detector of slow workers that reads the step records of one ring."""

    def __init__(self) -> None:
        self.found: SlowestWorker | None = None  # at the last comparison, also if returned before
        self._rows: deque[npt.NDArray[np.int64]] = deque(maxlen=OF_STEPS)
        self._seen = 0
        self._named: set[int] = set()

    def restart(self) -> None:
        """Forget the steps and the slow workers of the old ring."""
        self.found = None
        self._rows.clear()
        self._seen = 0
        self._named.clear()

    def look(self, records: StepRecords) -> SlowestWorker | None:
        """Add the times of a step, and return a worker that is found slow for the first time."""
        self._rows.append(records.column("compute_us") + records.column("data_us"))
        self._seen += 1
        if len(records) == 1 or self._seen < OF_STEPS or self._seen % EVERY:
            return None
        self.found = slow(records.values("worker"), np.stack(self._rows))
        if self.found is None or self.found.worker in self._named:
            return None
        self._named.add(self.found.worker)
        return self.found


def slow(workers: Sequence[int], compute_us: npt.NDArray[np.int64]) -> SlowestWorker | None:
    """Return the worker with the longest median step, with its times, if it is slow; else None."""
    usual_s = np.median(compute_us, axis=0) / 1e6
    at = int(usual_s.argmax())
    others_s = float(np.median(np.delete(usual_s, at)))
    own_s = float(usual_s[at])
    return SlowestWorker(workers[at], own_s, others_s) if holds_up(own_s, others_s) else None


# ------------------------------------------------------------
# Divide a switch or repair, or a checkpoint, into spans for a tracing system (OpenTelemetry).


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
