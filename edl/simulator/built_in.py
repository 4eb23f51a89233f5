"""Define the sets of jobs that come with edl, each with its cluster and its costs of a resize.

``SETS`` has them by name, each as a :class:`JobSet`: "pollux", "jsa", "mix" and "virtualflow".
``TRACE`` has the defaults for the jobs of a file. The jobs themselves are made in
:mod:`edl.simulator.published.workloads`.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.simulator import trace
from edl.simulator.costs import ResizeCost, constant
from edl.simulator.published.workloads import (
    jsa_workload,
    mixed_workload,
    pollux_workload,
    virtualflow_workload,
)
from edl.simulator.workload import SHAPES

POLLUX, JSA, MIX, VIRTUALFLOW = "pollux", "jsa", "mix", "virtualflow"


@dataclass(frozen=True)
class JobSet:
    """The defaults with which a set of jobs is simulated: its cluster and its costs."""

    what: str  # what the user can choose of the set, in words, for lists
    nodes: int  # the number of nodes of the cluster
    slots: int  # the number of slots of each node
    # the seconds between two decisions of the policy; 0: it decides whenever a job arrives or ends,
    # or a node fails or comes back
    interval_s: float
    # the seconds without training that each kind of change of a job's slots costs
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
