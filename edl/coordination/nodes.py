"""How the nodes of one job are read together, and written without overwriting another writer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from edl.coordination import lifecycle
from edl.coordination.paths import JobPaths
from edl.coordination.reads import OnChange, get
from edl.coordination.session import CHANCE, Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.record import Record
from edl.errors import CoordinationError, UnknownJob

ATTEMPTS = 20  # of a compare-and-set; each is lost only to another writer
PAUSE_S, PAUSE_MAX_S = 0.002, 0.2  # between two of them at random: up to twice as long each time

Values = Mapping[str, Any]  # of one node
Node = tuple[str, bytes]  # path and data
PARSED = 8192  # nodes whose records are kept, so that who looks often reads only new ones

R = TypeVar("R", bound=Record)


class JobNodes:
    """The nodes of the job ``job_name``. Raises ConfigError for an impossible name."""

    def __init__(self, session: Session, job_name: str) -> None:
        self.session = session
        self.paths = JobPaths(job_name)
        self._run: str | None = None

    @property
    def run(self) -> str:
        """The start of the job that this process belongs to: the first one that it has seen.

        Another start under the job's name has another one.
        """
        if self._run is None:
            self._run = lifecycle.current_run(self.session, self.paths)
        if self._run is None:
            raise self.unknown()
        return self._run

    def belong_to(self, run: str) -> None:
        """Belong to the start ``run``, which this process has just created."""
        self._run = run

    def unknown(self) -> UnknownJob:
        """The error for a job that is not there."""
        return lifecycle.unknown_job(self.session, self.paths)

    def read(self, *issues: Any) -> list[Any]:
        """The answers to reads that are sent together; None for a node that is not there."""
        return self.session.read_all(f"read job {self.paths.name}", issues)

    def read_groups(self, *groups: Sequence[str], wake: OnChange = None) -> list[list[Node]]:
        """Read the nodes of all groups in one go; those that are gone are left out."""
        answers = iter(self.read(*(get(path, wake) for group in groups for path in group)))
        found = [[(path, next(answers)) for path in group] for group in groups]
        return [[(path, answer[0]) for path, answer in group if answer] for group in found]

    def compare_and_set(
        self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Replace the value of a node by ``change(value)``; the value that then stands.

        ``change`` gets a copy, may be called again when another writer was faster, and may
        raise to change nothing.

        Raises:
            UnknownJob: there is no such node.
        """

        def alone(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], None]:
            return {path: change(dict(found[path]))}, None

        return dict(self.change_together((path,), alone)[path])

    def change_together(
        self,
        paths: Sequence[str],
        change: Callable[[Mapping[str, Values]], tuple[Mapping[str, Values], Event | None]],
    ) -> Mapping[str, Values]:
        """Write those nodes that ``change`` gives another value, and its event, all or nothing.

        ``change`` sees the values of the nodes that are there, and is called as above. Returned
        are those that then stand; the event is written only when one changes.

        Raises:
            UnknownJob: the first node is not there.
        """
        for attempt in range(ATTEMPTS):
            if attempt:  # two that write again and again would meet each time
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
            build = partial(self._write, writes=writes, event=event)
            with suppress(Refused):  # another writer was faster
                self.session.transact(f"write {paths[0]}", build)
                return {**old, **new}
        raise self.changed_too_often(paths[0])

    def put_ephemeral(
        self, path: str, record: Record, ours: Callable[[Mapping[str, Any]], bool]
    ) -> bool:
        """Write a node that lives as long as this session; False: it belongs to somebody else.

        ``ours`` says of its present value whether it is this process's own, perhaps of an earlier
        session.

        Raises:
            UnknownJob: the job was replaced by a new one of that name.
        """
        data = encode(record.to_json())
        for _ in range(ATTEMPTS):
            answer = self.read(get(path))[0]
            version = None
            if answer is not None:
                if not ours(decode(path, answer[0])):
                    return False
                version = answer[1].version
                if answer[1].ephemeralOwner == self.session.session_id:
                    try:
                        write = partial(_set, path=path, data=data, version=version)
                        self.session.call(f"write {path}", write)
                    except (NoNodeError, BadVersionError):
                        continue
                    return True
            build = partial(self._take, path=path, data=data, version=version)
            try:
                self.session.transact(f"write {path}", build)
            except Refused as refused:
                if refused.index == 0 and isinstance(refused.error, NoNodeError):
                    raise self.unknown() from None
                continue  # it appeared, changed or vanished meanwhile
            return True
        raise self.changed_too_often(path)

    def changed_too_often(self, path: str) -> CoordinationError:
        """The error for a node that others changed at each attempt."""
        return CoordinationError(f"{path} was changed by others {ATTEMPTS} times; try again")

    def _write(
        self,
        transaction: TransactionRequest,
        writes: Sequence[tuple[str, bytes, int]],
        event: Event | None,
    ) -> None:
        for path, data, version in writes:
            transaction.set_data(path, data, version)
        if event is not None:
            transaction.create(f"{self.paths.events}/e-", encode(event.to_json()), sequence=True)

    def _take(
        self, transaction: TransactionRequest, path: str, data: bytes, version: int | None
    ) -> None:
        transaction.check(f"{self.paths.run}/{self.run}", -1)
        if version is not None:
            transaction.delete(path, version)
        transaction.create(path, data, ephemeral=True)


def content(path: str, answer: Any) -> dict[str, Any]:
    """The object in an answer; an empty one without a node."""
    return {} if answer is None else decode(path, answer[0])


def first_of(path: str, answer: Any) -> int:
    """The number that the sequence in a node begins with: not 0 in a job that was written again."""
    return int(content(path, answer).get("first", 0))


def record_or_none(kind: type[R], path: str, answer: Any) -> R | None:
    """The record in an answer; None without a node, or while it is empty."""
    return record(kind, (path, answer[0])) if answer is not None and answer[0] else None


def record(kind: type[R], node: Node) -> R:
    """The record in a node. Raises as :meth:`edl.core.record.Record.from_json`."""
    found: R = _parsed(kind.from_json, node)
    return found


@lru_cache(PARSED)
def _parsed(parse: Callable[[Values], Any], node: Node) -> Any:
    return parse(decode(*node))


def _set(client: Any, path: str, data: bytes, version: int) -> Any:
    return client.set_async(path, data, version)
