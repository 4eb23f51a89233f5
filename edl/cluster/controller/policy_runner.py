"""Give the leader the policy of its cluster; leave one that fails alone for a while.

While the policy cannot be asked, jobs keep their slots
(:class:`edl.cluster.allocate.KeepAllocation`). It is asked again after a rest, or as soon as
somebody has changed the policy or its parameters.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec

from edl.cluster.allocate import KeepAllocation
from edl.cluster.policies.registry import checked_allocation
from edl.cluster.records import ClusterRecord
from edl.cluster.state import Allocation, ClusterPolicy, ClusterState
from edl.cluster_policies import is_own, load_own_policy, policy_of
from edl.errors import UsageError
from edl.host.workers import die_with_parent
from edl.text import counted

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Keep a process beside a controller: `edl host` of this machine, or the HTTP API.


GPUS = Path("/proc/driver/nvidia/gpus")  # a directory for each GPU, where there is NVIDIA's driver
STABLE_S = 60.0  # a process that lived for so long is started again at once
FIRST_PAUSE_S = 1.0  # between its end and its next start
MAX_PAUSE_S = 30.0
LEAVE_S = 60.0  # for the host's jobs to leave it, before it is killed


class BackgroundProcess:
    def __init__(self, words: Sequence[str], what: str, say: Callable[[str], None]) -> None:
        self._command = [sys.executable, "-m", "edl.cli.main", *words]
        self._what = what
        self._say = say
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()  # of the process
        self._thread = threading.Thread(
            target=self._keep, name="edl-background-process", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def end(self, within_s: float = LEAVE_S) -> None:
        self._ending.set()
        with self._changing:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._thread.join(within_s)

    def kill(self) -> None:
        """Send a further SIGTERM to the process; `edl host` then kills all that lives there."""
        self._ending.set()
        with self._changing:
            if self._process is not None:
                self._process.terminate()

    def _keep(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._ending.is_set():
            began_s = time.monotonic()
            with self._changing:
                if self._ending.is_set():
                    return
                # Another `edl host` adopts what it has started, but cannot come while it lives; nor
                # can another API listen.
                self._process, end = None, ""
                try:
                    self._process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                except (OSError, subprocess.SubprocessError) as error:
                    end = f"cannot be started: {error}"
            if self._process is not None:
                end = f"has ended with {self._process.wait()}"
            if self._ending.is_set():
                return
            if time.monotonic() - began_s >= STABLE_S:
                pause_s = FIRST_PAUSE_S
            self._say(f"{self._what} {end}; it is started again in {pause_s:g} s")
            self._ending.wait(pause_s)
            pause_s = min(MAX_PAUSE_S, 2 * pause_s)


def slots_here(visible: str | None) -> int | None:
    """Return how many slots this machine offers by default; None: as `edl host` does by itself."""
    if visible:
        return None
    gpus = len(list(GPUS.iterdir())) if GPUS.is_dir() else 0
    return gpus or len(os.sched_getaffinity(0))


# ------------------------------------------------------------
# Ask a user's cluster policy in a process of its own, for a limited time.
#
# The leader of a cluster must go on whatever the user's code does: raise, answer nonsense, end its
# process, or take for ever. So the code runs in a child process, which is killed if an answer takes
# too long, and when the leader dies. The leader gets only JSON from it.
#
# As a program, this module is that child: it gets questions by the file descriptor that is its
# first argument, pickled, and answers each by a JSON object.


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
        assert self._child is not None
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
            code = None
            with suppress(subprocess.TimeoutExpired):
                code = self._child.wait(1.0)
            self.close()
            how = "" if code is None else f" with code {code}"
            raise UsageError(f"the process of the policy {self.name} has ended{how}")
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

    def _start(self) -> None:
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
    answers: queue.SimpleQueue[Mapping[str, Any] | None],
) -> None:
    """Send a question to the child, and put its answer into `answers`; None: it has hung up."""
    answer = None
    with suppress(EOFError, OSError):  # it has ended, or was killed by another thread
        connection.send(cluster)
        answer = msgspec.json.decode(connection.recv_bytes())
    answers.put(answer)


def _serve(connection: Connection) -> None:
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


REST_S = 30.0  # of a policy that has failed, before it is asked again


class PolicyRunner:
    def __init__(self, say: Callable[[str], None], rest_s: float = REST_S) -> None:
        self._say = say
        self._rest_s = rest_s
        self._settings = ""  # the policy and its parameters, as a text
        self._process: PolicyProcess | None = None
        self._why = ""  # it failed the last time; empty: it has not
        self._rests_until_s = -math.inf  # by the monotonic clock

    def policy(self, settings: ClusterRecord) -> ClusterPolicy:
        """Return the policy that `settings` name; while it rests, one that changes nothing."""
        chosen = f"{settings.policy} {settings.parameters}"
        if chosen != self._settings:
            self.close()
            self._settings, self._why, self._rests_until_s = chosen, "", -math.inf
        if time.monotonic() < self._rests_until_s:
            return KeepAllocation(self._why)
        if is_own(settings.policy):
            if self._process is None:
                self._process = PolicyProcess(settings.policy, settings.parameters)
            return self._process
        try:
            return policy_of(settings)
        except UsageError as error:  # another version of edl may have this policy
            return self.failed(str(error))

    def worked(self) -> None:
        self._why = ""

    def failed(self, reason: str) -> KeepAllocation:
        if reason != self._why:
            self._say(f"jobs keep their slots: {reason}")
        self._why, self._rests_until_s = reason, time.monotonic() + self._rest_s
        return KeepAllocation(reason)

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


if __name__ == "__main__":
    with suppress(EOFError):  # the leader has ended
        _serve(Connection(int(sys.argv[1])))
