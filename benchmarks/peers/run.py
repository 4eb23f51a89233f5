"""One run of all that is measured of edl and its peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from benchmarks import report
from benchmarks.goodput import Goodput
from benchmarks.jobs import BenchmarkError, EdlJob, Job, PlainJob
from benchmarks.peers import measure, steps
from benchmarks.peers.jobs import (
    EdlPeer,
    HorovodElasticPeer,
    PeerJob,
    TorchftPeer,
    TorchrunPeer,
)
from benchmarks.peers.measure import Session
from benchmarks.peers.page import Peers
from benchmarks.peers.steps import LARGE, Pair
from benchmarks.step_time import Comparison

AnyJob = TypeVar("AnyJob", bound=Job)
Say = Callable[[str], None]


class Maker(Protocol):
    """Makes a job, not started, of a class, with a directory of its own and settings."""

    def __call__(self, kind: type[AnyJob], settings: Mapping[str, str]) -> AnyJob: ...


SYSTEMS: Mapping[str, tuple[type[PeerJob], str]] = {  # their jobs and scripts
    report.EDL: (EdlPeer, "edl"),
    report.STOCK: (HorovodElasticPeer, "stock"),
    "torchrun": (TorchrunPeer, "torchrun"),
    "torchft": (TorchftPeer, "torchft"),
}
STEPPING: Mapping[str, tuple[type[Job], str]] = {  # those that train in turns
    "DDP": (TorchrunPeer, "torchrun"),
    steps.EDL: (EdlJob, "edl"),
    steps.PLAIN: (PlainJob, "plain"),
    steps.TORCHFT: (TorchftPeer, "torchft"),
}
LARGE_SYSTEMS = (report.EDL, report.STOCK, "torchft")
PATIENCE_S = 60.0
QUICK_PATIENCE_S = 12.0
QUICK_STRIKES = (measure.KILL, measure.COORDINATOR, measure.FREEZE)  # peers: only the first


class PeersRun:
    """A run of the sessions, the steps and the rings.

    Args:
        make: makes the jobs.
        scratch: a directory for files of the run.
        say: is told of each result.
        quick: whether all is done once, with few steps, and rings and most steps are left out.
    """

    def __init__(
        self,
        make: Maker,
        scratch: Path,
        say: Say,
        *,
        quick: bool,
    ) -> None:
        self._make = make
        self._scratch = scratch
        self._say = say
        self._quick = quick

    def run(
        self, repetitions: int, rounds: int, block: int, goodput: Mapping[str, Goodput]
    ) -> Peers:
        """Measure everything; a part that fails is a sentence in the result.

        Args:
            repetitions: of the sessions.
            rounds: pairs of blocks in a comparison of steps.
            block: steps in a block.
            goodput: what the same run has measured of goodput.
        """
        if self._quick:
            repetitions, rounds, block = 1, 6, 20
        return Peers(
            self._sessions(repetitions),
            [
                (pair, self._compare(pair, rounds, block))
                for pair in (steps.PAIRS[:1] if self._quick else steps.PAIRS)
            ],
            {} if self._quick else self._rings(),
            {} if self._quick else self._large(),
            goodput,
            {name: kind.coordinator for name, (kind, _) in SYSTEMS.items()},
            self._patience_s,
        )

    @property
    def _patience_s(self) -> float:
        return QUICK_PATIENCE_S if self._quick else PATIENCE_S

    def _sessions(self, repetitions: int) -> dict[str, Sequence[Session] | str]:
        """All systems by turns, so that they meet the same machine."""
        found: dict[str, list[Session]] = {name: [] for name in SYSTEMS}
        failed: dict[str, str] = {}
        for _ in range(repetitions):
            for name, (kind, script) in SYSTEMS.items():
                try:
                    one = self._session(name, kind, f"benchmarks.torch.{script}")
                except BenchmarkError as error:
                    failed[name] = self._failure(name, error)
                else:
                    found[name].append(one)
        return {name: found[name] or failed[name] for name in SYSTEMS}

    def _session(self, name: str, kind: type[PeerJob], module: str) -> Session:
        if self._quick:
            job = self._make(kind, {})
            strikes = QUICK_STRIKES if name == report.EDL else QUICK_STRIKES[:1]
            return measure.measure_quickly(job, module, self._patience_s, self._say, strikes)
        return measure.measure(lambda: self._make(kind, {}), module, self._patience_s, self._say)

    def _large(self) -> dict[str, Session | str]:
        """Let a worker join a job of each system with the large model, and one leave it."""
        found: dict[str, Session | str] = {}
        for name in LARGE_SYSTEMS:
            kind, script = SYSTEMS[name]
            job, module = self._make(kind, {}), f"benchmarks.torch.{script}"
            try:
                found[name] = measure.measure_resizes(job, module, self._say, "--mode", LARGE)
            except BenchmarkError as error:
                found[name] = self._failure(name, error)
        return found

    def _compare(self, pair: Pair, rounds: int, block: int) -> Comparison | str:
        def make(system: str, settings: Mapping[str, str]) -> tuple[Job, str]:
            kind, script = STEPPING[system]
            return self._make(kind, settings), f"benchmarks.torch.{script}"

        turns = self._scratch / f"peers-{steps.PAIRS.index(pair)}"
        try:
            one = steps.compare(pair, make, turns, rounds, block)
        except BenchmarkError as error:
            return self._failure(pair.system, error)
        self._say(f"step, {pair}: {one.b_s * 1e3:.1f} ms, DDP {one.a_s * 1e3:.1f}, {one.ratio:.3f}")
        return one

    def _rings(self) -> dict[int, float]:
        """Return the seconds to build a ring, by ranks; empty if that failed, which is said."""
        job = self._make(EdlJob, {"EDL_BACKOFF_MAX_S": "1"})
        try:
            return steps.ring_times(job, self._say)
        except BenchmarkError as error:
            self._failure("rings of edl", error)
            return {}

    def _failure(self, name: str, error: BenchmarkError) -> str:
        self._say(f"{name}: {error}")
        return f"does not run: {str(error).splitlines()[0]}"
