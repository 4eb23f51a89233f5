"""Goodput: how much of what a job could train it trains, when something fails again and again.

Each system trains the same model with three workers. The benchmark first measures how many samples
a second the system trains without a failure. Then it kills a process with -9, at the same seconds
for each system: of edl a worker, the worker that leads and the agent in turn, and it starts the
agent again; of the others a worker each time, because their job ends when their launcher does.
Useful samples are those of each completed step. A step that is redone after a return to a commit or
a snapshot counts once.

Stock Horovod bars the host of a dead worker, so its job runs on two "hosts", which are this
machine, and a host is barred for 1 to 2 s only. Its script commits, and torchrun's writes a
snapshot, every 100 steps.

Compare goodput, not samples a second. The samples a second without failures differ from system to
system for two reasons: an ordinary step takes each system a different time, and this machine is
faster at some times than at others. The run does not tell the two apart. So each system is measured
against itself. A system that is faster without failures can train more useful samples a second than
another one and yet have a lower goodput.

edl loses a third of its pace for the seconds until a killed worker is replaced. The others train
the steps after the last commit or snapshot again, and stand still while they start. A job stands
still while it completes no useful step for more than a second.
"""

from __future__ import annotations

import contextlib
import random
import time
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import psutil

from benchmarks.crash import WORKERS
from benchmarks.jobs import (
    BIN,
    SECOND_HOST,
    BenchmarkError,
    EdlJob,
    Job,
    Steps,
    TwoHostsStockJob,
    host_of,
    kill,
)
from benchmarks.script import BATCH_SIZE

PACE_S = 60.0  # without a failure, to know the pace
BEFORE = 50  # steps of the full ring before that
START_S = 300.0
WORKER, LEADER, AGENT = "worker", "leader", "agent"


@dataclass(frozen=True)
class Goodput:
    """What one system reached. Rates in samples a second."""

    pace: float  # without failures
    useful: float  # with them
    redone: int  # steps that were trained again
    failures: tuple[str, ...]  # whose process was killed
    stopped_s: float  # in which no useful step was completed, more than a second at a time
    ended: str = ""  # why the job ended before its time; empty: it did not

    @property
    def ratio(self) -> float:
        return self.useful / self.pace if self.pace else 0.0


class StruckJob(Job):
    """A job of which processes are killed."""

    victims: ClassVar[tuple[str, ...]]  # who is killed, in turn

    @abstractmethod
    def strike(self, victim: str, chance: random.Random) -> None:
        """Kill, with -9, one process of the kind ``victim``, which ``chance`` chooses.

        Raises:
            BenchmarkError: the job cannot be asked for its processes.
            IndexError: no such process is there.
        """


class GoodputEdlJob(StruckJob, EdlJob):
    """An edl job whose agent may be killed: it is in another tree of processes then."""

    victims = (WORKER, LEADER, AGENT)

    def strike(self, victim: str, chance: random.Random) -> None:
        assert self._process is not None
        if victim == AGENT:
            self._process.kill()
            self._process.wait(10)
            self.launch([str(BIN / "edl"), "join", "--job", self.name])
            return
        members = self.members()
        if victim == LEADER:
            kill(members.leader)
        elif members.others:
            kill(chance.choice(members.others))

    def stop(self) -> None:
        super().stop()
        mark = f"EDL_JOB={self.name}"
        left = [process for process in psutil.process_iter() if _has(process, mark)]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)


class GoodputStockJob(StruckJob, TwoHostsStockJob):
    """Stock Horovod Elastic, whose host of a dead worker may be used again soon."""

    victims = (WORKER,)

    def command(self, script: list[str], size: int) -> list[str]:
        command = super().command(script, size)
        return [command[0], "--blacklist-cooldown-range", "1", "2", *command[1:]]

    def strike(self, victim: str, chance: random.Random) -> None:
        on_second = [p for p in training(self) if host_of(p) == SECOND_HOST]
        kill(chance.choice(on_second or training(self)))


class TorchrunJob(StruckJob):
    """torchrun on one host, which starts all workers again after a failure."""

    kind = "torchrun"
    victims = (WORKER,)

    def command(self, script: list[str], size: int) -> list[str]:
        python, _, module, *arguments = script
        launcher = [python, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1000"]
        return [*launcher, "--nproc-per-node", str(size), "-m", module, *arguments]

    def environment(self) -> dict[str, str]:
        # Else workers that are started again meet the addresses of those before them in the store
        # that the agent shares with them, fail, and are started again, for ever.
        return {**super().environment(), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def strike(self, victim: str, chance: random.Random) -> None:
        kill(chance.choice(training(self)))


def measure(job: StruckJob, module: str, minutes: float, every_s: float, seed: int) -> Goodput:
    """Train, strike every ``every_s`` seconds for so many minutes, and count."""
    chance = random.Random(seed)
    failures: list[str] = []
    ended = ""
    try:
        job.start(module, WORKERS)
        job.wait(lambda: _in_full_ring(job) >= BEFORE, f"{BEFORE} steps of {WORKERS}", START_S)
        began_s = time.monotonic()
        time.sleep(PACE_S)
        paced_s = time.monotonic()
        until_s = paced_s + 60 * minutes
        strike_s = paced_s + every_s / 2
        while (now_s := time.monotonic()) < until_s and not ended:
            if now_s >= strike_s:
                strike_s += every_s
                victim = job.victims[len(failures) % len(job.victims)]
                with contextlib.suppress(BenchmarkError, IndexError):  # nobody is there to strike
                    job.strike(victim, chance)
                    failures.append(victim)
            code = job.ended
            ended = "" if code is None else f"its launcher ended with {code}"
            time.sleep(0.1)
        logs = [*job.steps().values()]
        pace = rate(logs, began_s, paced_s)
        useful = rate(logs, paced_s, until_s)
        stopped_s = stopped(logs, paced_s, until_s)
        return Goodput(pace, useful, redone(logs), tuple(failures), stopped_s, ended)
    finally:
        job.stop()


def useful_steps(logs: Iterable[Steps]) -> dict[int, tuple[float, int]]:
    """Each step that was completed: when first, and in a ring of what size."""
    found: dict[int, tuple[float, int]] = {}
    for log in logs:
        for at_s, step, size in zip(log.time_s, log.step, log.size, strict=True):
            before = found.get(int(step))
            if before is None or at_s < before[0]:
                found[int(step)] = (float(at_s), int(size))
    return found


def rate(logs: Iterable[Steps], since_s: float, until_s: float) -> float:
    """Return the useful samples a second between ``since_s`` and ``until_s``."""
    sizes = [size for at_s, size in useful_steps(logs).values() if since_s <= at_s < until_s]
    return BATCH_SIZE * sum(sizes) / (until_s - since_s)


def redone(logs: Sequence[Steps]) -> int:
    """How many steps the job has trained more than once."""
    completed: dict[int, int] = {}
    for log in logs:
        for step, size in zip(log.step, log.size, strict=True):
            completed[int(step)] = completed.get(int(step), 0) + (1 if size else 0)
    sizes = {step: size for step, (_, size) in useful_steps(logs).items()}
    return sum(count > sizes[step] for step, count in completed.items())


def stopped(logs: Iterable[Steps], since_s: float, until_s: float, least_s: float = 1.0) -> float:
    """Seconds without a new useful step, of pauses that last longer than ``least_s``."""
    times = sorted(at_s for at_s, _ in useful_steps(logs).values() if since_s <= at_s < until_s)
    gaps = np.diff([since_s, *times, until_s])
    return float(gaps[gaps > least_s].sum())


def markdown(found: Mapping[str, Goodput], minutes: float, every_s: float, seed: int) -> str:
    """Return the text of the page on goodput, with a row for each system in ``found``."""
    lines = [
        "# Goodput under failures",
        "",
        (
            "*Goodput under failures*, goodput for short on this page, is the useful samples a "
            "second that a job trains while its processes are killed, divided by the samples a "
            "second that it trains without failures."
        ),
        "",
        (
            f'`make bench ARGS="--only goodput"` wrote this page: {WORKERS} workers, {minutes:g} '
            f"minutes, a failure every {every_s:g} s (seed {seed}); each system after the other."
        ),
        "",
        (
            "| | samples/s without failures | useful samples/s with them | goodput | stood still | "
            "steps redone | killed |"
        ),
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        counts = {victim: one.failures.count(victim) for victim in dict.fromkeys(one.failures)}
        killed = ", ".join(f"{n} x {victim}" for victim, n in counts.items())
        ended = f"; {one.ended}" if one.ended else ""
        lines.append(
            f"| {name} | {one.pace:.0f} | {one.useful:.0f} | **{one.ratio:.1%}** | "
            f"{one.stopped_s:.0f} s | {one.redone} | {killed}{ended} |"
        )
    paragraphs = (__doc__ or "").split("\n\n")[1:]
    how = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return "\n".join([*lines, "", how, ""])


def training(job: Job) -> list[int]:
    """Return the process ids of the workers that have trained and live."""
    return sorted(pid for pid in job.steps() if psutil.pid_exists(pid))


def _in_full_ring(job: Job) -> int:
    return min(
        (int(np.sum(log.size == WORKERS)) for log in job.steps().values()),
        default=0,
    )


def _has(process: psutil.Process, mark: str) -> bool:
    try:
        return mark in (f"{k}={v}" for k, v in process.environ().items())
    except psutil.Error:
        return False
