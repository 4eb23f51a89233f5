"""Rings of processes that change under a setting of Horovod's, in a tenth of a job's time.

``python tests/integration/ring_settings.py PORT`` imports Horovod once and forks the workers of
each case that it reads, so that each begins with a Horovod that has never been initialised. The
rings are edl's own (:mod:`edl.ring.gloo`); a sum that is wrong in one of them is told.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

from edl.records import Generation, RingMember
from edl.ring.rendezvous import RendezvousServer

START_S = 180.0  # for PyTorch to be imported, on a busy machine
CASE_S = 90.0  # for all rings of a case
STEPS = 40  # of a ring
TENSORS = (200_000, 200_000, 3, 200_000, 70_000, 5)  # floats: more than 1 MB together
VICTIM, VICTIM_STEP = 0, 20


_TUNING = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "3",
}
_FIXED = {"HOROVOD_CYCLE_TIME": "2", "HOROVOD_FUSION_THRESHOLD": "1000000"}
_TIMELINE = {"HOROVOD_TIMELINE": "timeline.json"}

# What is tried for each variable; docs/reference/horovod-settings.md has a row for each.
TRIED: dict[str, list[dict[str, str]]] = {
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": [{"HOROVOD_ADASUM_MPI_CHUNK_SIZE": "4096"}],
    "HOROVOD_AUTOTUNE": [_TUNING, _TUNING | _FIXED],
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": [
        _TUNING | {"HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6"}
    ],
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": [
        _TUNING
        | {
            "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": "0",
            "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "6",
        }
    ],
    "HOROVOD_AUTOTUNE_LOG": [_TUNING | {"HOROVOD_AUTOTUNE_LOG": "tuning.csv"}],
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": [_TUNING | {"HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2"}],
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": [_TUNING | {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "0"}],
    "HOROVOD_BATCH_D2D_MEMCOPIES": [{"HOROVOD_BATCH_D2D_MEMCOPIES": "0"}],
    "HOROVOD_CACHE_CAPACITY": [{"HOROVOD_CACHE_CAPACITY": number} for number in ("0", "2")],
    "HOROVOD_CYCLE_TIME": [{"HOROVOD_CYCLE_TIME": "0.5"}, _FIXED],
    "HOROVOD_DISABLE_GROUP_FUSION": [{"HOROVOD_DISABLE_GROUP_FUSION": "1"}],
    "HOROVOD_DISABLE_NVTX_RANGES": [{"HOROVOD_DISABLE_NVTX_RANGES": "1"}],
    "HOROVOD_DYNAMIC_PROCESS_SETS": [{"HOROVOD_DYNAMIC_PROCESS_SETS": "1"}],
    "HOROVOD_ENABLE_ASYNC_COMPLETION": [{"HOROVOD_ENABLE_ASYNC_COMPLETION": "1"}],
    "HOROVOD_ENABLE_XLA_OPS": [{"HOROVOD_ENABLE_XLA_OPS": "1"}],
    "HOROVOD_FUSION_THRESHOLD": [{"HOROVOD_FUSION_THRESHOLD": size} for size in ("0", "1000000")],
    "HOROVOD_GLOO_TIMEOUT_SECONDS": [{"HOROVOD_GLOO_TIMEOUT_SECONDS": "20"}],
    "HOROVOD_HIERARCHICAL_ALLGATHER": [{"HOROVOD_HIERARCHICAL_ALLGATHER": "1"}],
    "HOROVOD_HIERARCHICAL_ALLREDUCE": [{"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"}],
    "HOROVOD_LOG_HIDE_TIME": [{"HOROVOD_LOG_HIDE_TIME": "1"}],
    "HOROVOD_LOG_LEVEL": [{"HOROVOD_LOG_LEVEL": "error"}],
    "HOROVOD_MPI_THREADS_DISABLE": [{"HOROVOD_MPI_THREADS_DISABLE": "1"}],
    "HOROVOD_NUM_NCCL_STREAMS": [{"HOROVOD_NUM_NCCL_STREAMS": "2"}],
    "HOROVOD_STALL_CHECK_DISABLE": [{"HOROVOD_STALL_CHECK_DISABLE": "1"}],
    "HOROVOD_STALL_CHECK_TIME_SECONDS": [{"HOROVOD_STALL_CHECK_TIME_SECONDS": "1"}],
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": [
        {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "10"}
    ],
    "HOROVOD_THREAD_AFFINITY": [{"HOROVOD_THREAD_AFFINITY": cores} for cores in ("0", "0,0,0")],
    "HOROVOD_TIMELINE": [_TIMELINE, {"HOROVOD_TIMELINE": "DYNAMIC"}],
    "HOROVOD_TIMELINE_MARK_CYCLES": [_TIMELINE | {"HOROVOD_TIMELINE_MARK_CYCLES": "1"}],
    "HOROVOD_TORUS_ALLREDUCE": [{"HOROVOD_TORUS_ALLREDUCE": "1"}],
}


@dataclass(frozen=True)
class PlannedRing:
    """The workers of a ring by rank, and whether VICTIM is killed in its midst."""

    workers: tuple[int, ...]
    dies: bool = False


PLAN = (  # a join, a death of rank 0, another join, a leave of rank 0, and a join again
    PlannedRing((0, 1)),
    PlannedRing((0, 1, 2), dies=True),
    PlannedRing((1, 2)),
    PlannedRing((1, 2, 3)),
    PlannedRing((2, 3)),
    PlannedRing((2, 3, 4)),
)


class RingSettings:
    def __init__(self) -> None:
        self._server = RendezvousServer("127.0.0.1", health=dict)
        self._process: subprocess.Popen[str] | None = None
        self._lines: Queue[str] = Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._cases = 0

    def __enter__(self) -> Self:
        self._server.start()
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("EDL_", "HOROVOD_"))}
        import forked  # which the process does not find

        self._process = forked.Python(
            "torch",
            [__file__, str(self._server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=outside | {"OMP_NUM_THREADS": "1"},
        )
        self._listener.start()
        assert self._lines.get(timeout=START_S) == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        self._listener.join(10)
        self._server.close()

    def run(self, settings: Mapping[str, str], directory: Path) -> dict[int, Any]:
        """Return what each says of its rings, or its signal; nothing if it stands still."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._cases += 1
        order = {"case": self._cases, "settings": dict(settings), "directory": str(directory)}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        results: dict[int, Any] = {}
        deadline = time.monotonic() + CASE_S
        while (line := self._next(deadline)) not in ("", "done"):
            word, _, rest = line.partition(" ")
            if word == "announce":
                self._server.announce(rest)
            elif word == "result":
                worker, _, said = rest.partition(" ")
                results[int(worker)] = json.loads(said)
        return results

    def _next(self, deadline: float) -> str:
        try:
            return self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            return ""

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip())


def _say(*words: object) -> None:
    os.write(1, (" ".join(str(word) for word in words) + "\n").encode())


def _generation(case: int, number: int, workers: tuple[int, ...], port: int) -> Generation:
    members = tuple(
        RingMember(worker, "ab"[worker % 2], worker // 2, "127.0.0.1", port) for worker in workers
    )
    scope = f"g{100 * case + number}-ab"
    return Generation(number, 1, members, workers[0], (), (), "", scope=scope)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + CASE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not made within {CASE_S:g} s")
        time.sleep(0.01)


def _work(worker: int, order: Mapping[str, Any], port: int) -> list[dict[str, Any]]:
    """Go through the rings of PLAN as one of their workers."""
    import horovod.torch as hvd
    import torch
    from horovod.common.exceptions import HorovodInternalError

    from edl.ring.gloo import gloo_ring
    from edl.torch.collectives import TorchCollectives

    os.environ.update(order["settings"])
    os.chdir(order["directory"])
    torch.set_num_threads(1)
    ring = gloo_ring(TorchCollectives(), "127.0.0.1")
    ring.build_alone()
    hvd.allreduce(torch.ones(3), name="alone")
    ring.close()
    said = []
    for number, planned in enumerate(PLAN, 1):
        if worker not in planned.workers:
            continue
        rank = planned.workers.index(worker)
        generation = _generation(order["case"], number, planned.workers, port)
        if rank == 0:
            _say("announce", generation.scope)
            Path(generation.scope).touch()
        _wait_for(Path(generation.scope))
        ring.build(generation, rank)
        if order["settings"].get("HOROVOD_TIMELINE") == "DYNAMIC":
            hvd.start_timeline(f"started.{number}.json")
        total, wrong, step = sum(planned.workers) + len(planned.workers), 0, 0
        try:
            for step in range(STEPS):
                if planned.dies and worker == VICTIM and step == VICTIM_STEP:
                    os.kill(os.getpid(), signal.SIGKILL)
                handles = [
                    hvd.allreduce_async(torch.full((size,), worker + 1.0), op=hvd.Sum, name=f"t{i}")
                    for i, size in enumerate(TENSORS)
                ]
                sums = [hvd.synchronize(handle) for handle in handles]
                wrong += sum(bool((one != total).any()) for one in sums)
        except HorovodInternalError:
            assert planned.dies
            ring.break_()
        said.append({"ring": number, "wrong": wrong, "steps": step + 1})
        ring.close()
    return said


def _fork(worker: int, order: Mapping[str, Any], port: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            said: Any = _work(worker, order, port)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the result)
            said = repr(error)
        _say("result", worker, json.dumps(said))
        os._exit(0)
    return pid


def _run(order: Mapping[str, Any], port: int) -> None:
    workers = sorted({worker for planned in PLAN for worker in planned.workers})
    pids = {_fork(worker, order, port): worker for worker in workers}
    deadline = time.monotonic() + CASE_S - 5.0
    while pids and time.monotonic() < deadline:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            time.sleep(0.02)
        elif (worker := pids.pop(pid)) is not None and os.WIFSIGNALED(status):
            name = signal.Signals(os.WTERMSIG(status)).name
            _say("result", worker, json.dumps("killed" if worker == VICTIM else name))
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    _say("done")


def _main(port: int) -> None:
    import edl.torch.collectives  # noqa: F401 (PyTorch and Horovod, once for all workers)

    assert threading.active_count() == 1
    _say("ready")
    for line in sys.stdin:
        _run(json.loads(line), port)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
