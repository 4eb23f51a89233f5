"""Fence all transactions of a session by the term of a leader that was elected elsewhere.

The leader of a cluster writes into the nodes of jobs, too: it creates, places and stops their runs.
Such a write must do nothing once another controller leads. So the session with which it writes
there proves the secret of the cluster beside those of the jobs, and each of its transactions checks
the cluster's election, too. :class:`FencedSession` is such a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import TransactionRequest

from edl.coordination.election import Leadership
from edl.coordination.session import Refused, Session
from edl.errors import CoordinationError


class FencedSession(Session):
    """A session that can only read before `lead`, and changes nothing once that term is over."""

    _leadership: Leadership | None = None

    def lead(self, leadership: Leadership) -> None:
        """Fence all transactions by the term of `leadership` from now on."""
        # Another server of ZooKeeper than that of the election may be some writes behind.
        self.catch_up()
        self._leadership = leadership

    def catch_up(self) -> None:
        """Wait until this session can read all that any session has written before the call."""
        self.call("catch up", lambda client: client.sync_async("/"), repeat=True)

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        leadership = self._leadership
        if leadership is None:
            raise CoordinationError(f"cannot {what}: this session writes for no leader")

        def fenced(transaction: TransactionRequest) -> None:
            leadership.add_fence(transaction)
            build(transaction)

        try:
            results = super().transact(what, fenced)
        except Refused as refused:
            raise leadership.checked(refused) from refused
        return results[leadership.CHECKS :]
