"""Read the nodes of a job or a cluster together, and write them without overwriting others.

:class:`JobNodes` is the access to one job, ``ClusterNodes`` of ``cluster.nodes`` that to one
cluster.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Generic, Protocol, TypeVar

from kazoo.client import TransactionRequest

from edl.coordination import lifecycle
from edl.coordination.paths import JobPaths
from edl.coordination.reads import OnChange, get
from edl.coordination.session import CHANCE, Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.record import Record
from edl.errors import CoordinationError, EdlError, UnknownJob

ATTEMPTS = 20  # of a compare-and-set; an attempt fails only if another process wrote
PAUSE_S, PAUSE_MAX_S = 0.002, 0.2  # random pause between attempts; its limit doubles each time

Values = Mapping[str, Any]  # the JSON object in a node
Node = tuple[str, bytes]  # path and data
PARSED = 8192  # nodes whose parsed records are cached, so that only changed ones are parsed

R = TypeVar("R", bound=Record)


class NodePaths(Protocol):
    """The paths that `Nodes` needs of the nodes of a job or a cluster."""

    events: str

    def event(self, number: int) -> str:
        """Return the path of the event node with the sequence number `number`."""


P = TypeVar("P", bound=NodePaths)


class Nodes(ABC, Generic[P]):
    """Access to the nodes of one job, or of one cluster, through one session."""

    def __init__(self, session: Session, paths: P, what: str) -> None:
        self.session = session
        self.paths = paths
        self.what = what

    @abstractmethod
    def unknown(self) -> EdlError:
        """Return the error that the job or cluster does not exist, for the caller to raise."""

    @property
    def fence(self) -> str | None:
        """The path of a node without which `change_together` writes nothing; None: no node."""
        return None

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        """Do what `build` adds to a transaction, or nothing of it; see `transact`."""
        return self.session.transact(what, build)

    def read(self, *issues: Any) -> list[Any]:
        """Send all reads together; return their answers in order, None for a missing node."""
        return self.session.read_all(f"read {self.what}", issues)

    def read_groups(self, *groups: Sequence[str], wake: OnChange = None) -> list[list[Node]]:
        """Read the nodes of several lists together, without the nodes that do not exist."""
        answers = iter(self.read(*(get(path, wake) for group in groups for path in group)))
        found = [[(path, next(answers)) for path in group] for group in groups]
        return [[(path, answer[0]) for path, answer in group if answer] for group in found]

    def compare_and_set(
        self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        def alone(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], None]:
            return {path: change(dict(found[path]))}, None

        return dict(self.change_together((path,), alone)[path])

    def change_together(
        self,
        paths: Sequence[str],
        change: Callable[[Mapping[str, Values]], tuple[Mapping[str, Values], Record | None]],
    ) -> Mapping[str, Values]:
        """Change nodes and append an event, in one transaction, unless no value changes."""
        for attempt in range(ATTEMPTS):
            if attempt:  # without pauses two frequent writers would collide each time
                time.sleep(CHANCE.uniform(0.0, min(PAUSE_MAX_S, PAUSE_S * 2**attempt)))
            answers = zip(paths, self.read(*map(get, paths)), strict=True)
            there = {path: answer for path, answer in answers if answer is not None}
            if paths[0] not in there:
                raise self.unknown()
            old = {path: decode(path, data) for path, (data, _) in there.items()}
            new, event = change(old)
            writes = [
                (path, encode(values), there[path][1].version)
                for path, values in new.items()
                if values != old[path]
            ]
            if not writes:
                return old
            if self.try_write(writes, event):
                return {**old, **new}
        raise self.changed_too_often(paths[0])

    def try_write(self, writes: Sequence[tuple[str, bytes, int]], event: Record | None) -> bool:
        """Write several nodes and append an event, in one transaction, or do nothing."""
        build = partial(self._write, writes=writes, event=event)
        try:
            self.transact(f"write {writes[0][0]}", build)
        except Refused as refused:
            if self.fence is not None and refused.is_missing(0):
                raise self.unknown() from None
            return False  # another writer was faster
        return True

    def changed_too_often(self, path: str) -> CoordinationError:
        """Return the error to raise when others changed the node `path` at each attempt."""
        return CoordinationError(f"{path} was changed by others {ATTEMPTS} times; try again")

    def _write(
        self,
        transaction: TransactionRequest,
        writes: Sequence[tuple[str, bytes, int]],
        event: Record | None,
    ) -> None:
        """Add the check of the fence, writes and an event to a transaction, in this order."""
        if self.fence is not None:
            transaction.check(self.fence, -1)
        for path, data, version in writes:
            transaction.set_data(path, data, version)
        if event is not None:
            transaction.create(f"{self.paths.events}/e-", encode(event.to_json()), sequence=True)


class JobNodes(Nodes[JobPaths]):
    """Access to the nodes of one job through one session."""

    def __init__(self, session: Session, job_name: str) -> None:
        super().__init__(session, JobPaths(job_name), f"job {job_name}")
        self._run: str | None = None

    @property
    def run(self) -> str:
        """The token of the start of the job that this process belongs to."""
        if self._run is None:
            self._run = lifecycle.current_run(self.session, self.paths)
        if self._run is None:
            raise self.unknown()
        return self._run

    @property
    def fence(self) -> str | None:
        """The node of the start that this process belongs to, which so writes into no later one."""
        return None if self._run is None else f"{self.paths.run}/{self._run}"

    def belong_to(self, run: str) -> None:
        """Make this process belong to a start of the job."""
        self._run = run

    def unknown(self) -> UnknownJob:
        """Return the error that the job does not exist; its text names this user's jobs that do."""
        return lifecycle.unknown_job(self.session, self.paths)

    def put_ephemeral(
        self,
        path: str,
        record: Record,
        ours: Callable[[Mapping[str, Any]], bool],
        conditions: Callable[[], Mapping[str, int]] = dict,
    ) -> bool:
        """Write `record` into an ephemeral node, which ends with this session."""
        data = encode(record.to_json())
        for _ in range(ATTEMPTS):
            answer = self.read(get(path))[0]
            if answer is not None and not ours(decode(path, answer[0])):
                return False
            build = partial(self._put, path=path, data=data, old=answer, versions=conditions())
            try:
                self.session.transact(f"write {path}", build)
            except Refused as refused:
                if refused.is_missing(0):
                    raise self.unknown() from None
                continue  # it appeared, changed or vanished meanwhile
            return True
        raise self.changed_too_often(path)

    def _put(
        self,
        transaction: TransactionRequest,
        path: str,
        data: bytes,
        old: Any,
        versions: Mapping[str, int],
    ) -> None:
        """Add the write of an ephemeral node to a transaction."""
        transaction.check(f"{self.paths.run}/{self.run}", -1)
        for other, version in versions.items():
            transaction.check(other, version)
        # Set the node if this session has made it, and else replace it: it ends with its session.
        if old is not None and old[1].ephemeralOwner == self.session.session_id:
            transaction.set_data(path, data, old[1].version)
            return
        if old is not None:
            transaction.delete(path, old[1].version)
        transaction.create(path, data, ephemeral=True)


def content(path: str, answer: Any) -> dict[str, Any]:
    """Return the JSON object of the node at `path`; an empty one if there is no such node."""
    return {} if answer is None else decode(path, answer[0])


def first_of(path: str, answer: Any) -> int:
    """Return the number to add to the sequence numbers of the children of the node at `path`."""
    return int(content(path, answer).get("first", 0))


def record_or_none(kind: type[R], path: str, answer: Any) -> R | None:
    """Return the record that the node at `path` holds; None without a node, or if it is empty."""
    return record(kind, (path, answer[0])) if answer is not None and answer[0] else None


def record(kind: type[R], node: Node) -> R:
    """Return the record that a node holds; for empty data, the default record."""
    found: R = _parsed(kind.from_json, node)
    return found


@lru_cache(PARSED)
def _parsed(parse: Callable[[Values], Any], node: Node) -> Any:
    return parse(decode(*node))
