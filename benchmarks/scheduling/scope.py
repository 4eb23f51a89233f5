"""How much is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.published.pollux_workload import WORKLOADS

OURS = "edl"  # edl's own policy
ELASTIC = ("optimus", "afs_l", "elastic_tiresias", "max_min", "virtualflow")
FIXED = ("fifo_backfill", "srtf", "tiresias")
VARIED = (
    ("patience", 0.1),
    ("wide_patience", 10.0),
    ("quantum_s", 3600.0),
    ("rest_weight", 24.0),
    ("rest_most_s", 900.0),
)
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
        wide: whether the synthetic trace of one wide job runs, which takes minutes.
        drawn: seeds of the other synthetic traces.
        orders: in which order nodes of two kinds are named.
        step_time_errors, length_errors: with which policies see a workload of Pollux.
        varied: parameters of edl's policy, with their values: half and twice are tried.
        beside: the policies on synthetic traces; ``misled``: those that see errors.
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
    wide: bool = True
    drawn: tuple[int, ...] = (0, 1, 2)
    orders: tuple[str, ...] = ("fast", "slow", "mixed")
    step_time_errors: tuple[float, ...] = (0.05, 0.1, 0.2)
    length_errors: tuple[float, ...] = (0.5, 1.0, 2.0)
    varied: tuple[tuple[str, float], ...] = VARIED
    beside: tuple[str, ...] = ("srtf", "tiresias", "max_min", "afs_l", "optimus")
    misled: tuple[str, ...] = ("srtf", "afs_l")
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
"""For benchmarks/results/scheduling.md: an hour of one processor, most of them of ``pollux``."""
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
    wide=False,
    drawn=(0,),
    orders=("fast",),
    step_time_errors=(0.1,),
    length_errors=(),
    varied=(),
    beside=("tiresias",),
    misled=(),
    elastic=("max_min", "virtualflow"),
    fixed=("tiresias",),
)
"""Some seconds."""
