"""Break a ring of Horovod again and again while gradients are being sent.

::

    python tests/chaos/ring_breaks.py --runs 500 --workers 3

Each run is one ring of the same processes: one of them, another each time, cuts its connections,
or only one of them, at a random instant, while all send one tensor after the other as backward()
does. Three things must hold:

- All are out of the ring within LIMIT_S. Of who is not, the native stacks of all threads are
  shown, where gdb is installed.
- No process ends.
- Every average that a worker is told has succeeded is the right one, in all of its elements.

What goes wrong here is rare in a job, so the harness makes it likely: where only one connection
is cut, the others of the same workers can still carry what does not belong there; tensors are
sent one by one (no fusion), so that after a collective that fails others follow at once; and
some are so small that a worker sends before it receives, as in Horovod's coordination.
"""

from __future__ import annotations

import argparse
import itertools
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
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edl.ring.ring import Ring

LIMIT_S = 12.0  # for one run; Gloo's own time-out is 30 s
START_S = 120.0  # for the first one: PyTorch is imported on a busy machine
STACKS_S = 300.0  # for gdb, which reads the symbols of PyTorch
SIZES = (2, 4, 50, 3000, 20_000)  # of tensors, in floats
TENSORS = 60  # sent in a step
LONGEST_S = 0.03  # until a ring is cut
NEIGHBOURS = 3  # in a larger ring there are connections that no allreduce uses, nor misses ...
UNUSED_S = 2.0  # ... so this long after one was cut all are
LAST_WORDS = 10  # lines of stderr that are shown of who has ended
OUT = "out of the ring"  # what a worker says after each run
TOLERANCE = 0.1  # the averages of two steps or two tensors differ by more


class Failed(Exception):
    """A worker has not left the ring, has ended, or was told a wrong average."""


def break_rings(runs: int, workers: int, seed: int = 0) -> None:
    from edl.ring.rendezvous import RendezvousServer, new_scope

    with RendezvousServer("127.0.0.1", health=dict) as server, TemporaryDirectory() as folder:
        said = Path(folder)
        options = [str(number) for number in (workers, server.port, seed)]
        with _started(options, workers, said) as processes:
            for run in range(1, runs + 1):
                scope = new_scope(run)
                server.announce(scope)
                for process in processes:
                    assert process.stdin is not None
                    print(scope, file=process.stdin, flush=True)
                for rank, process in enumerate(processes):
                    limit_s = START_S if run == 1 else LIMIT_S
                    _await(process, f"rank {rank} in run {run}", limit_s, said / str(rank))
                if run % 100 == 0:
                    print(f"{run} runs, nothing went wrong", flush=True)


@contextmanager
def _started(options: list[str], workers: int, said: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the workers, whose stderr goes into ``said``; kill them at the end of the block."""
    processes: list[subprocess.Popen[str]] = []
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HOROVOD_FUSION_THRESHOLD": "0"}
    try:
        for rank in range(workers):
            command = [sys.executable, __file__, "--worker", str(rank), *options]
            with (said / str(rank)).open("w") as stderr:  # Horovod tells of each broken ring
                processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=stderr,
                        text=True,
                        env=environment,
                    )
                )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _await(process: subprocess.Popen[str], who: str, limit_s: float, said: Path) -> None:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], limit_s)[0]:
        raise Failed(f"{who} is not out of the ring after {limit_s:g} s\n{_stacks(process.pid)}")
    line = process.stdout.readline().strip()
    if not line:
        last_words = "\n".join(said.read_text().splitlines()[-LAST_WORDS:])
        raise Failed(f"{who} has ended with {process.wait(LIMIT_S)}\n{last_words}")
    if line != OUT:
        raise Failed(f"{who}: {line}")


def _stacks(pid: int) -> str:
    if shutil.which("gdb") is None:
        return "(gdb is not installed)"
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=STACKS_S).stdout
    except subprocess.TimeoutExpired:
        return f"(gdb was not done after {STACKS_S:g} s)"


def work(rank: int, size: int, port: int, seed: int) -> None:
    import torch

    from edl.errors import RendezvousFailed
    from edl.records import Generation, RingMember
    from edl.ring.gloo import gloo_ring
    from edl.torch.collectives import TorchCollectives

    torch.set_num_threads(1)
    ring = gloo_ring(TorchCollectives(), "127.0.0.1")
    ring_members = tuple(
        RingMember(other, "host", other, "127.0.0.1", port) for other in range(size)
    )
    members = tuple(range(size))
    for number, line in enumerate(sys.stdin, 1):
        chance = random.Random(f"{seed} {number}")  # the same on all
        generation = Generation(number, 1, ring_members, 0, members, (), "", scope=line.strip())
        sizes = [chance.choice(SIZES) for _ in range(TENSORS)]
        cutter, after_s = chance.randrange(size), chance.uniform(0.0, LONGEST_S)
        one = chance.randrange(2) == 0
        wrong = ""
        with suppress(RendezvousFailed):  # it may be cut while others build it
            ring.build(generation, rank)
            if cutter == rank:
                threading.Timer(after_s, _cut_one if one else ring.break_).start()
            if cutter == rank and one and size > NEIGHBOURS:
                threading.Timer(UNUSED_S, ring.break_, [number]).start()
            wrong = _send_until_it_breaks(ring, sizes)
        ring.break_()
        ring.close()
        print(wrong or OUT, flush=True)


def _cut_one() -> None:
    """Cut one connection of the ring, as a network does; the others stay."""
    from edl.ring import gloo

    found = [(inode, seen) for inode, seen in gloo.open_sockets().items() if seen.of_ring]
    if found:
        inode, seen = random.choice(found)
        gloo._shut(seen.descriptor, inode)


def _send_until_it_breaks(ring: Ring, sizes: list[int]) -> str:
    """Make steps until a collective fails; return what was wrong in those before, or nothing."""
    import torch

    from edl.ring.ring import CollectiveFailed
    from edl.torch.collectives import average_start, finish

    gradients = [torch.empty(size) for size in sizes]
    averages = [torch.empty_like(gradient) for gradient in gradients]
    broken = False
    for step in itertools.count():
        if broken:
            return ""
        flights = []
        for index, (gradient, average) in enumerate(zip(gradients, averages, strict=True)):
            gradient.fill_(step * TENSORS + index + ring.place.rank)
            average.fill_(-1.0)
            try:
                flights.append(average_start(gradient, average, f"gradient.{index}"))
            except CollectiveFailed:
                broken = True
                break
        for index, flight in enumerate(flights):
            try:
                average = finish(flight)
            except CollectiveFailed:
                ring.break_()  # as edl does at the first error
                broken = True
                continue
            right = step * TENSORS + index + (ring.place.size - 1) / 2
            misses = (average - right).abs()
            if not bool((misses <= TOLERANCE).all()):
                worst = int(misses.argmax())
                return (
                    f"gradient.{index} of step {step}, {len(average)} floats, has "
                    f"{int((misses > TOLERANCE).sum())} wrong averages; element {worst} is "
                    f"{float(average[worst])} instead of {right}"
                )
    raise AssertionError


def main() -> None:
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
    except Failed as error:
        sys.exit(str(error))
    print(f"{options.runs} runs of {options.workers} workers, nothing went wrong")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
