"""Give the leader the policy of its cluster; leave one that fails alone for a while.

While the policy cannot be asked, jobs keep their slots
(:class:`edl.core.cluster.held_slots.HeldSlots`). It is asked again after a rest, or as soon as
somebody has changed the policy or its parameters.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from edl.cluster_policies import is_own, policy_of
from edl.core.cluster.held_slots import HeldSlots
from edl.core.cluster.records import ClusterRecord
from edl.core.cluster.state import ClusterPolicy
from edl.errors import UsageError
from edl.scheduler.policy_process import PolicyProcess

REST_S = 30.0  # of a policy that has failed, before it is asked again


class PolicyRunner:
    """The policy of a cluster as its leader asks it, during one term."""

    def __init__(self, say: Callable[[str], None], rest_s: float = REST_S) -> None:
        self._say = say
        self._rest_s = rest_s
        self._settings = ""  # the policy and its parameters, as a text
        self._process: PolicyProcess | None = None
        self._why = ""  # it failed the last time; empty: it has not
        self._rests_until_s = -math.inf  # by the monotonic clock

    def policy(self, settings: ClusterRecord) -> ClusterPolicy:
        """Return the policy that `settings` name; while it rests, one that changes nothing."""
        chosen = f"{settings.policy} {settings.parameters}"
        if chosen != self._settings:
            self.close()
            self._settings, self._why, self._rests_until_s = chosen, "", -math.inf
        if time.monotonic() < self._rests_until_s:
            return HeldSlots(self._why)
        if is_own(settings.policy):
            if self._process is None:
                self._process = PolicyProcess(settings.policy, settings.parameters)
            return self._process
        try:
            return policy_of(settings)
        except UsageError as error:  # another version of edl may have this policy
            return self.failed(str(error))

    def worked(self) -> None:
        self._why = ""

    def failed(self, why: str) -> HeldSlots:
        """Let the policy rest, and return the one that changes nothing."""
        if why != self._why:
            self._say(f"jobs keep their slots: {why}")
        self._why, self._rests_until_s = why, time.monotonic() + self._rest_s
        return HeldSlots(why)

    def close(self) -> None:
        """End the process of a user's policy, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()
