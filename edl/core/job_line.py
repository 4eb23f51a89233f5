"""Write the status line of a job for the foot of a terminal of any width.

:func:`job_line` returns it in parts, each with the style that rich draws it in.
"""

from __future__ import annotations

from edl.core.duration import rounded
from edl.core.excerpt import cropped
from edl.core.plural import workers
from edl.core.remaining import bar, estimated_remaining_s, trained_fraction
from edl.core.snapshot import Snapshot

Part = tuple[str, str]
"""A text, and the name of its style for rich; empty for none."""

_BARS = (24, 16, 8, 0)  # characters; the first that fits
_GAP = "  "


def job_line(job: str, snapshot: Snapshot | None, width: int | None = None) -> list[Part]:
    """Return the parts of the status line, which side by side fit into `width` columns."""
    if snapshot is None or snapshot.generation is None:
        ready = sum(m.stage != "preparing" for m in snapshot.members) if snapshot else 0
        return _cropped([(f"{job}{_GAP}starting, {workers(ready)} ready", "dim")], width)
    facts = _facts(snapshot)
    for size in _BARS if width is not None else _BARS[:1]:
        parts = [(job, "bold"), *_progress(snapshot, size)]
        if width is None or _length(parts) <= width:
            break
    for fact in facts:
        if width is not None and _length(parts) + len(_GAP) + len(fact) > width:
            break
        parts.append((f"{_GAP}{fact}", ""))
    return _cropped(parts, width)


def _progress(snapshot: Snapshot, size: int) -> list[Part]:
    """Return the parts with a bar of `size` characters, the percentage and the time left."""
    status = snapshot.current_status
    fraction = trained_fraction(status)
    if fraction is None:
        return []
    trained, rest = bar(fraction, size)
    left_s = estimated_remaining_s(status)
    left = "" if left_s is None else f"{_GAP}{rounded(left_s)} left"
    of = "" if status.left is not None else f" of epoch {status.epoch}"
    text = f"{' ' * bool(size)}{int(100 * fraction)}%{of}{left}"
    return [(_GAP, ""), (trained, "green"), (rest, "bright_black"), (text, "")]


def _facts(snapshot: Snapshot) -> list[str]:
    """Return what the line says behind the progress, the most important first."""
    assert snapshot.generation is not None
    status = snapshot.current_status
    size = len(snapshot.generation.members) if snapshot.members else 0
    wanted = "" if size == snapshot.assigned.np else f"{size} of "
    facts = [
        f"{wanted}{workers(snapshot.assigned.np)}",
        f"{status.samples_per_s:,.0f} samples/s",
    ]
    if status.epoch_total:
        facts.append(f"epoch {status.epoch} {status.epoch_done}/{status.epoch_total}")
    elif status.epoch_done:
        facts.append(f"epoch {status.epoch} {status.epoch_done} samples")  # of a stream
    return [*facts, f"step {status.step}", f"generation {snapshot.generation.number}"]


def _cropped(parts: list[Part], width: int | None) -> list[Part]:
    """Return `parts`, or, if they are longer than `width`, their beginning as one plain part."""
    if width is None or _length(parts) <= width:
        return parts
    return [(cropped("".join(text for text, _ in parts), width), "")]


def _length(parts: list[Part]) -> int:
    return sum(len(text) for text, _ in parts)
