"""Keep what one process last read of a job, and write the job again into an empty ZooKeeper.

ZooKeeper forgets a job when its disk is lost, when it runs in a container without a disk, or when
somebody removes the tree. The workers train on, but every command is told that there is no such
job. So the job's own processes write it again (:meth:`JobCopy.write`): its record, policy and
profile, the desired numbers of workers, the decisions of the leader, the evictions, and what an
unchanged script's workers have exchanged, which newcomers need. Each process then adds its own
nodes, as after a lost session. Events, requests, the status, and what the job has learned of its
sizes are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from kazoo.client import TransactionRequest

from edl.coordination.lifecycle import create_nodes
from edl.coordination.paths import JOBS, JobPaths
from edl.coordination.session import Refused, Session
from edl.coordination.shared_nodes import ensure_shared
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.records import Generation, Job

NUMBERS = 10**6  # event numbers and worker ids for each writing; no later one was used before


class JobCopy:
    """A copy of a job's describing nodes and evictions, as this process last read them."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._fixed: dict[str, bytes] = {}
        self._evicted: dict[str, bytes] = {}

    def keep(self, fixed: Mapping[str, Any], evicted: Iterable[tuple[str, bytes]]) -> None:
        """Replace the copy by the answers to a newer read."""
        # With a node missing, the job is lost or being removed: the copy stays.
        if None not in fixed.values():
            self._fixed = {path: answer[0] for path, answer in fixed.items()}
            self._evicted = dict(evicted)

    @property
    def job(self) -> Job | None:
        """The record of the job in the copy; None if the job was never read."""
        data = self._fixed.get(self._paths.job)
        return None if not data else Job.from_json(decode(self._paths.job, data))

    @property
    def generation(self) -> Generation | None:
        """The newest generation in the copy; None if there was none."""
        data = self._fixed.get(self._paths.generation)
        return None if not data else Generation.from_json(decode(self._paths.generation, data))

    @property
    def written_again(self) -> int:
        """How often, as of the copy, the job had been written into an empty ZooKeeper; 0: never."""
        return self._first_event() // NUMBERS

    @property
    def evicted(self) -> frozenset[int]:
        """The ids of the evicted workers in the copy."""
        return frozenset(int(path.rsplit("/", 1)[1]) for path in self._evicted)

    def write(self, session: Session, run: str, event: Event) -> bool:
        """Create the job's nodes again from the copy and append an event, in one transaction."""
        ensure_shared(session, "write a job", JOBS)
        build = partial(self._build, run=run, event=event)
        try:
            session.transact(f"write job {self._paths.name} again", build)
        except Refused:
            return False
        return True

    def _build(self, transaction: TransactionRequest, run: str, event: Event) -> None:
        """Add to `transaction` the creation of the job's nodes, its evictions and an event."""
        # The copy does not know all ids and event numbers that were used. A worker that has not
        # joined a ring yet keeps its own.
        paths = self._paths
        first = encode({"first": self._first_event() + NUMBERS})
        contents = {**self._fixed, paths.ids: first, paths.events: first}
        create_nodes(transaction, paths, run, contents)
        for path, data in self._evicted.items():
            transaction.create(path, data)
        transaction.create(f"{paths.events}/e-", encode(event.to_json()), sequence=True)

    def _first_event(self) -> int:
        """Return the number at which the event log began, as of the copy; 0 in a job never lost."""
        data = self._fixed.get(self._paths.events, b"")
        return int(decode(self._paths.events, data).get("first", 0))
