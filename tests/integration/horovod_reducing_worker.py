"""One process of test_horovod_build.py: reduces and broadcasts tensors of many sizes and types.

Prints one JSON object: whether this process has the memory, a sha256 of all results, how often an
idle ring wakes up, and what a wait for rank 0 costs. Each result must be the sum in the order of
the ranks.
"""

import functools
import hashlib
import json
import resource
import signal
import time
from pathlib import Path

import horovod.torch as hvd
import torch

SIZES = (0, 1, 7, 16_383, 131_072, 400_003)  # a block has 131,072 floats
LONG = 1_000_003  # more blocks than a rank has slots
TYPES = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64)
ROUNDS = 2  # slots are used again
IDLE_S = 0.5
LATE_S = 1.0  # for which the others wait for rank 0
ALARM_S = 0.1  # of their wait until a signal comes


def values(rank: int, size: int, kind: torch.dtype) -> torch.Tensor:
    """Return the tensor of a rank; the ranks' tensors have other rounding errors in each order."""
    generator = torch.Generator().manual_seed(rank * 10_007 + size)
    drawn = torch.randn(size, generator=generator, dtype=torch.float64)
    return (drawn * 10**rank).to(kind) if kind.is_floating_point else (drawn * 9).abs().to(kind)


@functools.cache
def in_order(size: int, kind: torch.dtype) -> torch.Tensor:
    total = values(0, size, kind)
    for rank in range(1, hvd.size()):
        total = total + values(rank, size, kind)
    return total


def wrong_broadcasts(round_: int) -> list[str]:
    """Broadcast a tensor of each size from each rank, between reductions; say which are wrong."""
    wrong = []
    for root in range(hvd.size()):
        for size in (*SIZES[1:], LONG):
            sent = values(root, size, torch.float32)
            mine = sent.clone() if hvd.rank() == root else torch.full_like(sent, -1.0)
            found = hvd.broadcast(mine, root, name=f"from {root}.{size}")
            hvd.allreduce(torch.ones(1), name="between")
            if not torch.equal(found, sent):
                wrong.append(f"from rank {root}: {size}, round {round_}")
    return wrong


def has_memory() -> bool:
    """Return whether this process has mapped the memory of a ring."""
    return "/memfd:horovod" in Path("/proc/self/maps").read_text(encoding="utf-8")


def wakes_of_an_idle_ring() -> int:
    """Return how often the threads of this process go to sleep in IDLE_S, while none has work."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    time.sleep(IDLE_S)
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before


def cost_of_a_wait() -> dict[str, float]:
    """Return the processor time of a wait for rank 0, and how long it outlasted a signal."""
    handled: list[float] = []
    signal.signal(signal.SIGALRM, lambda *_: handled.append(time.monotonic()))
    hvd.allreduce(torch.ones(1), name="together")
    if hvd.rank() == 0:
        time.sleep(LATE_S)  # no wait for the others: their wait for this is what is measured
    else:
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)
    before_s = time.process_time()
    hvd.allreduce(torch.ones(1), name="late")
    ended = time.monotonic()
    cpu_s = time.process_time() - before_s
    return {"cpu_s": cpu_s, "after_signal_s": ended - handled[0] if handled else 0.0}


def main() -> None:
    """Reduce alone, fused, in place and by other operations."""
    hvd.init()
    rank, ranks = hvd.rank(), hvd.size()
    hvd.allreduce(torch.ones(1), name="first")
    shared = has_memory()  # at the end another rank may have ended the ring
    digest = hashlib.sha256()
    wrong = []
    kept = {(kind, size): values(rank, size, kind) for kind in TYPES for size in SIZES}
    for round_ in range(ROUNDS):
        for kind in TYPES:
            mine = [kept[kind, size].clone() for size in SIZES]
            fused = hvd.grouped_allreduce(mine, op=hvd.Sum, name=f"fused.{kind}")
            for size, one, together in zip(SIZES, mine, fused, strict=True):
                found = hvd.allreduce(one, op=hvd.Sum, name=f"alone.{kind}.{size}")
                expected = in_order(size, kind)
                if not (torch.equal(found, expected) and torch.equal(together, expected)):
                    wrong.append(f"{kind}, {size}, round {round_}")
                if not torch.equal(one, kept[kind, size]):
                    wrong.append(f"{kind}, {size}: the input has changed")
                digest.update(found.numpy().tobytes())
        wrong += wrong_broadcasts(round_)
        tensor = torch.full((300_000,), float(rank + 1))
        mean = hvd.allreduce_(tensor.clone(), op=hvd.Average, name="average")
        largest = hvd.allreduce(tensor, op=hvd.Max, name="largest")
        scaled = hvd.allreduce(
            tensor, op=hvd.Sum, name="scaled", prescale_factor=2.0, postscale_factor=0.5
        )
        total = ranks * (ranks + 1) / 2
        for name, found, expected in (
            ("mean", mean, total * torch.tensor(1.0 / ranks).item()),
            ("largest", largest, float(ranks)),
            ("scaled", scaled, total),
        ):
            if not torch.allclose(found, torch.full_like(found, expected), rtol=1e-6):
                wrong.append(f"{name}: {found[0]} instead of {expected}")
    wakes, wait = wakes_of_an_idle_ring(), cost_of_a_wait()
    hvd.shutdown()
    gone = not has_memory()
    said = {"shared": shared, "gone": gone, "wakes": wakes, "wait": wait}
    print(json.dumps(said | {"wrong": wrong, "sha256": digest.hexdigest()}))


if __name__ == "__main__":
    main()
