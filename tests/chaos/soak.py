"""The soak: one job, a fault every few seconds, for half an hour; it ends right and nothing grows.

    make soak [ARGS="--minutes 30 --every 5 --seed 1 --framework tensorflow-fit --json FILE"]

Everybody but one worker (the veteran) may be killed, frozen or asked to leave; everybody, the
veteran too, may lose the session or the connections of the ring, so the lead goes round. Of the
veteran and the agent memory, descriptors and threads are sampled, of the job its nodes in
ZooKeeper. The median of the last third may exceed that of the first by ALLOWED only; the first
tenth, in which allocators and caches fill, is left out. At the end the counting model proves that
each sample was counted once an epoch.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from fault_scenario import START_S, FaultScenario, even, fault_scenario, training
from striker import Striker

from edl.chaos.fault_schedule import Action
from edl.events import Event, SwitchDetails
from edl.job.leader import EVENTS_KEPT, EVICTED_KEPT
from edl.zookeeper.local_server import start_local, stop_local
from edl.zookeeper.nodes import all_nodes
from edl.zookeeper.store import JobStore

WORKERS = 4
FRAMEWORKS = {"pytorch": {}} | {
    f"tensorflow-{mode}": training(mode) for mode in ("function", "fit", "graph")
}
SAMPLE_S = 2.0
ACTIONS = {
    Action.KILL: 0.5,
    Action.FREEZE: 0.15,
    Action.TERM: 0.1,
    Action.CUT: 0.1,
    Action.EXPIRE: 0.15,
}
# What the median of the last third may have more than that of the first: share, and absolute.
ALLOWED = {"rss_mb": (0.05, 8.0), "fds": (0.0, 4.0), "threads": (0.0, 3.0), "nodes": (0.0, 25.0)}
EPOCHS_A_MINUTE = 4.5  # 112 steps each, which take 16 s with four workers and nothing else to do
END_S = 1200.0


@dataclass
class Series:
    name: str
    unit: str
    values: list[float] = field(default_factory=list)

    def thirds(self) -> tuple[float, float, float]:
        """Medians of the first, second and last third of what follows the first tenth."""
        kept = self.values[len(self.values) // 10 :]
        size = max(1, len(kept) // 3)
        parts = kept[:size], kept[size:-size] or kept, kept[-size:]
        first, middle, last = (statistics.median(part) for part in parts)
        return first, middle, last

    @property
    def growth(self) -> str | None:
        first, _, last = self.thirds()
        share, absolute = ALLOWED[self.unit]
        allowed = first + max(share * first, absolute)
        if last <= allowed:
            return None
        return f"{self.name} grew from {first:g} to {last:g} {self.unit}; {allowed:g} are allowed"


class Sampler:
    """Samples processes and nodes in a thread of its own."""

    def __init__(self, store: JobStore, processes: dict[str, psutil.Process]) -> None:
        self._store = store
        self._processes = processes
        self._series: dict[tuple[str, str], Series] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")
        self.error: Exception | None = None

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def series(self) -> list[Series]:
        return list(self._series.values())

    def _run(self) -> None:
        try:
            while not self._stop.wait(SAMPLE_S):
                self._sample()
        except (psutil.Error, OSError, ArithmeticError) as error:
            self.error = error

    def _sample(self) -> None:
        for name, process in self._processes.items():
            with process.oneshot():
                self._add(name, "rss_mb", process.memory_info().rss / 2**20)
                self._add(name, "fds", process.num_fds())
                self._add(name, "threads", process.num_threads())
        nodes = all_nodes(self._store.session, self._store.paths.root)
        events = sum(path.startswith(f"{self._store.paths.events}/") for path in nodes)
        self._add("nodes of the job, without events", "nodes", len(nodes) - events)

    def _add(self, name: str, unit: str, value: float) -> None:
        self._series.setdefault((name, unit), Series(name, unit)).values.append(value)


def soak(job: FaultScenario, minutes: float, every_s: float, seed: int) -> dict[str, Any]:
    """Strike for that long, prove, and tell; raises AssertionError for what went wrong."""
    now = job.wait_for_size(WORKERS, START_S)
    veteran = next(m for m in now["members"] if m["id"] != now["leader"])
    agent = job.agent_pid
    watched = {
        f"veteran {veteran['id']}": psutil.Process(veteran["pid"]),
        "agent": psutil.Process(agent),
    }
    with job.store() as store, Sampler(store, watched) as sampler:
        striker = Striker(
            store,
            seed,
            every_s,
            ACTIONS,
            freeze_s=(0.1, 5.0),
            veterans=frozenset([int(veteran["id"][1:])]),
        )
        began = time.monotonic()
        try:
            striker.strike(None, began + 60 * minutes)
        finally:
            striker.thaw_all()
            job.remember(f"seed {seed}:", *striker.struck[-40:])
        took_s = time.monotonic() - began
        assert took_s >= 60 * minutes, job.describe("the job ended before the soak did")
        assert sampler.error is None, job.describe(f"sampling failed: {sampler.error!r}")
        snapshot = store.snapshot()
        events = len(store.events.read())
        stalls = stalls_of([event for _, event in store.events.read()])
    print(
        f"{len(striker.struck)} faults struck; now the job may end", table(sampler.series), sep="\n"
    )
    reports = job.prove()
    faults = len(striker.struck)
    result = {
        "minutes": round(took_s / 60, 1),
        "faults": faults,
        "by_action": {str(action): count for action, count in sorted(striker.counts.items())},
        "every_s": round(took_s / max(1, faults), 2),
        "seed": seed,
        "generations": snapshot.generation.number if snapshot.generation else 0,
        "terms": snapshot.leader.term if snapshot.leader else 0,
        "steps": reports[0]["steps"],
        "samples_counted": job.samples * job.epochs,
        "stall_s": stalls,
        "events": events,
        "evicted": len(snapshot.evicted),
        "series": [
            {"name": s.name, "unit": s.unit, "medians_of_thirds": [round(v, 1) for v in s.thirds()]}
            for s in sampler.series
        ],
    }
    grown = [text for series in sampler.series if (text := series.growth)]
    assert not grown, job.describe("; ".join(grown))
    assert events <= EVENTS_KEPT + 50, job.describe(f"{events} events are kept")
    assert len(snapshot.evicted) <= EVICTED_KEPT + 2 * WORKERS, job.describe("evicted are kept")
    return result


def stalls_of(events: Sequence[Event]) -> dict[str, float]:
    """Median, 95th percentile and maximum of how long old workers stood still, in seconds."""
    stalls = sorted(
        max(old)
        for event in events
        if isinstance(event.details, SwitchDetails)
        and (old := [p.stall_s for p in event.details.workers.values() if p.role == "old"])
    )
    if not stalls:
        return {}
    return {
        "changes": len(stalls),
        "median": round(statistics.median(stalls), 3),
        "p95": round(stalls[int(0.95 * (len(stalls) - 1))], 3),
        "max": round(stalls[-1], 3),
    }


def table(series: Sequence[Series]) -> str:
    lines = [f"{'':34} {'unit':8} {'first':>9} {'second':>9} {'last third':>11}"]
    for one in series:
        first, middle, last = one.thirds()
        lines.append(f"{one.name:34} {one.unit:8} {first:9.1f} {middle:9.1f} {last:11.1f}")
    return "\n".join(lines)


def keep(result: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--every", type=float, default=5.0, help="seconds between faults, on average"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--framework", choices=FRAMEWORKS, default="pytorch", help="and in it, the way to train"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    args = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="edl-soak-"))  # stays when something goes wrong
    state = directory / "zookeeper"
    state.mkdir()
    hosts = start_local(state)
    try:
        with fault_scenario(
            directory,
            hosts,
            np=WORKERS,
            max_np=WORKERS,
            throttled=even(0.12),
            epochs=max(5, round(EPOCHS_A_MINUTE * args.minutes)),
            end_s=END_S,
            environment={"EDL_CHAOS": "1", **FRAMEWORKS[args.framework]},
        ) as job:
            result = soak(job, args.minutes, args.every, args.seed)
    finally:
        stop_local(state)
    shutil.rmtree(directory)
    print(json.dumps({k: v for k, v in result.items() if k != "series"}, indent=2))
    result["framework"] = args.framework
    keep(result, args.json)
    print(
        f"soak: {result['faults']} faults in {result['minutes']} minutes, "
        f"each of {result['samples_counted']} samples counted once; nothing grew"
    )


if __name__ == "__main__":
    main()
