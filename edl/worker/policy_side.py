"""A worker's side of its job's policy: what it tells the job, and what it asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from edl.core.records import JobPolicy


class PolicySide(Protocol):
    """A worker's side of its job's policy; from any thread, and nobody waits."""

    def propose(self, policy: JobPolicy) -> None:
        """Let the job follow ``policy``, unless it has one."""

    def learned(self) -> Mapping[str, Any]:
        """What the job has learned of its sizes; empty: nobody can say."""

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Let the job know that from the start, if it has learned nothing itself."""


class NoPolicy:
    """Of a job that has none: nobody leads it."""

    def propose(self, policy: JobPolicy) -> None: ...

    def learned(self) -> Mapping[str, Any]:
        return {}

    def put_learned(self, learned: Mapping[str, Any]) -> None: ...
