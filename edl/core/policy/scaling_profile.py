"""Define the profile of a job's throughput by size.

The leader keeps the :class:`ScalingProfile` in ZooKeeper, for the next leader, and in checkpoints,
for the job when it is resumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edl.core.job.profile import SAMPLES, Curve
from edl.core.learning_curve import LearningCurve
from edl.core.policy.observation import CHANGE_S, Observation, SizeMeasurement, alike
from edl.core.policy.scaling import ScalingModel
from edl.core.policy.step_time import StepTime
from edl.core.policy.stragglers import Times
from edl.core.progress import ProgressSample
from edl.core.record import Record
from edl.core.records import JobPolicy
from edl.core.sizes import Sizes
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale

KEPT = 200  # sizes with their batches


@dataclass(frozen=True)
class ScalingProfile(Record):
    """The measured throughput of each size of a job, and the state of its size rule.

    It is immutable: the methods return the next profile.

    Attributes:
        seen: pairs (number of workers, its newest measurement), the smallest number first.
        np: the number of workers at the newest reading of a worker's progress; 0: none was read.
        steps: the complete steps since the ring has had this number of workers.
        elapsed_s: for how many seconds the job has had workers, as its leaders have counted.
        worker_s: the sum of these seconds over all workers.
        state: the state of the size rule in ``text``; another rule begins without a state.
        text: the text of the policy file to which ``state`` belongs; empty: there was none.
        replaced: host -> the ``elapsed_s`` at which a slow worker there was replaced last.
        times: the mean step times of the slowest workers over their last steps, the slowest first.
        data_part: the fraction of a step's time that workers wait for their data, on average.
        change_s: for how many seconds training stood still when the size changed, as an average in
            which the last change has half of the weight; 0: no change was measured.
        step_time: the model of a step's time that was fitted last; None: none was.
        noise: the gradient noise scale as far as it was measured; before that, an unknown one.
        batching: the sizes of the batches; None: unknown.
        step_batches: the number of batches whose gradients a worker adds up for one step.
        by_batch: pairs (number of workers, measurement), oldest entry first, one for each batch
            size that was measured with that number.
        learning: the loss and the learning rate over the steps.
        hold: the pair (the ``held_until_s`` of the job's policy that a leader saw last, the
            ``elapsed_s`` at which a leader first saw it); it tells how much of a hold has passed.
    """

    seen: tuple[tuple[int, SizeMeasurement], ...] = ()
    np: int = 0
    steps: int = 0
    elapsed_s: float = 0.0
    worker_s: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    replaced: Mapping[str, float] = field(default_factory=dict)
    times: tuple[Times, ...] = ()
    data_part: float = 0.0
    change_s: float = 0.0
    step_time: StepTime | None = None
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None
    step_batches: int = 1
    by_batch: tuple[tuple[int, SizeMeasurement], ...] = ()
    learning: LearningCurve = field(default_factory=LearningCurve)
    hold: tuple[float, float] = (0.0, 0.0)

    def with_reading(
        self, before: ProgressSample | None, now: ProgressSample, hosts: int = 1
    ) -> ScalingProfile:
        """Return the profile with the throughput between two readings of one worker's progress.

        A reading has the numbers of steps and samples that the worker has counted, and the time.
        What the result has more than this profile:

        - Without ``before``, or if the readings are of different workers: only ``now.size`` as
          ``np``.
        - Readings of two rings of different sizes, one right after the other and in one epoch: the
          cost of the change (``change_s``).
        - Readings of one ring in different epochs: the steps only, because a script may evaluate or
          save between epochs.
        - Other readings of one ring: the steps and a measurement. If the script counts no samples,
          each worker counts for one sample in a step.

        The first reading of a ring is taken after its first step, which therefore does not count.

        Args:
            before: the earlier reading; None: there is none.
            now: the newer reading.
            hosts: the number of hosts that the workers are on.
        """
        learned = self if now.size == self.np else replace(self, np=now.size, steps=0)
        if before is None or before.worker != now.worker:
            return learned
        if before.generation != now.generation:
            return learned._with_change(before, now)
        steps, seconds = now.step - before.step, now.at_s - before.at_s
        if steps <= 0 or seconds <= 0:
            return learned
        learned = replace(learned, steps=learned.steps + steps)
        if before.epoch != now.epoch:
            return learned
        samples = now.samples - before.samples
        work = samples or steps * now.size  # a script that keeps its own place counts no samples
        each = work / steps / now.size
        seen = SizeMeasurement(work / seconds, steps, each, hosts, learned.elapsed_s)
        return learned._with(now.size, seen)

    def for_rule(self, text: str) -> ScalingProfile:
        """Return the profile for the size rule in the policy file with this ``text``.

        If ``text`` differs from the profile's own, the result has the new text and an empty state.
        """
        return self if text == self.text else replace(self, text=text, state={})

    def for_batching(self, batching: Batching, step_batches: int) -> ScalingProfile:
        """Return the profile for a job whose batches have the sizes ``batching``.

        If the profile is of a job with other sizes, which was resumed with these, the result has an
        empty ``seen`` and an empty state: throughputs with different batches cannot be compared.
        ``by_batch`` stays. A global batch that the job itself has chosen may differ.

        Args:
            batching: the sizes of the batches of the present job.
            step_batches: the number of batches whose gradients a worker adds up for one step; it is
                kept, and not compared, for it is 1 until the first step of a start is complete.
        """
        own = self.batching
        known = replace(self, batching=batching, step_batches=step_batches)
        if own is None or replace(own, chosen=batching.chosen) == batching:
            return known
        return replace(known, seen=(), state={})

    def for_hold(self, policy: JobPolicy) -> ScalingProfile:
        """Return the profile after a leader has seen ``policy``, whose hold may be a new one.

        A new hold begins at the present ``elapsed_s``; a known one goes on.
        """
        if policy.held_until_s == self.hold[0]:
            return self
        return replace(self, hold=(policy.held_until_s, self.elapsed_s))

    def held_s(self, policy: JobPolicy) -> float:
        """Return for how many seconds ``policy`` still keeps a size that a person asked for.

        The hold lasts ``policy.hold_s`` seconds in which the job has workers, from when a leader
        first saw it; all of them are left if no leader has seen it yet. The clock by which
        ``held_until_s`` was set does not count. The result is 0 if no size is kept.
        """
        if not policy.held_until_s:
            return 0.0
        known, since_s = self.hold
        passed_s = self.elapsed_s - since_s if policy.held_until_s == known else 0.0
        return max(0.0, policy.hold_s - passed_s)

    def with_curve(self, curve: Curve) -> ScalingProfile:
        """Return the profile with the throughputs that `edl profile` has measured, in ``curve``.

        Each point of ``curve`` has a number of workers and its throughput. Points in another unit
        than samples are left out, and so are numbers of workers that the profile has measured
        already.
        """
        learned, known = self, {np for np, _ in self.seen}
        for point in curve.points:
            if point.unit == SAMPLES and point.np not in known:
                batch = point.throughput * point.step_s / point.np
                seen = SizeMeasurement(point.throughput, point.steps, batch, at_s=self.elapsed_s)
                learned = learned._with(point.np, seen)
        return learned

    def passed(self, seconds: float, np: int) -> ScalingProfile:
        """Return the profile after more time: its ``elapsed_s`` and ``worker_s`` have grown.

        Args:
            seconds: for how many seconds the job had ``np`` workers.
            np: the number of workers in this time.
        """
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
        """Return the facts that a size rule is told about the job.

        The result has a model of the throughput only if this profile has a fitted ``step_time`` and
        a known batch. The batch is that of the last measurement of ``np`` workers; without one it
        is the largest of all measured sizes.

        Args:
            np: the number of workers that train.
            sizes: the rules about the numbers of workers that the job may have.
            slots: the number of the job's workers for which there is room; None: any number.
            awaits: whether a change of the workers was asked for and is not complete yet.
            left: the number of samples still to train until the end; None: unknown.
            wishes: for each worker, how many workers more (or fewer, below 0) its script asks for.
            host_slots: the numbers of slots of the hosts, in the order in which hosts are filled;
                empty: there is one host.
        """
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
        """Return the profile with the seconds that a change of the number of workers has cost.

        The cost is the time between the two readings that was not spent on complete steps. The
        result's ``change_s`` is the mean of the cost and the ``change_s`` before, or the cost alone
        if that was 0. The profile is returned unchanged if both rings have the same size, the usual
        step time of the old one is unknown, or the cost is not above 0. It is also unchanged if the
        time may hold something else: an evaluation between two epochs, or a ring in between, which
        may have paused because it was below ``min_np``.

        Args:
            before: the last reading of the old ring.
            now: the first reading of the new ring.
        """
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
        """The measured batches, each in samples of one worker in a step, in ascending order.

        Of batches of about the same size only the first one in ``by_batch`` is in the result.
        """
        found: list[SizeMeasurement] = []
        for _, one in self.by_batch:
            if one.batch > 0 and not any(alike(one.batch, other.batch) for other in found):
                found.append(one)
        return tuple(sorted(one.batch for one in found))

    @property
    def all_seen(self) -> dict[tuple[int, int], SizeMeasurement]:
        """All measurements in ``by_batch``, by (number of workers, index in ``by_batch``)."""
        return {(np, at): one for at, (np, one) in enumerate(self.by_batch)}

    def _with(self, np: int, more: SizeMeasurement) -> ScalingProfile:
        """Return the profile with one more measurement of ``np`` workers.

        If ``by_batch`` has a measurement of ``np`` workers with a similar batch, the two are
        combined in its place. Otherwise the new one is appended; ``by_batch`` keeps the last
        :data:`KEPT` (200) entries. ``seen`` gets the same measurement for ``np``.

        Args:
            np: the number of workers.
            more: the new measurement.
        """
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
