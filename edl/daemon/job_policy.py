"""Connect a worker's training thread to the policy of its job in ZooKeeper.

Through :class:`PolicyInZooKeeper` the training thread proposes a policy, and reads or writes the
job's scaling profile: the measured throughput by number of workers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from edl.coordination.policy import PolicyNodes
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.records import JobPolicy
from edl.errors import CoordinationError, UnknownJob

logger = logging.getLogger(__name__)


class PolicyInZooKeeper:
    """A `PolicySide` for the training thread, whose proposals the daemon thread writes."""

    def __init__(
        self, nodes: PolicyNodes, away: Callable[[], bool], wake: Callable[[], None]
    ) -> None:
        self._nodes = nodes
        self._away = away
        self._wake = wake
        self._lock = threading.Lock()
        self._proposed: JobPolicy | None = None
        self._learned: ScalingProfile | None = None

    def propose(self, policy: JobPolicy) -> None:
        """Propose `policy`; it is dropped with a warning if the job has another one."""
        with self._lock:
            first = self._proposed = self._proposed or policy
        _warn_of_another(first, policy)
        self._wake()

    def learned(self) -> Mapping[str, Any]:
        """Read the job's scaling profile from ZooKeeper; {}: it is away, or the job is gone."""
        found: Mapping[str, Any] = {}
        with suppress(CoordinationError, UnknownJob):
            found = {} if self._away() else self._nodes.learned().to_json()
        return found

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Let the daemon thread write a checkpoint's profile, if the job has measured nothing."""
        try:
            read = ScalingProfile.from_json(learned)
        except CoordinationError as error:  # of another version of edl, perhaps
            logger.warning("the job begins without what its checkpoint had learned: %s", error)
            return
        with self._lock:
            self._learned = read
        self._wake()

    def write(self) -> None:
        with self._lock:
            proposed, learned = self._proposed, self._learned
        if proposed is not None:
            _warn_of_another(self._nodes.propose(proposed), proposed)
        if learned is not None:
            self._nodes.put_learned(learned)
        # Not what has come meanwhile.
        with self._lock:
            if self._proposed is proposed:
                self._proposed = None
            if self._learned is learned:
                self._learned = None


def _warn_of_another(stands: JobPolicy, proposed: JobPolicy) -> None:
    if stands.text != proposed.text:
        logger.warning(
            "the job follows the policy of %s, so that of %s counts for nothing",
            stands.source,
            proposed.source,
        )
