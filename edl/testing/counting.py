"""Train the counting model on a loopback ring; its parameters prove which samples were trained.

:class:`Counting` is the training script, and its ``prove`` checks the results. The model has one
float64 parameter w[i] for each sample. The loss of a batch is the mean of w[i] over its samples, so
the gradient of a sample is 1 at its own place. Plain SGD with lr 1 over a global batch of N moves
w[i] by -1/N for each time that sample i was counted. So the change of w in a step, divided by its
smallest entry above 0, says how often each sample was counted in the step, without any knowledge of
edl's bookkeeping (design.md, section 8). Gradients of several batches are accumulated as scripts do
it: each is divided by their number. ``before`` (w at the last count) and ``count`` belong to the
model, so newcomers receive them with the rest of the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from edl.core.job.state_share import WHOLE_STATE, StateShare
from edl.core.step.aligned import AlignedSource
from edl.core.step.batch import Batch
from edl.core.step.batching import Batching, logical_batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale
from edl.core.step.source import Source
from edl.core.step.state_check import WHOLE, StateGroup
from edl.core.step.step_state import StepState
from edl.core.step.stream import StreamSource
from edl.core.step.weighting import Share
from edl.framework.digest import StateArrays, of_array
from edl.framework.noise_meter import Looked, NoiseMeter
from edl.framework.steps import BatchSteps
from edl.ring.loopback import LoopbackMember
from edl.ring.ring import Ring
from edl.testing.loopback_reducer import LoopbackReducer
from edl.worker.progress import Receive
from edl.worker.stream_sampler import StreamReader
from edl.worker.worker import Worker

if TYPE_CHECKING:
    from edl.testing.loopback import LoopbackWorker

Vector = npt.NDArray[np.float64]
TOLERANCE = 1e-6  # float64 leaves about 1e-12 of rounding; a wrong weight is far above


class CountingModel:
    """A model with one parameter for each sample, which counts how often each sample was trained"""

    framework = "loopback"
    # reduces the gradients of the model; None before the first step
    reducer: LoopbackReducer | None = None

    def __init__(self, samples: int) -> None:
        self.w: Vector = np.zeros(samples)  # the parameters, at first 0
        self.before: Vector = np.zeros(samples)  # the parameters at the last count
        self.count: Vector = np.zeros(samples)  # how often each sample was trained so far
        # messages about counts that cannot be right; empty as long as all are
        self.wrong: list[str] = []
        self.sum: Vector | None = None  # of the gradients that are accumulated

    def gradient(self, batch: Batch) -> Vector:
        """Return the gradient of the mean loss over `batch`, with one number for each sample."""
        gradient: Vector = np.zeros(len(self.w))
        np.add.at(gradient, batch.items, 1.0 / batch.samples)
        return gradient

    def update(self, gradient: Vector) -> None:
        """Make a step of plain SGD with lr 1, and add its samples to `count`."""
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
        """Do nothing: the model has no objects that change at a batch's end, as schedules do."""

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Do nothing: the model has no buffers."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Take part in the broadcast of the job's state from one worker to all others."""
        sent = self.exchange(ring, root)
        if receive is not Receive.NOTHING:
            self.restore(sent)

    def exchange(self, ring: Ring, root: int) -> dict[str, Vector]:
        """Broadcast the state of the worker with rank `root` on `ring`, and return it."""
        # The model itself is not changed, since the ring may break halfway; RingBroken is then
        # raised.
        sent: dict[str, Vector] = {}
        for name, mine in self.capture().items():
            found = ring.broadcast(mine.tobytes(), root, f"edl.state.{name}")
            sent[name] = np.frombuffer(found, dtype=np.float64).copy()
        return sent

    def learning_rates(self) -> dict[str, float]:
        """Return an empty dictionary: the model has no optimizer whose learning rate may change."""
        return {}

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return digests of the arrays `w` and `count`, to compare the states of workers."""
        parts = StateArrays(lambda: {"w": self.w, "count": self.count}, lambda array: array.nbytes)
        return {
            part.name: of_array(part.value, part.start, part.stop) or 0
            for part in parts.within(group)
        }

    def capture(self, _share: StateShare = WHOLE_STATE) -> dict[str, Vector]:
        """Return copies of the arrays `w`, `before` and `count`, for `restore`."""
        return {name: getattr(self, name).copy() for name in ("w", "before", "count")}

    def restore(self, state: object) -> None:
        """Set `w`, `before` and `count` to the arrays in `state`, from `capture`."""
        assert isinstance(state, dict)
        vars(self).update(state)


class Shards:
    """A reader of shards with given lengths, whose samples are numbered through from 0."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = [0, *accumulate(lengths)]

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[int]:
        start, stop = self._starts[shard : shard + 2]
        return [*range(start + offset, min(stop, start + offset + count))]


class TrainingData(Protocol):
    """The data that a counting script trains on; `Counting` has these attributes."""

    @property
    def samples(self) -> int:
        """The number of samples in an epoch."""

    @property
    def batch_size(self) -> int:
        """The samples of one worker's batch, or of workers' together if the source is aligned"""

    @property
    def shards(self) -> tuple[int, ...]:
        """The lengths of the shards of a stream; empty if the data are no stream."""

    @property
    def shared(self) -> bool:
        """Whether the samples are one stream of one shard, which all workers read together."""


def source_of(
    data: TrainingData, prefetch_batches: int, batching: Batching | None = None
) -> tuple[Source, StreamReader | None]:
    """Return the data source of a counting script, and its reader if the source is a stream."""
    batching, shards, shared = batching or Batching(data.batch_size), data.shards, data.shared
    if not shards:
        kind = AlignedSource if batching.global_batch else Source
        return kind(data.samples, batching, True, 7, prefetch_batches), None
    stream = StreamSource.of(len(shards), batching, not shared, 7, prefetch_batches, shared=shared)
    return stream, Shards(shards)


class CountingBatchSource:
    """The batches that a worker forms from its leases, as `BatchSource`."""

    LATE = 2

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
        """Return the next batch, and whether it counts for nothing."""
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
        """Return a padding batch for the open step; `batch` stays the one before."""
        return self._worker.loader.sampler.warm_up()


def accumulated(worker: Worker, model: CountingModel, gradient: Vector) -> Vector:
    """Return the sum of the step's gradients so far, each weighted by the samples of its batch."""
    loader = worker.loader
    batch_size = loader.progress.source.batch_size
    part: Vector = Share(loader.batch_weight).send_weight(batch_size) * gradient
    return part if model.sum is None else model.sum + part


class CountingNoise(NoiseMeter):
    """A noise meter for the counting model, whose gradients consist of noise alone."""

    # `worker`: the worker whose gradients are measured.

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * (each @ each) for each, times in gradients))


def train_step(
    worker: Worker,
    member: LoopbackMember,
    model: CountingModel,
    gradient: Vector,
    noise: CountingNoise | None = None,
) -> bool:
    """Train one step as edl's frameworks do: reduce the gradient, and update the model with it."""
    # `noise`: measures the gradient noise scale; None: it is not measured.
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

    samples: int = 48  # the number of samples in the data
    epochs: int = 2  # how often each sample is trained
    batch_size: int = 2  # the samples of a worker's batch
    prefetch_batches: int = 0  # how many batches a worker forms ahead
    exchange_every: int = 0  # workers exchange messages each time after this many steps; 0: never
    # the gradients of this many batches make one step, after `single` steps of one batch each
    accumulated: int = 1
    single: int = 0  # the number of steps at the start that have one batch each
    step_s: float = 0.1  # how long a batch takes, in virtual seconds
    # the lengths of the shards, if the samples are a stream; empty: they are no stream
    shards: tuple[int, ...] = ()
    shared: bool = False  # all workers read the stream together, and it has one shard
    max_global_batch: int = 0  # the most samples in a batch of all workers together; 0: any
    # `batch_size` is of all workers together, and the global batches have the same samples however
    # many workers there are
    aligned: bool = False
    # the least and largest global batch, in samples; the leader asks for another batch between them
    # every 3 steps. (0, 0): it asks for none.
    batch_range: tuple[int, int] = (0, 0)
    micro_batch: int = 0  # the samples that a worker trains at once; 0: its whole batch
    # how many logical workers there are, each of which trains `batch_size` samples of a step; 0:
    # none
    logical: int = 0

    @property
    def _batching(self) -> Batching:
        """The rule by which batches are formed, made of the fields (like `batch_size`)."""
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
                self._request_size(one)
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
        one.result = Counted(
            model,
            worker.step,
            exchanged,
            sizes,
            progress.noise.scale,
            largest,
            ring,
            split,
            progress.batches,
            rounds,
        )

    def _request_size(self, one: LoopbackWorker) -> None:
        """Request another global batch within `batch_range`, as a leader's policy does."""
        least, most = self.batch_range
        if most:
            one.shared.request_batch(least + one.worker.step // 3 * 5 % (most - least + 1))

    def cost_s(self, one: LoopbackWorker) -> float:
        """Return how long the next batch of the worker `one` takes, in virtual seconds."""
        return self.step_s

    def prove(self, results: Mapping[int, Counted]) -> None:
        """Assert that workers counted each sample once an epoch and ended with the same state"""
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
        # With logical workers the step must have all of them, too.
        order = source.order(epoch).at(0, self.samples)
        places = np.flatnonzero(np.isin(order, samples))
        numbers = {*(places // source.batch_size).tolist()}
        if not self.logical:
            return len(numbers) > 1
        whole = min(source.batch_size, self.samples - min(numbers) * source.batch_size)
        return len(numbers) > 1 or len(places) != whole


@dataclass(frozen=True)
class Counted:
    """The result of one worker that has trained the counting model to the end."""

    model: CountingModel  # the model as it was trained, with how often each sample was counted
    steps: int  # the number of steps of the job, also of those before the worker joined
    # by step, the messages or numbers that the workers gave to the exchange after it, in rank order
    exchanged: Mapping[int, Sequence[bytes] | Sequence[Sequence[float]]]
    # by step, the size of the ring that completed it; 0 if this worker missed the step
    sizes: Mapping[int, int]
    noise: NoiseScale = UNKNOWN  # the measured gradient noise scale
    largest: int = 0  # the most samples of all workers in a step that this worker trained
    # the largest size of a ring in which the worker began a step, whether it was completed or not
    ring: int = 1
    # the number of steps whose samples come from more than one aligned global batch, or, with
    # logical workers, are not all of one
    split: int = 0
    # the changes of the global batch: (number of the first update with it, samples)
    batches: tuple[tuple[int, int], ...] = ()
    # by step, how many batches and microbatches this worker had in it
    rounds: Mapping[int, int] = field(default_factory=dict)
