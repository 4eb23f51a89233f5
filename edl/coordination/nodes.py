"""How the nodes of one job are read together, and written without overwriting another writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from edl.coordination import lifecycle
from edl.coordination.paths import JobPaths
from edl.coordination.reads import Waker, get
from edl.coordination.session import Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.record import Record
from edl.errors import CoordinationError, UnknownJob

ATTEMPTS = 20  # of a compare-and-set; each is lost only to another writer

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

    def read_groups(
        self, groups: list[list[tuple[str, Waker]]]
    ) -> list[list[tuple[str, dict[str, Any]]]]:
        """Read the nodes of all groups in one go; those that are gone are left out."""
        answers = iter(self.read(*(get(path, wake) for group in groups for path, wake in group)))
        return [
            [
                (path, decode(path, answer[0]))
                for path, answer in [(path, next(answers)) for path, _ in group]
                if answer is not None
            ]
            for group in groups
        ]

    def compare_and_set(
        self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Replace the value of a node by ``change(value)``; the value that then stands.

        ``change`` gets a copy, may be called again when another writer was faster, and may
        raise to change nothing.

        Raises:
            UnknownJob: there is no such node.
        """
        for _ in range(ATTEMPTS):
            answer = self.read(get(path))[0]
            if answer is None:
                raise self.unknown()
            old = decode(path, answer[0])
            new = change(dict(old))
            if new == old:
                return old
            write = partial(_set, path=path, data=encode(new), version=answer[1].version)
            try:
                self.session.call(f"write {path}", write)
            except BadVersionError:
                continue
            except NoNodeError:
                raise self.unknown() from None
            return new
        raise self.changed_too_often(path)

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


def record_or_none(kind: type[R], path: str, answer: Any) -> R | None:
    """The record in an answer; None without a node, or while it is empty."""
    found = content(path, answer)
    return kind.from_json(found) if found else None


def _set(client: Any, path: str, data: bytes, version: int) -> Any:
    return client.set_async(path, data, version)
