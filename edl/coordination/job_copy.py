"""What one process has read of a job last: enough to write it again into an empty ZooKeeper.

ZooKeeper forgets when its disk is lost, when it runs in a container without one, or when somebody
removes the tree. The workers train on, and whoever asks is told that there is no such job. So its
own processes write it again: what it is, what is desired and decided, who was evicted. Each adds
its own nodes, as after a lost session. Events and requests are lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from kazoo.client import TransactionRequest

from edl.coordination.access import SHARED
from edl.coordination.lifecycle import create_nodes
from edl.coordination.paths import JOBS, JobPaths
from edl.coordination.session import Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.records import Generation, Job

NUMBERS = 10**6  # for the events of each writing: whoever has read some finds the later ones


class JobCopy:
    """The fixed nodes of a job and its evictions, as they were read last; empty before that."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._fixed: dict[str, bytes] = {}
        self._evicted: dict[str, bytes] = {}

    def keep(self, fixed: Mapping[str, Any], evicted: Iterable[tuple[str, bytes]]) -> None:
        """Remember the answers of ``fixed`` nodes, unless one is missing: it is being removed."""
        if None not in fixed.values():
            self._fixed = {path: answer[0] for path, answer in fixed.items()}
            self._evicted = dict(evicted)

    @property
    def job(self) -> Job | None:
        """The job; None: it was never read."""
        data = self._fixed.get(self._paths.job)
        return None if not data else Job.from_json(decode(self._paths.job, data))

    @property
    def generation(self) -> Generation | None:
        """The newest generation; None: there was none."""
        data = self._fixed.get(self._paths.generation)
        return None if not data else Generation.from_json(decode(self._paths.generation, data))

    @property
    def written_again(self) -> int:
        """How often the job was."""
        return self._first_event() // NUMBERS

    @property
    def evicted(self) -> frozenset[int]:
        """The workers that were evicted."""
        return frozenset(int(path.rsplit("/", 1)[1]) for path in self._evicted)

    def write(self, session: Session, run: str, event: Event) -> bool:
        """Write the job again, with ``event``; False: somebody else has written one of its name.

        ``run``: the start of the job that it was.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        session.call("write a job", lambda c: c.ensure_path_async(JOBS, acl=SHARED), repeat=True)
        build = partial(self._build, run=run, event=event)
        try:
            session.transact(f"write job {self._paths.name} again", build)
        except Refused:
            return False
        return True

    def _build(self, transaction: TransactionRequest, run: str, event: Event) -> None:
        paths = self._paths
        first_id = 1 + max(self._ids(), default=-1)
        firsts = {paths.ids: first_id, paths.events: self._first_event() + NUMBERS}
        counters = {path: encode({"first": first}) for path, first in firsts.items()}
        create_nodes(transaction, paths, run, {**self._fixed, **counters})
        for path, data in self._evicted.items():
            transaction.create(path, data)
        transaction.create(f"{paths.events}/e-", encode(event.to_json()), sequence=True)

    def _first_event(self) -> int:
        data = self._fixed.get(self._paths.events, b"")
        return int(decode(self._paths.events, data).get("first", 0))

    def _ids(self) -> set[int]:
        """The ids that may not be given again: a worker has them, or is known by them to others."""
        now = self.generation
        members = (*now.members, *now.previous) if now is not None else ()
        return {member.id for member in members} | self.evicted
