"""Define the profile of a job's throughput by size.

The leader keeps the :class:`ScalingProfile` in ZooKeeper, for the next leader, and in checkpoints,
for the job when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edl.job.profile import SAMPLES, Curve
from edl.learning import LearningCurve
from edl.policy.file import ScalingModel
from edl.policy.observation import CHANGE_S, Observation, SizeMeasurement, alike
from edl.policy.step_time import StepTime
from edl.policy.stragglers import Times
from edl.record import Record
from edl.records import JobPolicy, ProgressSample
from edl.spec import Sizes
from edl.step.batching import Batching
from edl.step.noise import UNKNOWN, NoiseScale

KEPT = 200  # sizes with their batches


@dataclass(frozen=True)
class ScalingProfile(Record):
    """The measured throughput of each size of a job, and the state of its size rule."""

    seen: tuple[tuple[int, SizeMeasurement], ...] = ()  # by number of workers, the newest of each
    np: int = 0  # at the newest reading of a worker's progress; 0: none was read
    steps: int = 0  # complete ones since the ring has had this number of workers
    elapsed_s: float = 0.0  # for which the job has had workers, as its leaders have counted
    worker_s: float = 0.0  # the sum of that over all workers
    state: Mapping[str, Any] = field(default_factory=dict)  # of the size rule in `text`
    text: str = ""  # of the policy file
    replaced: Mapping[str, float] = field(default_factory=dict)  # host -> `elapsed_s`
    times: tuple[Times, ...] = ()  # of the slowest workers, the slowest first
    data_part: float = 0.0  # the fraction of a step that workers wait for data, on average
    # An average in which the last change of the size has half of the weight; 0: none was measured.
    change_s: float = 0.0
    step_time: StepTime | None = None  # fitted last
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None  # None: unknown
    step_batches: int = 1  # batches whose gradients a worker adds up for one step
    # By number of workers and batch, the oldest entry first.
    by_batch: tuple[tuple[int, SizeMeasurement], ...] = ()
    learning: LearningCurve = field(default_factory=LearningCurve)
    # The `held_until_s` that a leader saw last, and the `elapsed_s` at which one first saw it.
    hold: tuple[float, float] = (0.0, 0.0)

    def with_reading(
        self, before: ProgressSample | None, now: ProgressSample, hosts: int = 1
    ) -> ScalingProfile:
        """Return the profile with the throughput between two readings of one worker's progress."""
        # The first reading of a ring is taken after its first step, which therefore does not count.
        learned = self if now.size == self.np else replace(self, np=now.size, steps=0)
        if before is None or before.worker != now.worker:
            return learned
        if before.generation != now.generation:
            return learned._with_change(before, now)
        steps, seconds = now.step - before.step, now.at_s - before.at_s
        if steps <= 0 or seconds <= 0:
            return learned
        learned = replace(learned, steps=learned.steps + steps)
        # Between epochs a script may evaluate or save.
        if before.epoch != now.epoch:
            return learned
        samples = now.samples - before.samples
        work = samples or steps * now.size  # a script that keeps its own place counts no samples
        each = work / steps / now.size
        seen = SizeMeasurement(work / seconds, steps, each, hosts, learned.elapsed_s)
        return learned._with(now.size, seen)

    def for_rule(self, text: str) -> ScalingProfile:
        """Return the profile for the size rule in the policy file with this `text`."""
        return self if text == self.text else replace(self, text=text, state={})

    def for_batching(self, batching: Batching, step_batches: int) -> ScalingProfile:
        # `step_batches` is not compared: it is 1 until the first step of a start is complete. A
        # global batch that the job has chosen may differ, too.
        own = self.batching
        known = replace(self, batching=batching, step_batches=step_batches)
        if own is None or replace(own, chosen=batching.chosen) == batching:
            return known
        # Throughputs with different batches cannot be compared; `by_batch` stays.
        return replace(known, seen=(), state={})

    def for_hold(self, policy: JobPolicy) -> ScalingProfile:
        """Return the profile after a leader has seen `policy`, whose hold may be a new one."""
        if policy.held_until_s == self.hold[0]:
            return self
        return replace(self, hold=(policy.held_until_s, self.elapsed_s))

    def held_s(self, policy: JobPolicy) -> float:
        """Return for how many seconds `policy` still keeps a size that a person asked for."""
        # They count while the job has workers, from when a leader first saw the hold.
        if not policy.held_until_s:
            return 0.0
        known, since_s = self.hold
        passed_s = self.elapsed_s - since_s if policy.held_until_s == known else 0.0
        return max(0.0, policy.hold_s - passed_s)

    def with_curve(self, curve: Curve) -> ScalingProfile:
        learned, known = self, {np for np, _ in self.seen}
        for point in curve.points:
            if point.unit == SAMPLES and point.np not in known:
                batch = point.throughput * point.step_s / point.np
                seen = SizeMeasurement(point.throughput, point.steps, batch, at_s=self.elapsed_s)
                learned = learned._with(point.np, seen)
        return learned

    def passed(self, seconds: float, np: int) -> ScalingProfile:
        return replace(
            self, elapsed_s=self.elapsed_s + seconds, worker_s=self.worker_s + seconds * np
        )

    def observation(
        self,
        np: int,
        sizes: Sizes,
        slots: int | None,
        awaits: bool,
        left: float | None,
        wishes: Sequence[int] = (),
        host_slots: Sequence[int] = (),
    ) -> Observation:
        """Return the facts that a size rule is told about the job."""
        seen = dict(self.seen)
        batch = seen[np].batch if np in seen else max((s.batch for s in seen.values()), default=0)
        model = None
        if self.step_time is not None and batch > 0:
            model = ScalingModel(self.step_time, batch, host_slots, seen)
        return Observation(
            np=np,
            sizes=sizes,
            slots=slots,
            steps=self.steps if np == self.np else 0,
            seen=dict(self.seen),
            awaits=awaits,
            elapsed_s=self.elapsed_s,
            worker_s=self.worker_s,
            left=left,
            size_changes=wishes,
            data_part=self.data_part,
            model=model,
            batch=batch,
            batching=self.batching,
            step_batches=self.step_batches,
            noise=self.noise,
            change_s=self.change_s or CHANGE_S,
            batches_seen=self._batches_seen,
        )

    def _with_change(self, before: ProgressSample, now: ProgressSample) -> ScalingProfile:
        # The time must not hold an evaluation between epochs, or a ring in between, which may have
        # paused because it was below `min_np`.
        if before.epoch != now.epoch or now.generation != before.generation + 1:
            return self
        usual = dict(self.seen).get(before.size)
        if before.size == now.size or usual is None or not (usual.batch and usual.samples_per_s):
            return self
        step_s = before.size * usual.batch / usual.samples_per_s
        cost_s = now.at_s - before.at_s - max(0, now.step - before.step) * step_s
        if cost_s <= 0:
            return self
        return replace(self, change_s=(self.change_s + cost_s) / 2 if self.change_s else cost_s)

    @property
    def _batches_seen(self) -> tuple[float, ...]:
        found: list[SizeMeasurement] = []
        for _, one in self.by_batch:
            if one.batch > 0 and not any(alike(one.batch, other.batch) for other in found):
                found.append(one)
        return tuple(sorted(one.batch for one in found))

    @property
    def all_seen(self) -> dict[tuple[int, int], SizeMeasurement]:
        return {(np, at): one for at, (np, one) in enumerate(self.by_batch)}

    def _with(self, np: int, more: SizeMeasurement) -> ScalingProfile:
        seen, entries = dict(self.seen), [*self.by_batch]
        known = [
            at for at, (n, one) in enumerate(entries) if n == np and alike(one.batch, more.batch)
        ]
        if known:
            more = entries[known[0]][1].and_then(more)
            entries[known[0]] = np, more
        else:
            if np in seen and alike(
                seen[np].batch, more.batch
            ):  # written by an edl that knew one batch
                more = seen[np].and_then(more)
            entries.append((np, more))
        seen[np] = more
        return replace(self, seen=tuple(sorted(seen.items())), by_batch=tuple(entries[-KEPT:]))
