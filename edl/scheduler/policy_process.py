"""Ask a user's cluster policy in a process of its own, for a limited time.

The leader of a cluster must go on whatever the user's code does: raise, answer nonsense, end its
process, or take for ever. So the code runs in a child process, which is killed if an answer takes
too long, and when the leader dies. The leader gets only JSON from it.

As a program, this module is that child: it gets questions by the file descriptor that is its first
argument, pickled, and answers each by a JSON object.
"""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from edl.cluster_policies import load_own_policy
from edl.core.cluster.own_policy import checked_allocation
from edl.core.cluster.state import Allocation, ClusterState
from edl.core.plural import counted
from edl.errors import UsageError
from edl.launch.parent import die_with_parent

logger = logging.getLogger(__name__)

LIMIT_S = 10.0  # for an answer; for the first one with the import of the user's module


class PolicyProcess:
    """A cluster policy that a user has written, in a child process; an object is called as any."""

    def __init__(self, name: str, parameters: Mapping[str, Any], limit_s: float = LIMIT_S) -> None:
        self.name = name
        self._parameters = dict(parameters)
        self._limit_s = limit_s
        self._child: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def __repr__(self) -> str:
        # the digest of a decision is made from it
        return f"PolicyProcess({self.name!r}, {self._parameters!r})"

    def __call__(self, cluster: ClusterState) -> Allocation:
        if self._child is None:
            self._start()
        assert self._connection is not None
        found: queue.SimpleQueue[Mapping[str, Any] | None] = queue.SimpleQueue()
        asked = threading.Thread(
            target=_exchange, args=(self._connection, cluster, found), daemon=True
        )
        asked.start()
        try:
            answer = found.get(timeout=self._limit_s)
        except queue.Empty:
            self.close()
            raise UsageError(
                f"the policy {self.name} has not answered within {self._limit_s:g} s, about "
                f"{counted(len(cluster.jobs), 'job')}"
            ) from None
        if answer is None:
            raise UsageError(f"the process of the policy {self.name} has ended{self._how_ended()}")
        if "error" in answer:
            self.close()
            logger.error("%s", answer["traceback"])
            raise UsageError(str(answer["error"]))
        return checked_allocation(self.name, msgspec.convert(answer["decision"], Allocation))

    def close(self) -> None:
        """Kill the child, if there is one; the next call of this object starts another one."""
        child, self._child = self._child, None
        connection, self._connection = self._connection, None
        if child is not None:
            child.kill()
            child.wait()
        if connection is not None:
            connection.close()

    def _how_ended(self) -> str:
        """Return the end of a sentence about a child that has hung up, and close this object."""
        code = None
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                code = self._child.wait(1.0)
        self.close()
        return "" if code is None else f" with code {code}"

    def _start(self) -> None:
        """Start the child, and tell it the policy."""
        mine, its = socket.socketpair()
        with its:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(its.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                preexec_fn=die_with_parent,
            )
        self._connection = Connection(mine.detach())
        self._connection.send((self.name, self._parameters))


def _exchange(
    connection: Connection,
    cluster: ClusterState,
    found: queue.SimpleQueue[Mapping[str, Any] | None],
) -> None:
    """Send a question to the child, and put its answer into `found`; None: it has hung up."""
    answer = None
    with suppress(EOFError, OSError):  # it has ended, or was killed by another thread
        connection.send(cluster)
        answer = msgspec.json.decode(connection.recv_bytes())
    found.put(answer)


def _serve(connection: Connection) -> None:
    """Answer questions about a policy, of which the first message has name and parameters."""
    name, parameters = connection.recv()
    policy = None
    while True:
        cluster = connection.recv()
        try:
            policy = policy or load_own_policy(name, parameters)
            answer = {"decision": msgspec.to_builtins(policy(cluster))}
        except UsageError as error:
            answer = {"error": str(error), "traceback": traceback.format_exc()}
        connection.send_bytes(msgspec.json.encode(answer))


if __name__ == "__main__":
    with suppress(EOFError):  # the leader has ended
        _serve(Connection(int(sys.argv[1])))
