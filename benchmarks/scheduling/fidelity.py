"""How near a simulated run is to a real one: VirtualFlow's jobs by ours, Shockwave's by theirs."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from benchmarks.page import table
from benchmarks.published.runs import PublishedRun
from benchmarks.published.virtualflow_answers import measured_ends
from benchmarks.published.virtualflow_workload import virtualflow_jobs
from benchmarks.scheduling.jobs import on_virtualflow
from benchmarks.scheduling.published import percent
from benchmarks.scheduling.scope import Scope
from benchmarks.scheduling.store import Found, key

PRIORITY, WEIGHTED = "priority", "virtualflow"


class Published(NamedTuple):
    """A policy's 120 jobs on 32 GPUs: as Shockwave's simulator had them, and as they really were.

    From the results in uw-mad-dash/shockwave 8a44f4a (MIT), reproduce/pickles, seconds.
    """

    policy: str
    makespan_s: float
    real_makespan_s: float
    mean_jct_s: float
    real_mean_jct_s: float


SHOCKWAVE = (
    Published("Shockwave", 23_399, 25_265, 9_944, 10_509),
    Published("OSSP", 24_109, 25_555, 19_385, 17_831),
    Published("Themis", 31_449, 31_441, 11_021, 10_930),
    Published("Gavel, max-min", 33_068, 34_619, 11_092, 12_113),
    Published("AlloX", 32_369, 31_971, 9_802, 9_611),
    Published("Gavel, max-sum", 31_569, 34_701, 9_511, 9_703),
)


def runs(scope: Scope) -> Iterator[PublishedRun]:
    """Both schedulers of which the logs say when each job ended."""
    yield from map(on_virtualflow, (PRIORITY, WEIGHTED))


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """Ours beside what was measured, and theirs."""
    return {"virtualflow": _ours(found), "shockwave": _theirs()}


def _ours(found: Found) -> str:
    jobs, measured = virtualflow_jobs(), measured_ends()
    rows, ratios = [], {}
    first_s = min(job.arrival_s for job in jobs)
    for number, policy in enumerate((PRIORITY, WEIGHTED)):
        one = found[key(on_virtualflow(policy))]
        ends = {job.name: measured[job.name][number] for job in jobs}
        mean_s = fmean(ends[job.name] - job.arrival_s for job in jobs)
        off = [one.jcts_s[job.name] + job.arrival_s - ends[job.name] for job in jobs]
        makespan_s = max(ends.values()) - first_s
        ratios[policy] = one.makespan_s, makespan_s, one.mean_jct_s, mean_s
        rows.append([policy, *_pair(*ratios[policy][:2]), *_pair(*ratios[policy][2:])])
        rows[-1].append(f"{min(off):.0f} to {max(off):.0f}".replace("-", "−"))
    weighted, fixed = ratios[WEIGHTED], ratios[PRIORITY]
    gains = [one / other for one, other in zip(weighted, fixed, strict=True)]
    head = ["policy", "last end s", "measured", "", "mean s", "measured", "", "single ends, s off"]
    return (
        f"{table(head, rows)}\n\nWith weighted shares all jobs are done in {gains[0]:.3f} of the "
        f"time by priority (measured: {gains[1]:.3f}), and in {gains[2]:.3f} of it in the mean "
        f"(measured: {gains[3]:.3f})."
    )


def _theirs() -> str:
    rows = [[one.policy, *_pair(*one[1:3]), *_pair(*one[3:5])] for one in SHOCKWAVE]
    return table(["policy", "makespan s", "real", "", "mean s", "real", ""], rows)


def _pair(simulated_s: float, real_s: float) -> list[str]:
    return [f"{simulated_s:,.0f}", f"{real_s:,.0f}", percent(simulated_s / real_s)]
