"""Write requests to the leader of a job, and read its answers; each request is handled once.

:class:`RequestNodes` is the ``requests`` of a job's ``JobStore``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from kazoo.exceptions import BadVersionError, NoNodeError

from edl.coordination.nodes import ATTEMPTS, JobNodes
from edl.coordination.paths import sequence
from edl.coordination.reads import get
from edl.coordination.wire import decode, encode
from edl.core.records import Request
from edl.errors import CoordinationError


class RequestNodes:
    """The nodes of the requests to the leader of one job; requests are numbered from 0."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def add(self, request: Request) -> int:
        """Write `request` for the leader, and return the number that ZooKeeper gave it."""
        data = encode(replace(request, number=-1).to_json())
        parent = self._nodes.paths.requests
        try:
            path: str = self._nodes.session.call(
                "write a request",
                lambda c: c.create_async(f"{parent}/r-", data, sequence=True),
            )
        except NoNodeError:
            raise self._nodes.unknown() from None
        return sequence(path)

    def get(self, number: int) -> Request:
        """Read and return the request with the number `number`; `done` says if it was answered."""
        request, _ = self._read(number)
        if request is None:
            raise CoordinationError(f"job {self._nodes.paths.name} has no request number {number}")
        return request

    def cancel(self, number: int) -> Request | None:
        """Withdraw the request with the number `number`, so that the leader does not act on it."""
        path = self._nodes.paths.request(number)
        for _ in range(ATTEMPTS):
            request, version = self._read(number)
            if request is None or request.done:
                return request
            issue = partial(_delete, path=path, version=version)
            try:
                self._nodes.session.call("withdraw a request", issue)
            except BadVersionError:
                continue
            except NoNodeError:
                pass
            return None
        raise self._nodes.changed_too_often(path)

    def _read(self, number: int) -> tuple[Request | None, int]:
        path = self._nodes.paths.request(number)
        answer = self._nodes.session.read_all("read a request", [get(path)])[0]
        if answer is None:
            return None, -1
        request = Request.from_json(decode(path, answer[0]))
        return replace(request, number=number), answer[1].version


def _delete(client: Any, path: str, version: int) -> Any:
    return client.delete_async(path, version)
