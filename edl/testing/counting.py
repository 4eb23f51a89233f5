"""Train the counting model on a loopback ring; its parameters prove which samples were trained.

The model has one float64 parameter w[i] a sample, and the loss of a batch is the mean of w[i] over
its samples. Plain SGD with lr 1 over a global batch of N moves w[i] by -1/N each time that sample i
was counted. So the change of w in a step, over its smallest entry above 0, says how often each
sample was counted, without any knowledge of edl's bookkeeping (design.md, section 8).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from edl.binding.loop import BatchSteps
from edl.binding.reduction import Looked, NoiseMeter
from edl.binding.replica import StateArrays, of_array
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.ring.loopback import LoopbackMember
from edl.ring.ring import Ring
from edl.step.batching import Batching, logical_batching
from edl.step.engine import Batch, StepState
from edl.step.noise import UNKNOWN, NoiseSample, NoiseScale
from edl.step.source import AlignedSource, Source, StreamSource
from edl.step.state_check import WHOLE, StateGroup
from edl.step.weighting import Share
from edl.testing.loopback import LoopbackReducer
from edl.worker.progress import Receive
from edl.worker.sampler import StreamReader
from edl.worker.worker import Worker

if TYPE_CHECKING:
    from edl.testing.loopback import LoopbackWorker


Vector = npt.NDArray[np.float64]
TOLERANCE = 1e-6  # float64 leaves about 1e-12 of rounding; a wrong weight is far above


class CountingModel:
    """One parameter for each sample, and how often each was trained: a `Replica`."""

    framework = "loopback"
    reducer: LoopbackReducer | None = None

    def __init__(self, samples: int) -> None:
        self.w: Vector = np.zeros(samples)
        self.before: Vector = np.zeros(samples)  # w at the last count
        self.count: Vector = np.zeros(samples)  # how often each sample was trained
        self.wrong: list[str] = []
        self.sum: Vector | None = None  # weighted, of the gradients accumulated for the open step

    def gradient(self, batch: Batch) -> Vector:
        """Return the gradient of the mean loss: 1/n for each of the batch's n samples, else 0."""
        gradient: Vector = np.zeros(len(self.w))
        np.add.at(gradient, batch.items, 1.0 / batch.samples)
        return gradient

    def update(self, gradient: Vector) -> None:
        """Make a step of SGD, and count its samples; what cannot be right is noted in `wrong`."""
        self.w = self.w - gradient
        change = self.before - self.w
        self.before = self.w
        if not change.any():
            return
        size = 1.0 / change[change > 0].min() if (change > 0).any() else 0.0
        times = (change * size).round()
        if abs(change * size - times).max() > TOLERANCE:
            self.wrong.append(f"counted a part of a sample: {np.unique(change)}")
        elif abs(size - times.sum()) > TOLERANCE * size:
            self.wrong.append(f"{times.sum():g} counted, each with weight 1/{size:.9g}")
        self.count = self.count + times

    # --- what edl asks of a framework's copy of the state

    def end_batch(self, step: int, epoch: int) -> None:
        """Do nothing: the model has no schedules."""

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Do nothing: the model has no buffers."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        sent = self.exchange(ring, root)
        if receive is not Receive.NOTHING:
            self.restore(sent)

    def exchange(self, ring: Ring, root: int) -> dict[str, Vector]:
        """Broadcast the state of `root`; the model stays, since the ring may break halfway."""
        sent: dict[str, Vector] = {}
        for name, mine in self.capture().items():
            found = ring.broadcast(mine.tobytes(), root, f"edl.state.{name}")
            sent[name] = np.frombuffer(found, dtype=np.float64).copy()
        return sent

    def learning_rates(self) -> dict[str, float]:
        return {}

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        parts = StateArrays(lambda: {"w": self.w, "count": self.count}, lambda array: array.nbytes)
        return {
            part.name: of_array(part.value, part.start, part.stop) or 0
            for part in parts.within(group)
        }

    def capture(self, _share: StateShare = WHOLE_STATE) -> dict[str, Vector]:
        return {name: getattr(self, name).copy() for name in ("w", "before", "count")}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        vars(self).update(state)


class Shards:
    """A reader of shards of given lengths: with 3 and 2, shard 1 has the samples 3 and 4."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = [0, *accumulate(lengths)]

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[int]:
        start, stop = self._starts[shard : shard + 2]
        return [*range(start + offset, min(stop, start + offset + count))]


class TrainingData(Protocol):
    """The data that a counting script trains on; :class:`Counting` has these attributes."""

    @property
    def samples(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def shards(self) -> tuple[int, ...]: ...
    @property
    def shared(self) -> bool: ...


def source_of(
    data: TrainingData, prefetch_batches: int, batching: Batching | None = None
) -> tuple[Source, StreamReader | None]:
    """Return a counting script's data source, shuffled with seed 7, and the reader of a stream."""
    batching, shards, shared = batching or Batching(data.batch_size), data.shards, data.shared
    if not shards:
        kind = AlignedSource if batching.global_batch else Source
        return kind(data.samples, batching, True, 7, prefetch_batches), None
    stream = StreamSource.of(len(shards), batching, not shared, 7, prefetch_batches, shared=shared)
    return stream, Shards(shards)


class CountingBatchSource:
    """The batches that a worker forms from its leases, as :class:`edl.binding.loop.BatchSource`."""

    LATE = 2  # slow loading: so many calls that do not wait get padding

    def __init__(self, worker: Worker, prefetch_batches: int) -> None:
        self._late = self.LATE
        self._worker = worker
        self._prefetch_batches = prefetch_batches
        self._ahead: deque[Batch] = deque()
        self.batch: Batch | None = None  # whose data are in hand

    def restart(self) -> None:
        """Discard the batches that were formed ahead, as the worker's leases have changed."""
        self._ahead.clear()

    def form_lost_again(self) -> None:
        """Do nothing: this source loses no samples that need to be formed into batches again."""

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Return the next batch, and whether it counts for nothing: of a warm-up, or padding."""
        worker = self._worker
        if not worker.warming_up:
            while len(self._ahead) <= self._prefetch_batches:
                formed = worker.loader.sampler.form(worker.loader.ledger)
                if formed is None:
                    break
                self._ahead.append(formed)
        padding = not self._ahead
        if self._ahead and self._late and not waits:
            self._late, padding = self._late - 1, True
        self.batch = worker.loader.sampler.warm_up() if padding else self._ahead.popleft()
        return self.batch, padding

    def pad(self) -> Batch:
        """Return a padding batch for the open step; :attr:`batch` stays the one before."""
        return self._worker.loader.sampler.warm_up()


def accumulated(worker: Worker, model: CountingModel, gradient: Vector) -> Vector:
    """Return the sum of the step's gradients so far, each weighted by the samples of its batch."""
    loader = worker.loader
    batch_size = loader.progress.source.batch_size
    part: Vector = Share(loader.batch_weight).send_weight(batch_size) * gradient
    return part if model.sum is None else model.sum + part


class CountingNoise(NoiseMeter):
    """A noise meter; the mean gradient of n samples of the model has the squared norm 1 / n."""

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * (each @ each) for each, times in gradients))


def train_step(
    worker: Worker,
    member: LoopbackMember,
    model: CountingModel,
    gradient: Vector,
    noise: CountingNoise | None = None,
) -> bool:
    """Reduce the gradient, and update; False: others completed the step, or it goes on."""
    if model.reducer is None:
        model.reducer = LoopbackReducer(worker, member, len(gradient))
    reducer = model.reducer
    is_sum = worker.loader.engine.batches.summed or model.sum is not None
    local = accumulated(worker, model, gradient) if is_sum else gradient
    model.sum = None
    reducer.reduce(local)
    if worker.loader.engine.batches.pieces_left:  # the step goes on, after a repair
        model.sum = local
        return False
    completed = reducer.reduction.step.state is not StepState.SUPERSEDED
    if reducer.reduction.apply() and not worker.warming_up:
        mean = reducer.mean
        assert mean is not None
        if noise is not None and noise.wants:
            own = mean if worker.ring.alone else local
            noise.show(lambda: [(own, 1)], lambda: [(mean, 1)])
        model.update(mean)
    reducer.reduction.end_step()
    return completed


@dataclass(frozen=True)
class Counting:
    """A training script of the counting model; call it with a worker of a loopback job."""

    samples: int = 48
    epochs: int = 2
    batch_size: int = 2
    prefetch_batches: int = 0
    exchange_every: int = 0  # steps between exchanges of messages; 0: none
    accumulated: int = 1  # batches of a step, after `single` steps of one batch each
    single: int = 0
    step_s: float = 0.1  # of a batch, in virtual seconds
    shards: tuple[int, ...] = ()  # their lengths, if the samples are a stream
    shared: bool = False  # all read the stream, of one shard, together
    max_global_batch: int = 0
    aligned: bool = False  # `batch_size` is of all workers, and global batches keep their samples
    batch_range: tuple[int, int] = (0, 0)  # the leader asks for another batch every 3 steps
    micro_batch: int = 0
    logical: int = 0  # logical workers, each with `batch_size` samples of a step

    @property
    def _batching(self) -> Batching:
        micro = self.micro_batch
        if self.logical:
            return logical_batching("Counting", Batching(self.batch_size), self.logical)
        if self.batch_range[1]:
            return Batching(batch_range=self.batch_range, micro_batch=micro)
        if self.aligned:
            return Batching(global_batch=self.batch_size, micro_batch=micro)
        return Batching(self.batch_size, self.max_global_batch, micro_batch=micro)

    def __call__(self, one: LoopbackWorker) -> None:
        worker = one.worker
        source, reader = source_of(self, self.prefetch_batches, self._batching)
        worker.attach_source(source, reader)
        worker.loader.sampler.rereads = not self.shards
        model = CountingModel(self.samples)
        worker.attach_replica(model)
        one.model = model
        feed, noise = CountingBatchSource(worker, self.prefetch_batches), CountingNoise(worker)
        steps = BatchSteps(worker, feed, lambda: "the batch was not trained")
        exchanged: dict[int, list[bytes]] = {}
        sizes: dict[int, int] = {}
        batches = largest = 0  # of the step so far; samples of a step of all workers
        ring = 1  # workers of the largest
        split = 0  # steps whose samples are not of one global batch
        rounds: dict[int, int] = {}  # of the loop, by step
        round_ = 0
        for _ in steps.epochs(self.epochs):
            while steps.begin():
                assert feed.batch is not None
                one.compute(self.cost_s(one))
                least, most = self.batch_range
                if most:  # as a leader's policy does
                    one.shared.request_batch(least + worker.step // 3 * 5 % (most - least + 1))
                round_ += 1
                together = self.accumulated if worker.step >= self.single else 1
                gradient = model.gradient(feed.batch) / together
                left = worker.loader.engine.batches.pieces_left
                batches += left == 0
                if batches < together or left:
                    model.sum = accumulated(worker, model, gradient)
                    worker.loader.accumulate()
                    continue
                before, epoch, w = worker.loader.progress.trained, worker.loader.epoch, model.w
                ring = max(ring, worker.size)
                completed = train_step(worker, one.member, model, gradient, noise)
                if worker.loader.engine.batches.pieces_left:  # left by a logical worker's worker
                    batches = 0
                    continue
                in_step, round_ = round_, 0
                batches, largest = 0, max(largest, worker.loader.progress.trained - before)
                fixed = self.aligned or self.logical
                if completed and fixed and together == 1 and not worker.warming_up:
                    split += self._splits(source, epoch, np.flatnonzero(model.w - w))
                if not worker.warming_up:
                    sizes[worker.step] = worker.size if completed else 0
                    rounds[worker.step] = in_step
                due = self.exchange_every and worker.step % self.exchange_every == 0
                if due and not worker.warming_up:
                    told = f"w{worker.id} " * worker.id + f"step {worker.step}"  # uneven sizes
                    exchanged[worker.step] = worker.exchange_bytes(told.encode())
        progress = worker.loader.progress
        noise_scale, changes = progress.noise.scale, progress.batches
        one.result = Counted(
            model, worker.step, exchanged, sizes, noise_scale, largest, ring, split, changes, rounds
        )

    def cost_s(self, one: LoopbackWorker) -> float:
        """Return how long the next batch of `one` takes, in virtual seconds; tests override it."""
        return self.step_s

    def prove(self, results: Mapping[int, Counted]) -> None:
        """Assert that all workers counted each sample once an epoch, and have the same state."""
        assert results, "nobody trained to the end"
        first = next(iter(results.values()))
        for worker, result in results.items():
            model = result.model
            assert not model.wrong, f"w{worker}: {model.wrong}"
            assert (model.count == self.epochs).all(), (
                f"w{worker} counted samples {np.unique(model.count).tolist()} times"
            )
            assert (model.w == first.model.w).all(), f"w{worker} has another w"
            assert result.steps == first.steps, f"w{worker} made {result.steps} steps"

    def _splits(self, source: Source, epoch: int, samples: npt.NDArray[np.int64]) -> bool:
        """Return whether a step's samples belong to several global batches of an aligned source."""
        order = source.order(epoch).at(0, self.samples)
        places = np.flatnonzero(np.isin(order, samples))
        numbers = {*(places // source.batch_size).tolist()}
        # With logical workers the step must have all of them.
        if not self.logical:
            return len(numbers) > 1
        whole = min(source.batch_size, self.samples - min(numbers) * source.batch_size)
        return len(numbers) > 1 or len(places) != whole


@dataclass(frozen=True)
class Counted:
    """The result of one worker that has trained to the end; steps are the job's, from 1."""

    model: CountingModel
    steps: int  # of the job, also before the worker joined
    exchanged: Mapping[int, Sequence[bytes] | Sequence[Sequence[float]]]  # by step, in rank order
    sizes: Mapping[int, int]  # by step, of the ring that completed it; 0: the worker missed it
    noise: NoiseScale = UNKNOWN
    largest: int = 0  # samples of all workers in a step
    ring: int = 1  # the largest in which it began a step
    split: int = 0  # steps whose samples are not those of one global batch
    batches: tuple[tuple[int, int], ...] = ()  # (first update, samples) of each global batch
    rounds: Mapping[int, int] = field(default_factory=dict)  # by step, its batches and microbatches


def known_noise(noise: float, signal: float, batch: int, update: int = 0) -> NoiseScale:
    """Return a gradient noise scale after enough measurements with equal values."""
    known = UNKNOWN
    for _ in range(20):
        known = known.after(NoiseSample(noise, signal), batch, update)
    return known
