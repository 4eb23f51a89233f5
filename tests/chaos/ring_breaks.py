"""Break a ring of Horovod again and again while gradients are being sent; nobody may freeze.

::

    python tests/chaos/ring_breaks.py --runs 500 --workers 3

Each run is one ring of the same processes: one of them, another each time, cuts its connections
at a random instant, while all send one tensor after the other as backward() does. All must be
out of the ring within LIMIT_S. Of who is not, the native stacks of all threads are shown, where
gdb is installed.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LIMIT_S = 12.0  # for one run; Gloo's own time-out is 30 s
START_S = 120.0  # for the first one: PyTorch is imported on a busy machine
STACKS_S = 300.0  # for gdb, which reads the symbols of PyTorch
TENSORS = 60  # sent in a step
LONGEST_S = 0.03  # until a ring is cut


class Froze(Exception):
    """A worker has not left the ring; with its stacks."""


def break_rings(runs: int, workers: int, seed: int = 0) -> None:
    """So many runs.

    Raises:
        Froze: one was not over in time.
    """
    from edl.ring.rendezvous import RendezvousServer, new_scope

    with RendezvousServer("127.0.0.1", health=dict) as server:
        options = [str(number) for number in (workers, server.port, seed)]
        with _started(options, workers) as processes:
            for run in range(1, runs + 1):
                scope = new_scope(run)
                server.announce(scope)
                for process in processes:
                    assert process.stdin is not None
                    print(scope, file=process.stdin, flush=True)
                for rank, process in enumerate(processes):
                    _await(process, f"rank {rank} in run {run}", START_S if run == 1 else LIMIT_S)
                if run % 100 == 0:
                    print(f"{run} runs, nobody froze", flush=True)


@contextmanager
def _started(options: list[str], workers: int) -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        for rank in range(workers):
            command = [sys.executable, __file__, "--worker", str(rank), *options]
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,  # Horovod tells of each broken ring
                    text=True,
                    env=environment,
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _await(process: subprocess.Popen[str], who: str, limit_s: float) -> None:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], limit_s)[0]:
        raise Froze(f"{who} is not out of the ring after {limit_s:g} s\n{_stacks(process.pid)}")
    if not process.stdout.readline():
        raise Froze(f"{who} has ended with {process.wait(LIMIT_S)}")


def _stacks(pid: int) -> str:
    if shutil.which("gdb") is None:
        return "(gdb is not installed)"
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=STACKS_S).stdout
    except subprocess.TimeoutExpired:
        return f"(gdb was not done after {STACKS_S:g} s)"


def work(rank: int, size: int, port: int, seed: int) -> None:
    """One worker: a ring for each scope on standard input, a line when it is out of it."""
    import torch

    from edl.core.records import Generation, Seat
    from edl.errors import RendezvousFailed
    from edl.ring.gloo import gloo_ring
    from edl.ring.ring import CollectiveFailed
    from edl.torch.collectives import TorchCollectives, average_start, finish

    torch.set_num_threads(1)
    ring = gloo_ring(TorchCollectives(), "127.0.0.1")
    seats = tuple(Seat(other, "host", other, "127.0.0.1", port) for other in range(size))
    members = tuple(range(size))
    gradients = [torch.ones(1000 + 10 * number) for number in range(TENSORS)]
    averages = [torch.empty_like(gradient) for gradient in gradients]
    for number, line in enumerate(sys.stdin, 1):
        chance = random.Random(f"{seed} {number}")  # the same on all
        generation = Generation(number, 1, seats, 0, members, (), "", scope=line.strip())
        with suppress(RendezvousFailed, CollectiveFailed):  # it may be cut while others build it
            ring.build(generation, rank)
            if chance.randrange(size) == rank:
                threading.Timer(chance.uniform(0.0, LONGEST_S), ring.break_).start()
            while True:
                flights = [
                    average_start(sent * 1.0, average, f"gradient.{index}")
                    for index, (sent, average) in enumerate(zip(gradients, averages, strict=True))
                ]
                for flight in flights:
                    finish(flight)
        ring.break_()
        ring.close()
        print(number, flush=True)


def main() -> None:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", type=int, nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work(*options.worker)
        return
    try:
        break_rings(options.runs, options.workers, options.seed)
    except Froze as error:
        sys.exit(str(error))
    print(f"{options.runs} runs of {options.workers} workers, nobody froze")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
