"""Change a cluster for the request of a tenant: once, and only while the leader's term lasts.

The leader does what a client would do, by the same code, but each transaction of that code also
checks the term, removes the request and writes the answer. So none of the three happens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.client import TransactionRequest

from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.cluster.writer import ClusterWriter
from edl.coordination.election import Write
from edl.coordination.session import Refused


class RequestLost(Exception):
    """A request was answered or removed meanwhile, or cannot be removed; nothing was written."""


class RequestNodes(ClusterNodes):
    """The nodes of a cluster, whose transactions carry out one request of a tenant."""

    def __init__(self, nodes: ClusterNodes, writer: ClusterWriter, answer: Sequence[Write]) -> None:
        super().__init__(nodes.session, nodes.paths)
        self._writer = writer
        self._answer = tuple(answer)
        self.is_answered = False  # by a transaction that was done

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        """Do what `build` adds in one transaction with the fence and the answer to the request."""
        try:
            results = self._writer.transact(what, self._answer, build)
        except Refused as refused:
            index = refused.index - len(self._answer)
            if index < 0:
                raise RequestLost(f"cannot {what}: {refused.error!r}") from refused
            raise Refused(index, refused.error) from refused
        self.is_answered = True
        return results
