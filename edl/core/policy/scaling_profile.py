"""Keep a job's measured throughput at each size, for the next leader or for a resumed job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edl.core.job.profile import SAMPLES, Curve
from edl.core.policy.observation import CHANGE_S, Observation, SizeMeasurement, alike
from edl.core.policy.scaling import ScalingModel
from edl.core.policy.step_time import StepTime
from edl.core.policy.stragglers import Times
from edl.core.progress import ProgressSample
from edl.core.record import Record
from edl.core.sizes import Sizes
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale

KEPT = 200  # sizes with their batches


@dataclass(frozen=True)
class ScalingProfile(Record):
    """The measured throughput of each size of a job, and the state of its size rule.

    Attributes:
        seen: pairs of a number of workers and its throughput, the smallest number first.
        np: the number of workers at the newest reading of a worker's progress.
        steps: the complete steps since the ring has had this number of workers.
        elapsed_s: for how many seconds the job has trained, as its leaders have counted.
        worker_s: the sum of these seconds over all workers.
        state: the state of the rule whose file is ``text``; another rule begins without a state.
        text: the text of the policy file to which ``state`` belongs.
        replaced: host -> the ``elapsed_s`` at which a slow worker there was replaced.
        times: the mean step times of the slowest workers over their last steps.
        data_part: the fraction of a step's time that workers wait for their data, on average.
        change_s: for how many seconds training stood still when the size changed, as an average
            that favours the last change; 0: the size never changed.
        step_time: the model of a step's time that was fitted last.
        noise: the measurements of the gradient noise scale; none before the first one.
        batching: how large the batches are; None: unknown.
        step_batches: the number of batches whose gradients are added up for one step.
        by_batch: pairs of a number of workers and its throughput, one for each batch size that was
            measured with it.
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

    def with_reading(
        self, before: ProgressSample | None, now: ProgressSample, hosts: int = 1
    ) -> ScalingProfile:
        """Return the profile with the throughput between two readings of one worker's progress.

        A reading has the numbers of steps and samples that the worker has counted, and the time. If
        the two readings are of two rings of different sizes, the result has the cost of the change
        (``change_s``) instead. The first reading of a ring is taken after its first step, which
        therefore does not count. Time between two epochs, where a script evaluates or saves, does
        not count either.

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
        """Return the profile for the rule whose policy file has this ``text``.

        If the profile has the state of another rule, the result has no state.
        """
        return self if text == self.text else replace(self, text=text, state={})

    def with_curve(self, curve: Curve) -> ScalingProfile:
        """Return the profile with the throughputs that `edl profile` has measured, in ``curve``.

        ``curve`` has the throughput by number of workers. A number of workers that the profile
        already knows keeps its throughput.
        """
        learned, known = self, {np for np, _ in self.seen}
        for point in curve.points:
            if point.unit == SAMPLES and point.np not in known:
                batch = point.throughput * point.step_s / point.np
                seen = SizeMeasurement(point.throughput, point.steps, batch, at_s=self.elapsed_s)
                learned = learned._with(point.np, seen)
        return learned

    def passed(self, seconds: float, np: int) -> ScalingProfile:
        """Return the profile after more training: its ``elapsed_s`` and ``worker_s`` have grown.

        Args:
            seconds: for how many seconds the job trained.
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

        Args:
            np: the number of workers that train.
            sizes: the sizes that the job may have.
            slots: the number of workers for which there is room; None: any number.
            awaits: whether a change of the workers was asked for and is not complete yet.
            left: the number of samples still to train until the end; None: unknown.
            wishes: for each worker, how many workers more, or fewer, its script asks for.
            host_slots: the slots of each host, in the order in which hosts are filled.
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

        The cost is the time between two readings, before and after the change, that was not spent
        on complete steps. The profile is returned unchanged if both rings have the same size or the
        usual step time is unknown.

        Args:
            before: the last reading of the old ring.
            now: the first reading of the new ring.
        """
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
        """The measured batches, each in samples of one worker, the smallest first.

        Of several similar batches only the first measured one is in the result.
        """
        found: list[SizeMeasurement] = []
        for _, one in self.by_batch:
            if one.batch > 0 and not any(alike(one.batch, other.batch) for other in found):
                found.append(one)
        return tuple(sorted(one.batch for one in found))

    @property
    def all_seen(self) -> dict[tuple[int, int], SizeMeasurement]:
        """The measured throughputs, by pairs (number of workers, index in ``by_batch``)."""
        return {(np, at): one for at, (np, one) in enumerate(self.by_batch)}

    def _with(self, np: int, more: SizeMeasurement) -> ScalingProfile:
        """Return the profile with one more measurement of ``np`` workers.

        If the profile has a measurement of ``np`` workers with a similar batch, the two are
        combined. Measurements with other batches stay in ``by_batch``, which has at most
        :data:`KEPT` entries, the last ones.

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
