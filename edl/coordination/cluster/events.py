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
    """The event log of one cluster.

    Args:
        nodes: The nodes of the cluster.
        by: Who writes: a user and a machine.

    Attributes:
        by: Who writes; it may be changed.
        clock: Tells the time of a new event, in seconds since 1970; it may be changed.
    """

    def __init__(self, nodes: ClusterNodes, by: str = "") -> None:
        super().__init__(nodes, ClusterEvent)
        self.by = by
        self.clock: Callable[[], float] = time.time

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
        """Return an event with the time now and this object's ``by``; write nothing.

        Args:
            kind: The kind of the event.
            reason: What has happened, and why, in a sentence.
            job: The name of the job that it is about; empty: none.
            host: The name of the host that it is about; empty: none.
            state: The state that the job has entered; None: it is another kind of event.
            result: How the job has ended; None: it has not.
            slots: Host -> slots that the job has; None: it is another kind of event.
        """
        return ClusterEvent(self.clock(), kind, reason, job, host, self.by, state, result, slots)

    def append_in(self, transaction: TransactionRequest, event: ClusterEvent) -> None:
        """Add to ``transaction`` a write that appends ``event`` to the log."""
        path = f"{self._nodes.paths.events}/e-"
        transaction.create(path, encode(event.to_json()), sequence=True)
