"""Describe simulations of published work: the jobs by name, policies of papers, wrong models.

``SETS`` has the sets of jobs by name, each with its cluster and its costs of a resize.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.published import jsa_workload, pollux_workload, virtualflow_workload
from benchmarks.published.model_errors import ErrorModelPolicy, ModelErrors
from benchmarks.published.registry import POLICIES
from edl.cluster.policies.registry import with_run
from edl.cluster.state import ClusterPolicy, Node
from edl.simulator.costs import ResizeCost, constant
from edl.simulator.runs import SimulatedRun
from edl.simulator.workload import SubmittedJob

POLLUX, JSA, VIRTUALFLOW = "pollux", "jsa", "virtualflow"


@dataclass(frozen=True)
class JobSet:
    """The defaults with which a set of jobs is simulated: its cluster and its costs."""

    nodes: int
    slots: int  # of each node
    interval_s: float  # between two decisions; 0: on every event
    resize: ResizeCost


SETS = {
    POLLUX: JobSet(
        pollux_workload.NODES,
        pollux_workload.SLOTS,
        pollux_workload.INTERVAL_S,
        pollux_workload.RESIZE,
    ),
    JSA: JobSet(
        jsa_workload.NODES,
        jsa_workload.SLOTS,
        jsa_workload.INTERVAL_S,
        constant(jsa_workload.RESIZE_S),
    ),
    VIRTUALFLOW: JobSet(
        virtualflow_workload.NODES, virtualflow_workload.SLOTS, 0.0, virtualflow_workload.RESIZE
    ),
}


@dataclass(frozen=True)
class PublishedRun(SimulatedRun):
    """A simulation of published work, or of drawn jobs."""

    # the load of a workload of Pollux, like "1.0"; of drawn jobs the rate of submission
    load: str = ""
    workload: int = 0  # the number of a workload of Pollux, 1 to 8; of drawn jobs their seed
    built_in: str = ""  # the name of the set of jobs
    machines: tuple[Node, ...] = ()  # if they are not all alike
    wrong: ModelErrors | None = None  # the errors with which the policy sees the jobs
    parameters: tuple[tuple[str, float], ...] = ()  # of the policy, where not as registered

    @property
    def title(self) -> str:
        """The policy and the jobs in a few words, like "tiresias, pollux 1.0, 3"."""
        load = f" {self.load}, {self.workload}" if self.load else ""
        return f"{self.policy}, {self.built_in}{load}"

    def submissions(self) -> Sequence[SubmittedJob]:
        """Return the jobs; Pollux' are read here, in the process that simulates them."""
        return self.jobs or pollux_workload.pollux_jobs(self.load, self.workload)

    def cluster(self) -> Sequence[Node]:
        """Return the nodes."""
        return self.machines or super().cluster()

    def rule(self) -> ClusterPolicy:
        """Return the policy, with the seed, the costs and the speeds of the rules."""
        speeds = ",".join(f"{kind}={speed:g}" for kind, speed in self.rules.speeds.items())
        rule, cost_s = POLICIES[self.policy][0], self.rules.resize.resize_s
        found: Any = with_run(rule, self.seed, cost_s, speeds)
        found = replace(found, **dict(self.parameters)) if self.parameters else found
        return found if self.wrong is None else ErrorModelPolicy(found, self.wrong)
