"""Keep the queues of a cluster in ZooKeeper: a node each, with its quota, weight and limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import NodeExistsError

from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.jobs import ClusterJobs
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.nodes import ATTEMPTS, record
from edl.coordination.reads import OnChange, children, exists, get
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.queue_shares import check_queue, unknown_queue
from edl.core.cluster.records import QueueRecord
from edl.core.plural import counted, verb
from edl.errors import UsageError, some

MOST_QUEUES = 1000  # of a cluster


class ClusterQueues:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents, jobs: ClusterJobs) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events
        self._jobs = jobs

    def records(self) -> dict[str, QueueRecord]:
        """Return the queues of the cluster by name, sorted; empty if it has none."""
        self._nodes.check_administrator("see the queues of the cluster")
        return self.read(self._nodes.read(children(self._paths.queues))[0] or ())

    def read(self, names: Iterable[str], wake: OnChange = None) -> dict[str, QueueRecord]:
        """Return the queues called `names` that exist, by name, sorted."""
        paths = {name: self._paths.queue(name) for name in sorted(names)}
        if not paths:
            return {}
        answers = self._nodes.read(*(get(path, wake) for path in paths.values()))
        return {
            name: record(QueueRecord, (path, answer[0]))
            for (name, path), answer in zip(paths.items(), answers, strict=True)
            if answer is not None
        }

    def change(self, name: str, change: Callable[[QueueRecord], QueueRecord]) -> QueueRecord:
        """Change the queue called `name`, which is created if there is none, and log it."""
        self._nodes.check_session()
        path = self._paths.queue(name)
        for _ in range(ATTEMPTS):
            answer, parent = self._nodes.read(get(path), exists(self._paths.queues))
            before = QueueRecord() if answer is None else record(QueueRecord, (path, answer[0]))
            after = change(before)
            check_queue(name, after)
            if answer is not None and after == before:
                return before
            if answer is None and parent is not None and parent.numChildren >= MOST_QUEUES:
                raise UsageError(
                    f"{self._nodes.what} has {MOST_QUEUES} queues, and may have no more; delete "
                    "some with `edl queue delete`"
                )
            if self._write(name, after, answer, parent is None):
                return after
        raise self._nodes.changed_too_often(path)

    def delete(self, name: str) -> None:
        """Remove the queue called `name`, which must have no jobs that have not ended."""
        self._nodes.check_session()
        path, queues = self._paths.queue(name), self.records()
        jobs = [
            job.name
            for job in self._jobs.list()
            if job.manifest.queue == name and job.life.state is not LifeState.ENDED
        ]
        if name in queues and jobs:
            number = counted(len(jobs), "job")
            raise UsageError(
                f"queue {name} has {number} that {verb(len(jobs), 'has', 'have')} not ended: "
                f"{some(jobs)}; wait for their end, or delete them"
            )
        event = self._events.new(ClusterEventKind.QUEUE, f"queue {name} was deleted")

        def build(transaction: TransactionRequest) -> None:
            transaction.delete(path)
            self._events.append_in(transaction, event)

        if name in queues:
            try:
                self._nodes.session.transact("delete a queue", build)
                return
            except Refused:  # another process was faster
                queues = self.records()
        raise UsageError(unknown_queue(self._nodes.what, name, queues))

    def _write(self, name: str, queue: QueueRecord, before: Any, is_first: bool) -> bool:
        """Write a queue and an event; return False if others have changed the queue meanwhile."""
        path = self._paths.queue(name)
        event = self._events.new(ClusterEventKind.QUEUE, f"queue {name}: {queue}")
        data = encode(replace(queue, set_s=time.time(), by=event.by).to_json())

        def build(transaction: TransactionRequest) -> None:
            if is_first:  # a cluster of an earlier version of edl
                transaction.create(self._paths.queues)
            if before is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data, before[1].version)
            self._events.append_in(transaction, event)

        try:
            self._nodes.session.transact("set a queue", build)
        except Refused as refused:
            if is_first and not isinstance(refused.error, NodeExistsError):
                raise self._nodes.unknown() from None
            return False
        return True
