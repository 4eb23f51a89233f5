"""The policy of a job, and what the job has learned of its sizes."""

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
    """Both nodes."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def get(self) -> JobPolicy:
        """The policy; an empty one without any."""
        path = self._nodes.paths.policy
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record_or_none(JobPolicy, path, answer) or JobPolicy()

    def change(self, change: Callable[[JobPolicy], JobPolicy], why: str) -> JobPolicy:
        """Let ``change(policy)`` be the policy from now on, with an event that says ``why``.

        ``change`` may be called again when another writer was faster, and may raise.
        """
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
        """Let it be the policy, unless the job has one; the one that stands."""
        return self.change(
            lambda now: now if now.text else policy, f"the script has a policy: {policy.source}"
        )

    def learned(self) -> ScalingProfile:
        """What the job has learned; nothing at first."""
        path = self._nodes.paths.learned
        return (
            record_or_none(ScalingProfile, path, self._nodes.read(get(path))[0]) or ScalingProfile()
        )

    def put_learned(self, learned: ScalingProfile) -> None:
        """Let the job begin with what another start of it has learned, if it has seen nothing."""
        path = self._nodes.paths.learned

        def change(found: dict[str, Any]) -> dict[str, Any]:
            return found if found.get("seen") else learned.to_json()

        self._nodes.compare_and_set(path, change)
