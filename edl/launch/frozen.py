"""Find the workers of this host that do not answer their agent, and record where they hang.

The agent asks only workers whose ZooKeeper session has ended or that were evicted. Agent and worker
are on the same host, so the network cannot be the cause: a worker that does not answer is frozen,
or too overloaded to be of use. The agent's loop has one :class:`UnresponsiveWorkers`. It calls
``look()`` after each reading of the job's records, and ``write_stacks()`` before it ends a worker
that does not answer. ``look_for_suspended()``, which reads ``/proc``, is called in each turn.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edl.coordination.job_store import JobStore
from edl.coordination.observations import worker_frozen
from edl.core.host.process import Process
from edl.core.host.restart_policy import to_ask, waiting_members
from edl.core.host.supervision import State
from edl.core.job.liveness import Liveness
from edl.core.snapshot import Snapshot
from edl.http.client import answering, ask_all
from edl.launch.workers import Workers

logger = logging.getLogger(__name__)

ASK_TIMEOUT_S = 0.5
_OF_A_THREAD = ("comm", "wchan", "syscall")  # in /proc; syscall only with the right to trace it


class UnresponsiveWorkers:
    """A detector of workers here that do not answer, which also records where they hang."""

    def __init__(self, store: JobStore, host: str, workers: Workers, stack_signal: int) -> None:
        self._store = store
        self._host = host
        self._workers = workers
        self._signal = stack_signal
        self._doors: dict[str, tuple[str, int]] = {}  # attempt id -> address and port
        self._unreported: dict[Path, Process] = {}  # by the file with the stacks of the process

    def look(
        self, processes: Sequence[Process], snapshot: Snapshot, now: float
    ) -> tuple[Process, ...]:
        """Ask suspect workers over HTTP whether they run; note since when each has not answered."""
        for path, process in list(self._unreported.items()):
            worker_frozen(self._store, process, self._host, str(path), snapshot)
            del self._unreported[path]
        ring = {m.id: (m.address, m.port) for m in snapshot.ring}
        # A worker that an earlier agent left, frozen, may have no record but in the ring.
        of_ring = {p.attempt_id: ring[p.worker] for p in processes if p.worker in ring}
        self._doors = of_ring | self._doors
        self._doors |= {m.attempt_id: (m.address, m.port) for m in snapshot.members}
        alive = {p.attempt_id for p in processes if p.alive}
        self._doors = {
            attempt_id: door for attempt_id, door in self._doors.items() if attempt_id in alive
        }
        asked = [p.attempt_id for p in to_ask(processes, snapshot) if p.attempt_id in self._doors]
        answers = ask_all(
            {n: self._doors[attempt_id] for n, attempt_id in enumerate(asked)}, ASK_TIMEOUT_S
        )
        silent = {asked[n] for n, got in answers.items() if got.liveness is Liveness.SILENT}
        return tuple(
            replace(
                p,
                unresponsive_since=(now if p.unresponsive_since is None else p.unresponsive_since)
                if p.attempt_id in silent
                else None,
            )
            for p in processes
        )

    def look_for_suspended(self, own: State, snapshot: Snapshot, now: float) -> State:
        """Note which workers are suspended and, if one is for too long, who waits for it."""

        def since(process: Process) -> float | None:
            if not process.alive or not self._is_suspended(process):
                return None
            return now if process.suspended_since is None else process.suspended_since

        processes = (replace(each, suspended_since=since(each)) for each in own.processes)
        own = replace(own, processes=tuple(processes))
        asked = waiting_members(snapshot, own, now)
        waiting = answering(asked, self._store.nodes.run, ASK_TIMEOUT_S) if asked else frozenset()
        return replace(own, waiting=waiting)

    def _is_suspended(self, process: Process) -> bool:
        """Return whether the kernel reports `process` as stopped by a signal."""
        pid = self._workers.pid_of(process.attempt_id)
        if pid is None:
            return False
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] == ["T"]

    def write_stacks(self, process: Process) -> None:
        """Let an unresponsive worker write its stacks; the next `look` records them."""
        path, pid = (
            self._workers.stacks_of(process.attempt_id),
            self._workers.pid_of(process.attempt_id),
        )
        if pid is None:
            return
        obeys = self._signal > 0 and path.exists()  # else the signal would end it
        try:
            with path.open("a") as file:
                file.write(f"{process.name} (process {pid}) does not answer; its threads:\n")
                file.writelines(_native(pid))
            if obeys:
                os.kill(pid, self._signal)
        except OSError as error:
            logger.warning("where %s hangs is not known: %s", process.name, error)
            return
        self._unreported[path] = process


def _native(pid: int) -> list[str]:
    """Return one line for each thread of process `pid`: what the thread waits for in the kernel."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        values = []
        for name in _OF_A_THREAD:
            with contextlib.suppress(OSError):
                values.append(f"{name} {(task / name).read_text(errors='replace').strip()}")
        lines.append(f"  thread {task.name}: {'; '.join(values)}\n")
    return lines
