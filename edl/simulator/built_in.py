"""The jobs that come with edl, each set with the cluster and the costs that it is meant for."""

from __future__ import annotations

from dataclasses import dataclass

from edl.simulator import jsa, mix, pollux, trace, virtualflow
from edl.simulator.arrivals import SHAPES
from edl.simulator.resize import ResizeCost, constant

POLLUX, JSA, MIX, VIRTUALFLOW = "pollux", "jsa", "mix", "virtualflow"


@dataclass(frozen=True)
class JobSet:
    """Where jobs run if nothing else is said.

    Attributes:
        what: for lists.
        nodes: how many, each of so many ``slots``.
    """

    what: str
    nodes: int
    slots: int
    interval_s: float
    resize: ResizeCost


SETS = {
    POLLUX: JobSet(
        f"loads {', '.join(pollux.LOADS)}; workloads 1 to 8",
        pollux.NODES,
        pollux.SLOTS,
        pollux.INTERVAL_S,
        pollux.RESIZE,
    ),
    JSA: JobSet(
        f"arrivals {', '.join(SHAPES)}, or a number a minute; drawn by --seed",
        jsa.NODES,
        jsa.SLOTS,
        jsa.INTERVAL_S,
        constant(jsa.RESIZE_S),
    ),
    MIX: JobSet(
        f"Pollux' applications in any --mix; by default {mix.ARRIVALS} arrive a minute",
        pollux.NODES,
        pollux.SLOTS,
        pollux.INTERVAL_S,
        pollux.RESIZE,
    ),
    VIRTUALFLOW: JobSet(
        "20 jobs with weights, measured on 8 slots",
        virtualflow.NODES,
        virtualflow.SLOTS,
        0.0,
        virtualflow.RESIZE,
    ),
}
TRACE = JobSet(
    f"columns {', '.join(trace.COLUMNS)}", pollux.NODES, pollux.SLOTS, 0.0, pollux.RESIZE
)
