"""The members of a ring of Horovod's: processes that run the cases, one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from queue import Queue
from typing import Any, Self

import cases
import forked

from edl.ring.rendezvous import RendezvousServer

MEMBER = Path(__file__).with_name("member.py")
START_S = 180.0  # for a framework to be imported, on a busy machine
CASE_S = 90.0
EACH = 10  # generations of a case


class Processes:
    bound_s = 25.0  # for a break to show: below Gloo's own time-out of 30 s

    def __init__(self, framework: str) -> None:
        self._framework = framework
        self._server = RendezvousServer("127.0.0.1", health=dict)
        self._processes: list[subprocess.Popen[str]] = []
        self._cases = 0
        self._listeners: list[threading.Thread] = []
        self._lines: Queue[tuple[int, str]] = Queue()

    def __enter__(self) -> Self:
        self._server.start()
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        for worker in range(cases.WORKERS):
            command = [MEMBER, self._framework, str(worker), str(self._server.port)]
            self._processes.append(
                forked.Python(
                    self._framework,
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # Horovod tells of each broken ring
                    env=environment,
                )
            )
        for worker, process in enumerate(self._processes):
            thread = threading.Thread(target=self._listen, args=(worker, process), daemon=True)
            thread.start()
            self._listeners.append(thread)
        for _ in self._processes:
            assert self._next(START_S)[1] == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for thread in self._listeners:
            thread.join(10)
        for process in self._processes:
            process.communicate()
        self._server.close()

    def run(self, case: str) -> list[Any]:
        self._cases += 1
        base = self._cases * EACH
        for process in self._processes:
            assert process.stdin is not None
            print(case, base, file=process.stdin, flush=True)
        results: dict[int, Any] = {}
        announced: set[str] = set()
        given_up: set[str] = set()  # by another process, which may be heard first
        while len(results) < len(self._processes):
            worker, line = self._next(CASE_S)
            word, _, rest = line.partition(" ")
            if word == "announce":  # by the first seat, when it comes there
                self._server.announce(rest)
                announced.add(rest)
            elif word == "abort":
                given_up.add(rest)
            else:
                assert word == "result", f"w{worker} has ended in {case}: {line}"
                results[worker] = json.loads(rest)
            for scope in announced & given_up:
                self._server.close_scope(scope)
        return [results[worker] for worker in sorted(results)]

    def _listen(self, worker: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put((worker, line.strip()))
        self._lines.put((worker, "(the end)"))

    def _next(self, limit_s: float) -> tuple[int, str]:
        return self._lines.get(timeout=limit_s)
