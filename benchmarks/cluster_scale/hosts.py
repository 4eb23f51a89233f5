"""Stand-ins of `edl host`: they register, read, decide and report as it does, without processes."""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Mapping
from typing import Protocol

from benchmarks.cluster_scale.loop import Loop
from edl import __version__
from edl.cluster.host_jobs import HostObservation, LastAgent, RunProcess, decide_host
from edl.cluster.nodes import ClusterNodes
from edl.cluster.records import HostOffer
from edl.cluster.store import HostOwner, HostRegistration

RunKey = tuple[str, str]
"""The name of a job and the token of one of its runs."""


class AgentsOfRuns(Protocol):
    """What a host asks of the runs of jobs."""

    def start_agent(self, host: StandInHost, run: RunKey) -> None:
        """Begin the work of the agent of a run on a host."""

    def end_agent(self, host: StandInHost, run: RunKey) -> None:
        """End the agent of a run on a host, as SIGTERM does."""


class StandInHost:
    """One host: the part of `edl host` that ZooKeeper sees.

    Args:
        nodes: The nodes of the cluster.
        name: The name of the host.
        slots: How many slots it offers.
        loop: Calls it when something has changed.
        runs: The runs of jobs, which have agents on the host.
    """

    _pids = itertools.count(100_000)

    def __init__(
        self, nodes: ClusterNodes, name: str, slots: int, loop: Loop, runs: AgentsOfRuns
    ) -> None:
        self.name = name
        self.slots = slots
        self._loop = loop
        self._runs = runs
        self._registration = HostRegistration(
            nodes, name, HostOwner(uuid.uuid4().hex, "stand-in", os.getpid())
        )
        self._agents: dict[RunKey, RunProcess] = {}
        self._ended: dict[str, LastAgent] = {}
        self._ending_s: Mapping[RunKey, float] = {}
        self._terminated: frozenset[tuple[int, int]] = frozenset()

    def offer(self) -> None:
        """Offer the slots of the host to the cluster, and follow what is assigned from now on."""
        offer = HostOffer(self.slots, address="127.0.0.1", version=__version__)
        self._registration.register(offer, lambda _: True)
        self.wake()

    def wake(self) -> None:
        """Read what is assigned again, and decide; any thread may call this."""
        self._loop.wake(self.name, self._turn)

    def agent_has_ended(self, run: RunKey, is_final: bool, has_left: bool = False) -> None:
        """Note that the agent of a run has ended, which its process does without being told.

        Args:
            run: The run.
            is_final: Whether the run needs no other agent here.
            has_left: Whether it ended because its run has no devices here any more.
        """
        if self._agents.pop(run, None) is not None:
            job, token = run
            now_s = time.monotonic()
            self._ended[job] = LastAgent(token, 0, "", is_final, has_left, 0, now_s)
            self.wake()

    def _turn(self) -> None:
        """Read what is assigned, decide, report and act, in the order of `edl host`."""
        assigned, version = self._registration.assigned(self.wake)
        now_s = time.monotonic()
        seen = HostObservation(
            version,
            tuple(self._agents.values()),
            {job: last for job, last in self._ended.items() if job in assigned.jobs},
            {},
            self._ending_s,
            self._terminated & {one.identity for one in self._agents.values()},
        )
        decision = decide_host(assigned, seen, now_s)
        self._registration.report(decision.report)
        self._ended = dict(seen.agents)
        self._ending_s = decision.ending_s
        self._terminated = seen.terminated | {one.process.identity for one in decision.signals}
        for order in decision.signals:
            self._runs.end_agent(self, order.process.of_run)
        for job in decision.starts:
            run = job, assigned.jobs[job].run
            pid = next(self._pids)
            self._agents[run] = RunProcess(pid, pid, *run, is_agent=True)
            self._runs.start_agent(self, run)
        if decision.starts or decision.signals:
            self.wake()
        elif decision.next_s is not None:
            self._loop.after(max(0.0, decision.next_s - now_s), self.wake)
