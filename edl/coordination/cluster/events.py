"""Read and write the event log of a cluster: each change, its reason, and who asked for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from kazoo.client import TransactionRequest

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.events import EventLogNodes
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEvent, ClusterEventKind
from edl.core.cluster.job_life import LifeResult, LifeState


class ClusterEvents(EventLogNodes[ClusterEvent]):
    """The event log of one cluster."""

    def __init__(self, nodes: ClusterNodes, by: str = "") -> None:
        super().__init__(nodes, ClusterEvent)
        self.by = by  # who writes; it may be changed
        self.clock: Callable[[], float] = time.time  # in seconds since 1970; it may be changed

    def new(
        self,
        kind: ClusterEventKind,
        reason: str,
        job: str = "",
        host: str = "",
        state: LifeState | None = None,
        result: LifeResult | None = None,
        slots: Mapping[str, int] | None = None,
    ) -> ClusterEvent:
        """Return an event with the time now and this object's `by`; write nothing."""
        return ClusterEvent(self.clock(), kind, reason, job, host, self.by, state, result, slots)

    def append_in(self, transaction: TransactionRequest, event: ClusterEvent) -> None:
        """Add to `transaction` a write that appends `event` to the log."""
        path = f"{self._nodes.paths.events}/e-"
        transaction.create(path, encode(event.to_json()), sequence=True)
