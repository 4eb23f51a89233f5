"""Read and write the policy of a job, and what the job has learned of its sizes.

A size is a number of workers; the job learns mainly the throughput of each size.
:class:`PolicyNodes` is the ``policy`` of a job's ``JobStore``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from edl.coordination.nodes import JobNodes, Values, record_or_none
from edl.coordination.reads import get
from edl.core.events import Event, PolicySetDetails
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.records import JobPolicy


class PolicyNodes:
    """The nodes of one job that hold its policy and what it has learned of its sizes."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def get(self) -> JobPolicy:
        """Return the policy of the job; an empty one (`JobPolicy()`) if it has none."""
        path = self._nodes.paths.policy
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record_or_none(JobPolicy, path, answer) or JobPolicy()

    def change(self, change: Callable[[JobPolicy], JobPolicy], why: str) -> JobPolicy:
        """Replace the policy of the job by `change(policy)`, log an event, return the result."""
        p = self._nodes.paths

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
            before = JobPolicy.from_json(found[p.policy])
            after = change(before)
            at = found[p.generation].get("number", 0), found[p.status].get("step", 0)
            details = PolicySetDetails(after.is_on, after.source, after.text)
            return {p.policy: after.to_json()}, Event(time.time(), *at, why, details)

        found = self._nodes.change_together((p.policy, p.generation, p.status), changed)
        return JobPolicy.from_json(found[p.policy])

    def propose(self, policy: JobPolicy) -> JobPolicy:
        """Make `policy`, which the training script asks for, the job's policy unless it has one."""
        return self.change(
            lambda now: now if now.text else policy, f"the script has a policy: {policy.source}"
        )

    def learned(self) -> ScalingProfile:
        """Return the throughputs that the job has measured, by size; maybe none."""
        path = self._nodes.paths.learned
        return (
            record_or_none(ScalingProfile, path, self._nodes.read(get(path))[0]) or ScalingProfile()
        )

    def put_learned(self, learned: ScalingProfile) -> None:
        """Write the throughputs that an earlier start of the job measured, by size."""
        path = self._nodes.paths.learned

        def change(found: dict[str, Any]) -> dict[str, Any]:
            # The present start has measured a size itself, or was given these before.
            return found if found.get("seen") else learned.to_json()

        self._nodes.compare_and_set(path, change)
