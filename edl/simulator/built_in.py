"""Define the sets of jobs that come with edl, each with its cluster and its costs of a resize."""

from __future__ import annotations

from dataclasses import dataclass

from edl.simulator import trace
from edl.simulator.arrivals import SHAPES
from edl.simulator.published.workloads import (
    jsa_workload,
    mixed_workload,
    pollux_workload,
    virtualflow_workload,
)
from edl.simulator.resize import ResizeCost, constant

POLLUX, JSA, MIX, VIRTUALFLOW = "pollux", "jsa", "mix", "virtualflow"


@dataclass(frozen=True)
class JobSet:
    """The defaults with which a built-in set of jobs is simulated: its cluster and its costs.

    Attributes:
        what: a description of the set, for lists.
        nodes: the number of nodes of the cluster.
        slots: the number of slots of each node.
        interval_s: the seconds between two decisions; 0: a decision on every event.
        resize: the cost of each kind of change of a job's slots.
    """

    what: str
    nodes: int
    slots: int
    interval_s: float
    resize: ResizeCost


SETS = {
    POLLUX: JobSet(
        f"loads {', '.join(pollux_workload.LOADS)}; workloads 1 to 8",
        pollux_workload.NODES,
        pollux_workload.SLOTS,
        pollux_workload.INTERVAL_S,
        pollux_workload.RESIZE,
    ),
    JSA: JobSet(
        f"arrivals {', '.join(SHAPES)}, or a number a minute; drawn by --seed",
        jsa_workload.NODES,
        jsa_workload.SLOTS,
        jsa_workload.INTERVAL_S,
        constant(jsa_workload.RESIZE_S),
    ),
    MIX: JobSet(
        f"Pollux' applications in any --mix; by default {mixed_workload.ARRIVALS} arrive a minute",
        pollux_workload.NODES,
        pollux_workload.SLOTS,
        pollux_workload.INTERVAL_S,
        pollux_workload.RESIZE,
    ),
    VIRTUALFLOW: JobSet(
        "20 jobs with weights, measured on 8 slots",
        virtualflow_workload.NODES,
        virtualflow_workload.SLOTS,
        0.0,
        virtualflow_workload.RESIZE,
    ),
}
TRACE = JobSet(
    f"columns {', '.join(trace.COLUMNS)}",
    pollux_workload.NODES,
    pollux_workload.SLOTS,
    0.0,
    pollux_workload.RESIZE,
)
