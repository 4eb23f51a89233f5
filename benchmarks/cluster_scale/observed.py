"""``python -m benchmarks.cluster_scale.observed FILE ARGUMENTS...``: `edl ARGUMENTS`, observed.

It is the same program. For each turn of a leading controller it writes a line of JSON into FILE:
how long the turn and its parts took, and how many requests it sent to ZooKeeper.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from edl.cli.main import main
from edl.cluster.controller.controller import Controller, ControllerTerm, PlanWriter, RunWriter
from edl.cluster.controller.policy_runner import PolicyRunner


@dataclass
class Turn:
    """One turn of a leading controller.

    Attributes:
        at_s: when it ended, in seconds since 1970.
        turn_s: how long it took.
        read_s: its part in which records are read.
        plan_s: the part in which the plan is computed, with the policy's decision.
        write_s: the part in which the plan is written.
        orders: how many orders it carried out.
        runs: how many runs it created.
        requests: how many requests it sent to ZooKeeper.
        processor_s: processor time of the whole process until then.
        jobs: how many jobs the cluster has that have not ended.
        policy: the policy that was asked.
    """

    at_s: float = 0.0
    turn_s: float = 0.0
    read_s: float = 0.0
    plan_s: float = 0.0
    write_s: float = 0.0
    orders: int = 0
    runs: int = 0
    requests: int = 0
    processor_s: float = 0.0
    jobs: int = 0
    policy: str = ""


class Observer:
    """Writes the turns of the controllers of this process into a file.

    Args:
        path: the file, to which lines are appended.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._now = Turn()

    def install(self) -> None:
        """Observe all controllers of this process from now on."""
        self._wrap(KazooClient, "_call", self._request)
        self._wrap(ControllerTerm, "_read", self._timed("read_s"))
        self._wrap(ControllerTerm, "_plan", self._timed("plan_s"))
        self._wrap(PlanWriter, "write", self._timed("write_s"))
        self._wrap(PolicyRunner, "policy", self._policy)
        self._wrap(RunWriter, "carry_out", self._order)
        self._wrap(RunWriter, "_create", self._creation)
        self._wrap(Controller, "_turn", self._turn)

    @staticmethod
    def _wrap(owner: type, name: str, wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return wrapper(original, *args, **kwargs)

        setattr(owner, name, wrapped)

    def _timed(self, part: str) -> Callable[..., Any]:
        def call(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            began_s = time.monotonic()
            found = original(*args, **kwargs)
            setattr(self._now, part, getattr(self._now, part) + time.monotonic() - began_s)
            if part == "read_s":
                jobs = found.snapshot.jobs
                self._now.jobs = sum(job.life.state != "ended" for job in jobs)
            return found

        return call

    def _request(self, original: Callable[..., Any], *args: Any) -> Any:
        self._now.requests += 1
        return original(*args)

    def _policy(self, original: Callable[..., Any], owner: PolicyRunner, settings: Any) -> Any:
        self._now.policy = settings.policy
        return original(owner, settings)

    def _order(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._now.orders += 1
        return original(*args, **kwargs)

    def _creation(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._now.runs += 1
        return original(*args, **kwargs)

    def _turn(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began_s = time.monotonic()
        found = original(*args, **kwargs)
        done, self._now = self._now, Turn()
        if done.read_s > 0:  # else it does not lead
            done.turn_s = time.monotonic() - began_s
            done.at_s, done.processor_s = time.time(), time.process_time()
            self._file.write(json.dumps(asdict(done)) + "\n")
        return found


if __name__ == "__main__":
    Observer(Path(sys.argv[1])).install()
    sys.argv = ["edl", *sys.argv[2:]]
    main()
