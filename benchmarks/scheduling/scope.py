"""How much is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edl.simulator.pollux import WORKLOADS

OURS = "edl"  # edl's own policy
ELASTIC = ("optimus", "afs_l", "elastic_tiresias", "max_min", "virtualflow")
FIXED = ("fifo_backfill", "srtf", "tiresias")
Workloads = Mapping[str, tuple[int, ...]]
"""Of each load of Pollux."""


@dataclass(frozen=True)
class Scope:
    """Which runs there are.

    Attributes:
        answers: workloads that are compared with the published answers.
        searched: those that policy ``pollux`` does: it takes a minute of each.
        compared: those on which all policies stand beside each other.
        grid: those on which all intervals meet all costs of a resize; ``cross``: on which each is
            varied alone.
        cross_intervals_s: of the latter: one of 5 s takes minutes of the larger loads.
        searched_grid: those of ``pollux`` at load 1.0, by fewer intervals.
        arrivals, seeds: of JSA's jobs.
        elastic, fixed: policies that choose the size of a job, and that do not.
    """

    answers: Workloads
    searched: Workloads
    compared: Workloads
    grid: Workloads
    cross: Workloads
    cross_intervals_s: tuple[float, ...]
    searched_grid: tuple[int, ...]
    searched_intervals_s: tuple[float, ...]
    intervals_s: tuple[float, ...]
    costs_s: tuple[float, ...]
    arrivals: tuple[str, ...]
    seeds: tuple[int, ...]
    elastic: tuple[str, ...] = ELASTIC
    fixed: tuple[str, ...] = FIXED


ALL = dict.fromkeys(("0.5", "1.0", "1.5", "2.0"), WORKLOADS)
WHOLE = Scope(
    answers=ALL,
    searched=ALL,
    compared=ALL,
    grid={"1.0": (6,)},
    cross={"0.5": (6,), "1.5": (6,), "2.0": (6,)},
    cross_intervals_s=(15.0, 60.0, 120.0, 240.0, 480.0),
    searched_grid=(1,),
    searched_intervals_s=(60.0, 120.0, 240.0, 480.0),
    intervals_s=(5.0, 15.0, 60.0, 120.0, 240.0, 480.0),
    costs_s=(0.0, 0.3, 5.0, 30.0, 120.0),
    arrivals=("low", "0.4", "0.7", "high", "1.5", "mixed", "bursts"),
    seeds=(0, 1, 2),
)
"""Everything; hours of one processor, most of them of ``pollux``."""
FULL = replace(
    WHOLE,
    searched={"0.5": (1, 2)},
    compared=ALL | {"1.5": (1, 2, 3, 6), "2.0": (6,)},
    cross={"0.5": (6,)},
    searched_grid=(),
)
"""What docs/scheduling.md has: about a quarter of an hour of one processor."""
QUICK = Scope(
    answers={"0.5": (3,)},
    searched={},
    compared={"0.5": (3,)},
    grid={"0.5": (3,)},
    cross={},
    cross_intervals_s=(60.0,),
    searched_grid=(),
    searched_intervals_s=(),
    intervals_s=(60.0, 240.0),
    costs_s=(0.3, 30.0),
    arrivals=("0.4",),
    seeds=(0,),
    elastic=("max_min", "virtualflow"),
    fixed=("tiresias",),
)
"""Some seconds."""
