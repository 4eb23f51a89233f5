"""End a job while ZooKeeper is away, by telling its workers directly on their HTTP ports.

Meanwhile the job's records in ZooKeeper do not change. If agents of other hosts are registered, the
agent that has told the workers writes the end of the job when ZooKeeper is back. Until then the
agents of the other hosts wait: they start no worker once they see how their workers have ended
(:func:`edl.core.host.job_end.told_to_end`). The main entry is :class:`StopWithoutZooKeeper`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edl.coordination.job_store import JobStore
from edl.core.host.process import Process
from edl.core.host.supervision import SupervisorLimits
from edl.core.snapshot import Snapshot
from edl.http.client import tell_end
from edl.http.signing import http_key

Say = Callable[[str], None]

NOT_TOLD = "ZooKeeper is away, so the job cannot be told; again kills its workers"
WAITS = (
    "the workers on this host have ended; waiting for ZooKeeper, so that the other hosts learn "
    "that the job has ended"
)


class StopWithoutZooKeeper:
    """The part of an agent that ends the job after a signal while ZooKeeper is away."""

    def __init__(self, store: JobStore, host: str, limits: SupervisorLimits, say_once: Say) -> None:
        self._store = store
        self._host = host
        self._limits = limits
        self._say_once = say_once
        self._last: Snapshot | None = None
        self._since = 0.0

    @property
    def begun(self) -> bool:
        """Whether `begin` has told at least one worker that the job ends."""
        return self._last is not None

    def begin(
        self, last: Snapshot | None, living: Sequence[Process], cause: str, now: float
    ) -> None:
        """Tell the workers here that the job ends, who tell others; `begun` if one confirms it."""
        if self.begun:
            return
        members = (
            last.generation.members if last is not None and last.generation is not None else ()
        )
        mine = [member for member in members if member.id in {process.worker for process in living}]
        access = self._store.session.access
        assert access is not None
        key = http_key(access.secret, self._store.name)
        if not mine or not tell_end(key, mine, f"{cause} in edl run"):
            self._say_once(NOT_TOLD)
            return
        self._last, self._since = last, now
        self._say_once(
            f"{cause}: ZooKeeper is away, so its workers are told directly: the job ends after "
            "this step; again kills them"
        )

    def is_late(self, now: float) -> bool:
        """Return whether the workers have had more time to end than the job's limit for a stop."""
        assert self._last is not None
        return now - self._since >= self._limits.stop_limit_s(self._last.job)

    def is_done(self, now: float) -> bool:
        """Return whether the agent can end, whose workers have ended."""
        assert self._last is not None
        others = self._last.present - {self._host}
        # If ZooKeeper comes back, this agent can write the end of the job for the others.
        if others and now - self._since < self._limits.away_s:
            self._say_once(WAITS)
            return False
        self._say_once(
            f"job {self._store.name} has ended; ZooKeeper is away, and has it as running until "
            "another one takes its name"
        )
        return True
