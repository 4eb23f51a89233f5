"""Make synthetic traces on which cluster policies differ: rigid jobs, bursts, two kinds of nodes.

Each function returns the jobs of one trace; those that draw at random draw by seed. All durations
follow Amdahl's law (:mod:`edl.simulator.workload`). The cluster has 16 nodes of 4 slots; policies
decide each 60 s, and a change of slots costs 30 s, as on Pollux' workloads.
"""

from __future__ import annotations

import math
import random

from edl.cluster.state import Node
from edl.simulator.costs import constant
from edl.simulator.workload import SubmittedJob, TimedWork

HOUR_S = 3600.0
NODES, SLOTS = 16, 4

INTERVAL_S = 60.0

RESIZE = constant(30.0)

SPEEDS = {"fast": 4.0, "slow": 1.0}

POWERS = (1, 2, 4, 8, 16, 32, 64)


def wide_job_first() -> list[SubmittedJob]:
    """Return a job of all 64 slots for 6 h, and 1,423 jobs of 1 slot for 5 min behind it."""
    chance = random.Random("wide")
    times = sorted(chance.uniform(0.0, 1423 * 30.0) for _ in range(1423))
    wide = _rigid("wide", 0.0, 6 * HOUR_S, NODES * SLOTS)
    return [wide, *(_rigid(f"small-{at}", at_s, 300.0, 1) for at, at_s in enumerate(times))]


def rigid_jobs(seed: int, count: int = 350, load: float = 0.9) -> list[SubmittedJob]:
    """Return rigid jobs of 1 to 64 slots whose durations are lognormal, as on shared clusters."""
    chance = random.Random(f"rigid {seed}")
    sizes = chance.choices(POWERS, [1 / size for size in POWERS], k=count)
    durations = [chance.lognormvariate(math.log(600.0), 2.0) for _ in range(count)]
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True))
    span_s = work / (load * NODES * SLOTS)
    times = sorted(chance.uniform(0.0, span_s) for _ in range(count))
    return [
        _rigid(f"rigid-{at}", *of)
        for at, of in enumerate(zip(times, durations, sizes, strict=True))
    ]


def bursts(seed: int) -> list[SubmittedJob]:
    """Return 24 long elastic jobs, and three bursts of 120 short ones."""
    chance = random.Random(f"bursts {seed}")
    jobs = [
        _elastic(
            f"long-{at}",
            chance.uniform(0.0, HOUR_S),
            chance.uniform(2 * HOUR_S, 6 * HOUR_S),
            4,
            16,
        )
        for at in range(24)
    ]
    for burst, begin_s in enumerate((HOUR_S, 3 * HOUR_S, 5 * HOUR_S)):
        jobs += [
            _elastic(
                f"short-{burst}-{at}",
                begin_s + chance.uniform(0.0, 600.0),
                chance.uniform(120.0, 480.0),
                chance.choice((1, 2, 4)),
                4,
            )
            for at in range(120)
        ]
    return sorted(jobs, key=lambda job: job.arrival_s)


def elastic_jobs(seed: int, count: int = 237, load: float = 0.8) -> list[SubmittedJob]:
    """Return elastic jobs whose durations are lognormal, for nodes of two kinds."""
    chance = random.Random(f"elastic {seed}")
    sizes = [chance.choice((1, 2, 4, 8)) for _ in range(count)]
    durations = [chance.lognormvariate(math.log(3000.0), 1.0) for _ in range(count)]
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True))
    slots = NODES * SLOTS * sum(SPEEDS.values()) / len(SPEEDS)
    times = sorted(chance.uniform(0.0, work / (load * slots)) for _ in range(count))
    return [
        _elastic(f"elastic-{at}", arrival_s, duration_s, size, 16)
        for at, (arrival_s, duration_s, size) in enumerate(
            zip(times, durations, sizes, strict=True)
        )
    ]


def two_kinds(order: str) -> list[Node]:
    """Return the nodes of a cluster, half of them of each kind of `SPEEDS`."""
    kinds = {
        "fast": ["fast"] * (NODES // 2) + ["slow"] * (NODES // 2),
        "slow": ["slow"] * (NODES // 2) + ["fast"] * (NODES // 2),
        "mixed": ["fast", "slow"] * (NODES // 2),
    }[order]
    return [Node(f"n{at}", SLOTS, kind) for at, kind in enumerate(kinds)]


def _rigid(name: str, arrival_s: float, duration_s: float, slots: int) -> SubmittedJob:
    return SubmittedJob(name, arrival_s, TimedWork(duration_s, slots), slots, slots, slots)


def _elastic(name: str, arrival_s: float, duration_s: float, slots: int, most: int) -> SubmittedJob:
    return SubmittedJob(name, arrival_s, TimedWork(duration_s, slots, 0.95), slots, 1, most)
