"""Define a worker's access to the job's policy: it proposes a policy, and reads what was measured.

:class:`PolicySide` is the interface. What a policy measures and keeps is the scaling profile: the
throughput by number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from edl.core.records import JobPolicy


class PolicySide(Protocol):
    """A worker's access to the job's policy, from any thread; only `learned` may wait."""

    def propose(self, policy: JobPolicy) -> None:
        """Let the job follow `policy` soon; a policy or proposal that it has already stays."""

    def learned(self) -> Mapping[str, Any]:
        """Return the scaling profile as JSON values; empty: not measured, or ZooKeeper is away."""

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Let the job begin with the scaling profile `learned`, unless it has measured its own."""


class NoPolicy:
    """The `PolicySide` of a job of one worker, which has no leader and no policy."""

    def propose(self, policy: JobPolicy) -> None:
        """Ignore `policy`, since a job of one worker follows no policy."""

    def learned(self) -> Mapping[str, Any]:
        """Return an empty profile, since a job of one worker learns none."""
        return {}

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Ignore the profile `learned`, since a job of one worker needs no scaling profile."""
