"""Preempt, resume and migrate real jobs of a PyTorch script, and measure how long each part takes.

For each of MODELS:

- *Save*: two workers train and save every two seconds.
- *Preempt and resume*, several times: a job of two workers is started and preempted by
  `edl preempt`. It is resumed (`edl run --resume`) with two, with one and with three workers, each
  time from a copy of its checkpoints.
- *Migrate*, several times: `edl migrate` moves both workers of a job to another host, which is this
  machine by another name, and back. No host has a template, as a new host has none.
- *Resize*, several times: :mod:`benchmarks.resize`.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks import resize
from benchmarks.crash import alive
from benchmarks.jobs import BIN, BenchmarkError, EdlJob, end_family
from benchmarks.preemption import timeline
from benchmarks.preemption.timeline import Latency, Migration, Save

SCRIPT = "benchmarks.torch.preempted"
MODELS = {"resnet50": "ResNet-50, 25.6 M parameters", "mlp": "MLP, 4.7 M parameters"}
WORKERS = 2  # of a job that is preempted
RESUMED = (2, 1, 3)  # workers of the jobs that go on from it
WARM = 20  # steps of each worker before a request
EVERY_S = 2.0  # between two checkpoints where they are measured
SAVES = 2  # for each repetition
LIMIT_S = 300.0  # for a job to come to where it can be measured, or to end


@dataclass(frozen=True)
class Latencies:
    """What was measured of one model.

    Attributes:
        saves: checkpoints written while the job trained.
        preempted: jobs from `edl preempt` to the end of all their processes.
        started: jobs of two workers from `edl run` to the first step, without a checkpoint.
        resumed: the same with `--resume`, by number of workers.
        migrated: migrations of two workers.
        resized: one entry a repetition: the change of size, and its stall.
    """

    saves: tuple[Save, ...]
    preempted: tuple[Latency, ...]
    started: tuple[Latency, ...]
    resumed: Mapping[int, tuple[Latency, ...]]
    migrated: tuple[Migration, ...]
    resized: tuple[Mapping[str, resize.Stall], ...]


class PreemptedJob(EdlJob):
    """A job that is started anew, and whose processes are watched to their ends."""

    began_s = 0.0

    def begin(self, size: int, mode: str, saves_to: Path, *arguments: str) -> None:
        """Start the job with ``size`` workers; its checkpoints are in ``saves_to``."""
        self.began_s = time.monotonic()
        self.start(SCRIPT, size, "--mode", mode, "--saves-to", str(saves_to), *arguments)

    def train(self, size: int, steps: int = WARM, after_s: float = 0.0) -> None:
        """Wait until each of ``size`` workers has made ``steps`` in a ring of that size."""

        def has_trained() -> bool:
            made = [int(np.sum((s.size == size) & (s.time_s > after_s))) for s in alive(self)]
            return sum(each >= steps for each in made) == size

        self.wait(has_trained, f"{steps} steps of {size} workers", LIMIT_S)

    def logged(self, kind: str) -> None:
        """Wait until an event of this kind is in the job's log."""

        def is_there() -> bool:
            return any(one["kind"] == kind for one in self.printed("events"))

        self.wait(is_there, f"event {kind}", LIMIT_S)

    def descendants(self) -> list[int]:
        """Return the process ids of `edl run` and of all that it has started."""
        assert self._process is not None
        family = psutil.Process(self._process.pid)
        return [family.pid, *(one.pid for one in family.children(recursive=True))]

    def call(self, verb: str, *words: str) -> subprocess.Popen[bytes]:
        """Start the command ``edl VERB NAME WORDS``; its output goes to a file of its name."""
        with (self.directory / verb).open("ab") as output:
            return subprocess.Popen(
                [str(BIN / "edl"), verb, self.name, *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self.environment(),
            )

    def started(self) -> Latency:
        """Return how long the job took from `edl run` to its first step."""
        marks = timeline.read_marks(self.steps_directory)
        events, offset_s = self.printed("events"), timeline.clock_offset_s()
        return timeline.started(self.began_s, events, offset_s, marks, self.steps().values())


class ResumedJob(PreemptedJob):
    """A job that goes on from a checkpoint."""

    def options(self) -> list[str]:
        return ["--resume"]


class TwoHostsJob(PreemptedJob):
    """A job on host ``a``, with an agent of host ``b``; both are this machine."""

    _second: subprocess.Popen[bytes] | None = None

    def options(self) -> list[str]:
        return ["--host", "a", "--slots", "4"]

    def environment(self) -> dict[str, str]:
        return super().environment() | {"EDL_TEMPLATE": "0"}

    def join(self) -> None:
        """Start the agent of host ``b``."""
        words = ["join", "--job", self.name, "--host", "b", "--slots", "4"]
        with (self.directory / "join").open("wb") as output:
            self._second = subprocess.Popen(
                [str(BIN / "edl"), *words],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=self.directory,
                env=self.environment(),
                start_new_session=True,
            )
        self.wait(lambda: "b" in self.printed("status")[0]["hosts"], "host b", LIMIT_S)

    def stop(self) -> None:
        super().stop()
        if self._second is not None:
            end_family(self._second)
            self._second = None


def ends(processes: Iterable[int], timeout_s: float) -> dict[int, float]:
    """Wait for the ends of processes; return by process id when each has ended.

    Args:
        processes: their process ids; they need not be children of this process.
        timeout_s: how long to wait, in seconds.

    Raises:
        BenchmarkError: one of them has not ended in time.
    """
    found, waiting, poll = dict[int, float](), dict[int, int](), select.poll()
    deadline = time.monotonic() + timeout_s
    try:
        for pid in processes:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                found[pid] = time.monotonic()
                continue
            waiting[descriptor] = pid
            poll.register(descriptor, select.POLLIN)
        while waiting:
            ready = poll.poll(max(0.0, 1e3 * (deadline - time.monotonic())))
            if not ready:
                raise BenchmarkError(f"still there after {timeout_s:g} s: {[*waiting.values()]}")
            for descriptor, _ in ready:
                found[waiting.pop(descriptor)] = time.monotonic()
                poll.unregister(descriptor)
                os.close(descriptor)
    finally:
        for descriptor in waiting:
            os.close(descriptor)
    return found


def preempt(job: PreemptedJob) -> Latency:
    """Preempt a job that trains, and return how long that took.

    Raises:
        BenchmarkError: the last step was not saved, or a process has not ended within 300 s.
    """
    family = job.descendants()
    asked_s = time.monotonic()
    command = job.call("preempt", "--within", "2m")
    ended_s = ends([*family, command.pid], LIMIT_S)
    if command.wait() != 0:
        raise BenchmarkError(f"edl preempt failed: {(job.directory / 'preempt').read_text()}")
    events = job.printed("events")
    offset_s, steps = timeline.clock_offset_s(), job.steps().values()
    return timeline.preempted(asked_s, events, offset_s, steps, ended_s)


def migrate(job: TwoHostsJob, source: str, target: str) -> Migration:
    """Move both workers of a job that trains, and return how long that took.

    Raises:
        BenchmarkError: `edl migrate` failed, or the old workers have not ended within 300 s.
    """
    old = [one.worker for one in alive(job)]
    asked_s = time.monotonic()
    command = job.call("migrate", "--from", source, "--to", target)
    ended_s = ends([*old, command.pid], LIMIT_S)
    returned_s = ended_s.pop(command.pid)
    if command.wait() != 0:
        raise BenchmarkError(f"edl migrate failed: {(job.directory / 'migrate').read_text()}")
    job.train(WORKERS, after_s=max(returned_s, *ended_s.values()))
    offset_s, events = timeline.clock_offset_s(), job.printed("events")
    return timeline.migrated(asked_s, returned_s, events, offset_s, job.steps(), ended_s)


def measure(
    job: Callable[[type[PreemptedJob]], PreemptedJob],
    scratch: Path,
    repetitions: int,
    say: Callable[[str], None],
) -> dict[str, Latencies]:
    """Return the latencies of each model, by its name.

    Args:
        job: makes a job of a class.
        scratch: a directory for checkpoints.
        repetitions: of each request.
        say: called with a sentence about each result.
    """
    return {
        mode: _of_model(job, scratch / f"saved-{mode}", mode, repetitions, say) for mode in MODELS
    }


def _of_model(
    job: Callable[[type[PreemptedJob]], PreemptedJob],
    directory: Path,
    mode: str,
    repetitions: int,
    say: Callable[[str], None],
) -> Latencies:
    saved = _saves(job(PreemptedJob), mode, directory / "every", SAVES * repetitions)
    say(f"{mode}: {len(saved)} saves, {saved[-1]}")
    preempted, started, resumed = list[Latency](), list[Latency](), dict[int, list[Latency]]()
    for number in range(repetitions):
        place = directory / str(number)
        before, after = _preempt(job(PreemptedJob), mode, place)
        started.append(before)
        preempted.append(after)
        say(f"{mode}: started in {told(before)}; preempted in {told(after)}")
        for size in RESUMED:
            found = _resume(job(ResumedJob), mode, place, size)
            resumed.setdefault(size, []).append(found)
            say(f"{mode}: resumed with {size} in {told(found)}")
        shutil.rmtree(place)
    moves = _migrate(job(TwoHostsJob), mode, directory / "hosts", repetitions, say)
    resized = []
    for number in range(repetitions):
        words = ("--mode", mode, "--saves-to", str(directory / f"resized-{number}"))
        resized.append(resize.measure(job(PreemptedJob), SCRIPT, *words))
        say(f"{mode}: " + "; ".join(_resized(*one) for one in resized[-1].items()))
    shutil.rmtree(directory)
    return Latencies(
        saves=tuple(saved),
        preempted=tuple(preempted),
        started=tuple(started),
        resumed={size: tuple(each) for size, each in resumed.items()},
        migrated=tuple(moves),
        resized=tuple(resized),
    )


def told(latency: Latency) -> str:
    """Return a latency and its parts as text."""
    parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in latency.parts_s.items())
    return f"{latency.total_s:.3f} s ({parts})"


def _resized(change: str, stall: resize.Stall) -> str:
    parts = ", ".join(f"{name} {seconds:.3f}" for name, seconds in stall.parts_s.items())
    return (
        f"{change} in {stall.whole_s:.3f} s, gap {stall.gap_s:.3f} s, median step "
        f"{stall.median_step_s:.3f} s ({parts})"
    )


def _saves(job: PreemptedJob, mode: str, place: Path, count: int) -> list[Save]:
    """Let a job save every two seconds; return ``count`` checkpoints."""

    def found() -> list[Save]:
        return timeline.saves(job.printed("events"))

    try:
        job.begin(WORKERS, mode, place, "--every", f"{EVERY_S:g}")
        job.train(WORKERS)
        job.wait(lambda: len(found()) >= count, f"{count} checkpoints", LIMIT_S)
        return found()[:count]
    finally:
        job.stop()


def _preempt(job: PreemptedJob, mode: str, place: Path) -> tuple[Latency, Latency]:
    """Start and preempt a job; return how long its start took, and its end."""
    try:
        job.begin(WORKERS, mode, place)
        job.train(WORKERS)
        job.logged("checkpoint")  # of the state before the first step: its writing is over
        return job.started(), preempt(job)
    finally:
        job.stop()


def _resume(job: PreemptedJob, mode: str, saved: Path, size: int) -> Latency:
    """Resume a job from a copy of its checkpoints; return how long its start took."""
    place = saved.with_name(f"{saved.name}-{size}")
    shutil.copytree(saved, place, copy_function=_link)
    try:
        job.begin(size, mode, place)
        job.train(size, steps=1)
        job.logged("resumed")
        return job.started()
    finally:
        job.stop()
        shutil.rmtree(place)


def _link(source: str, target: str) -> None:
    """Copy a file; link a checkpoint, whose bytes edl never changes, so that no disk is busy."""
    if source.endswith(".safetensors"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _migrate(
    job: PreemptedJob, mode: str, place: Path, repetitions: int, say: Callable[[str], None]
) -> list[Migration]:
    """Move a job from one host to another and back; return its ``repetitions`` migrations."""
    assert isinstance(job, TwoHostsJob)
    found = []
    try:
        job.begin(WORKERS, mode, place)
        job.train(WORKERS)
        job.join()
        for number in range(repetitions):
            found.append(migrate(job, *("ab" if number % 2 == 0 else "ba")))
            one = found[-1]
            say(
                f"{mode}: migrated in {told(one.latency)}; stood still for {one.stall_s:.3f} s in "
                f"{one.switches} switches: {one.switches_s}"
            )
    finally:
        job.stop()
    return found
