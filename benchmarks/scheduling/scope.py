"""How much is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.simulator.published.workloads.pollux_workload import WORKLOADS

OURS = "edl"  # edl's own policy
ELASTIC = ("optimus", "afs_l", "elastic_tiresias", "max_min", "virtualflow")
FIXED = ("fifo_backfill", "srtf", "tiresias")
Workloads = Mapping[str, tuple[int, ...]]
"""Of each load of Pollux."""


@dataclass(frozen=True)
class Scope:
    """Which runs there are.

    Attributes:
        workloads: of Pollux, on which all policies stand beside each other and beside what was
            published.
        searched: policy ``pollux`` does them, too: it takes a minute of each.
        grid: those on which all intervals meet all costs of a resize; ``cross``: on which each is
            varied alone.
        cross_intervals_s: of the latter: one of 5 s takes minutes of the larger loads.
        searched_intervals_s: of ``pollux``; none: its intervals and costs are not varied.
        arrivals, seeds: of JSA's jobs.
        held_out: seeds that were not looked at when the parameters of edl's policy were chosen.
        elastic, fixed: policies that choose the size of a job, and that do not.
    """

    workloads: Workloads
    searched: bool
    grid: Workloads
    cross: Workloads
    cross_intervals_s: tuple[float, ...]
    searched_intervals_s: tuple[float, ...]
    intervals_s: tuple[float, ...]
    costs_s: tuple[float, ...]
    arrivals: tuple[str, ...]
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]
    elastic: tuple[str, ...] = ELASTIC
    fixed: tuple[str, ...] = FIXED


ALL = dict.fromkeys(("0.5", "1.0", "1.5", "2.0"), WORKLOADS)
FULL = Scope(
    workloads=ALL,
    searched=True,
    grid={"1.0": (6,)},
    cross={"0.5": (6,), "1.5": (6,), "2.0": (6,)},
    cross_intervals_s=(15.0, 60.0, 120.0, 240.0, 480.0),
    searched_intervals_s=(60.0, 120.0, 240.0, 480.0),
    intervals_s=(5.0, 15.0, 60.0, 120.0, 240.0, 480.0),
    costs_s=(0.0, 0.3, 5.0, 30.0, 120.0),
    arrivals=("low", "0.4", "0.7", "high", "1.5", "mixed", "bursts"),
    seeds=(0, 1, 2),
    held_out=(3, 4, 5),
)
"""For docs/benchmarks/scheduling.md: two hours of one processor, most of them of ``pollux``."""
QUICK = Scope(
    workloads={"0.5": (3,)},
    searched=False,
    grid={"0.5": (3,)},
    cross={},
    cross_intervals_s=(60.0,),
    searched_intervals_s=(),
    intervals_s=(60.0, 240.0),
    costs_s=(0.3, 30.0),
    arrivals=("0.4",),
    seeds=(0,),
    held_out=(3,),
    elastic=("max_min", "virtualflow"),
    fixed=("tiresias",),
)
"""Some seconds."""
