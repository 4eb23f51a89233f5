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
    """A model with one parameter for each sample, which counts how often each sample was trained.

    It is an :class:`edl.worker.state_check.Replica`, one worker's copy of the job's state.

    Args:
        samples: the number of samples, and so of parameters.

    Attributes:
        w: the parameters, at first 0.
        before: the parameters at the last count.
        count: how often each sample was trained so far.
        wrong: messages about counts that cannot be right; empty as long as all are.
        sum: the weighted sum of the gradients accumulated for the open step; None: there are none.
        reducer: reduces the gradients of the model; None before the first step.
    """

    framework = "loopback"
    reducer: LoopbackReducer | None = None

    def __init__(self, samples: int) -> None:
        self.w: Vector = np.zeros(samples)
        self.before: Vector = np.zeros(samples)
        self.count: Vector = np.zeros(samples)
        self.wrong: list[str] = []
        self.sum: Vector | None = None  # of the gradients that are accumulated

    def gradient(self, batch: Batch) -> Vector:
        """Return the gradient of the mean loss over ``batch``, with one number for each sample.

        It is 1/n for each of the n samples of the batch, and 0 for all others.
        """
        gradient: Vector = np.zeros(len(self.w))
        np.add.at(gradient, batch.items, 1.0 / batch.samples)
        return gradient

    def update(self, gradient: Vector) -> None:
        """Make a step of plain SGD with lr 1, and add its samples to ``count``.

        ``gradient`` is the mean gradient of the step. If a count that follows from it is no
        integer, or does not fit the change of the weights, a message is added to ``wrong``; nothing
        is raised.
        """
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
        """Do nothing: the model has no objects that change at the end of a batch, as schedules do.

        ``step`` and ``epoch`` are ignored.
        """

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Do nothing: the model has no buffers."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Take part in the broadcast of the job's state from one worker to all others.

        Args:
            ring: the ring on which the state is sent; all its workers call this.
            root: the rank of the worker that sends its state.
            receive: ``NOTHING``: keep this model's state; any other value: take the state that is
                sent.

        Raises:
            RingBroken: a worker is gone; this model is then unchanged.
        """
        sent = self.exchange(ring, root)
        if receive is not Receive.NOTHING:
            self.restore(sent)

    def exchange(self, ring: Ring, root: int) -> dict[str, Vector]:
        """Broadcast the state of the worker with rank ``root`` on ``ring``, and return it.

        All workers get the arrays by name, also the root. The model itself is not changed, since
        the ring may break halfway; RingBroken is then raised.
        """
        sent: dict[str, Vector] = {}
        for name, mine in self.capture().items():
            found = ring.broadcast(mine.tobytes(), root, f"edl.state.{name}")
            sent[name] = np.frombuffer(found, dtype=np.float64).copy()
        return sent

    def learning_rates(self) -> dict[str, float]:
        """Return an empty dictionary: the model has no optimizer whose learning rate may change."""
        return {}

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return digests of the arrays ``w`` and ``count``, to compare the states of workers.

        The result has the digest of each piece of an array that lies in ``group``, by the piece's
        name. ``group`` is a range of the arrays' bytes, by default all of them.
        """
        parts = StateArrays(lambda: {"w": self.w, "count": self.count}, lambda array: array.nbytes)
        return {
            part.name: of_array(part.value, part.start, part.stop) or 0
            for part in parts.within(group)
        }

    def capture(self, _share: StateShare = WHOLE_STATE) -> dict[str, Vector]:
        """Return copies of the arrays ``w``, ``before`` and ``count``, for :meth:`restore`."""
        return {name: getattr(self, name).copy() for name in ("w", "before", "count")}

    def restore(self, state: object) -> None:
        """Set ``w``, ``before`` and ``count`` to the arrays in ``state``, from :meth:`capture`."""
        assert isinstance(state, dict)
        vars(self).update(state)


class Shards:
    """A reader of shards with given lengths, whose samples are numbered through from 0.

    With the lengths 3 and 2, shard 1 has the samples 3 and 4.

    Args:
        lengths: the number of samples in each shard.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = [0, *accumulate(lengths)]

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[int]:
        """Return up to ``count`` samples of a shard, the same in every epoch.

        It is the method of :class:`edl.worker.sampler.StreamReader`.

        Args:
            epoch: the epoch, which is ignored.
            shard: the index of the shard, from 0.
            offset: the index in the shard of the first sample to return.
            count: the most samples to return; fewer are returned at the end of the shard.
        """
        start, stop = self._starts[shard : shard + 2]
        return [*range(start + offset, min(stop, start + offset + count))]


class TrainingData(Protocol):
    """The data that a counting script trains on; :class:`Counting` has these attributes."""

    @property
    def samples(self) -> int:
        """The number of samples in an epoch."""

    @property
    def batch_size(self) -> int:
        """The samples of one worker's batch, or of all workers' together if the source is aligned.

        In an aligned source the global batches have the same samples whatever the number of
        workers.
        """

    @property
    def shards(self) -> tuple[int, ...]:
        """The lengths of the shards of a stream; empty if the data are no stream."""

    @property
    def shared(self) -> bool:
        """Whether the samples are one stream of one shard, which all workers read together."""


def source_of(
    data: TrainingData, prefetch_batches: int, batching: Batching | None = None
) -> tuple[Source, StreamReader | None]:
    """Return the data source of a counting script, and its reader if the source is a stream.

    The reader is None for numbered samples. Samples (of a stream: its shards) are shuffled in each
    epoch with the seed 7; a shared stream is not.

    Args:
        data: the samples, their shards, and the batch size.
        prefetch_batches: how many batches a worker forms ahead.
        batching: how batches are formed; None: each worker's batch has ``data.batch_size`` samples.
    """
    batching, shards, shared = batching or Batching(data.batch_size), data.shards, data.shared
    if not shards:
        kind = AlignedSource if batching.global_batch else Source
        return kind(data.samples, batching, True, 7, prefetch_batches), None
    stream = StreamSource.of(len(shards), batching, not shared, 7, prefetch_batches, shared=shared)
    return stream, Shards(shards)


class CountingBatchSource:
    """The batches that a worker forms from its leases, as :class:`edl.binding.loop.BatchSource`.

    To imitate slow loading, the first LATE (2) calls of :meth:`next` that do not wait return
    padding batches; then the data count as loaded. The attribute ``batch`` is the last result.

    Args:
        worker: the worker that trains the batches.
        prefetch_batches: how many batches to form ahead.
    """

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
        """Return the next batch, and whether it counts for nothing.

        A batch of the warm-up counts for nothing; so does a padding batch (of weight zero), which
        is returned when the worker has no more leases.

        Args:
            waits: whether to wait until data are loaded; if not, the result is a padding batch in
                the first LATE calls.
        """
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
    """Return the sum of the step's gradients so far, each weighted by the samples of its batch.

    The weight is the number of samples over the nominal batch size, 0 for padding. The caller
    stores the sum in ``model.sum``.

    Args:
        worker: the worker, with the newest batch open.
        model: the model, whose ``sum`` is that of the earlier gradients; None: there are none.
        gradient: the gradient of the newest batch.
    """
    loader = worker.loader
    batch_size = loader.progress.source.batch_size
    part: Vector = Share(loader.batch_weight).send_weight(batch_size) * gradient
    return part if model.sum is None else model.sum + part


class CountingNoise(NoiseMeter):
    """A noise meter for the counting model, whose gradients consist of noise alone.

    Each sample has a parameter of its own, so the mean gradient of n samples has the squared norm
    1 / n.

    Args:
        worker: the worker whose gradients are measured.
    """

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * (each @ each) for each, times in gradients))


def train_step(
    worker: Worker,
    member: LoopbackMember,
    model: CountingModel,
    gradient: Vector,
    noise: CountingNoise | None = None,
) -> bool:
    """Train one step as edl's frameworks do: reduce the gradient, and update the model with it.

    In a warm-up nothing is sent or updated.

    Args:
        worker: the worker, with an open batch; the call completes its step.
        member: its place in the loopback ring.
        model: the model to update; its ``sum``, the earlier gradients of the step, becomes None.
        gradient: the gradient of the step's last batch.
        noise: measures the gradient noise scale; None: it is not measured.

    Returns:
        Whether this worker completed the step; False if the other workers had completed it, and
        this worker received their state, or if the step goes on with more pieces.
    """
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
    """A training script of the counting model; call it with a worker of a loopback job.

    Attributes:
        samples: the number of samples in the data.
        epochs: how often each sample is trained.
        batch_size: the samples of a worker's batch.
        prefetch_batches: how many batches a worker forms ahead.
        exchange_every: workers exchange messages each time after this many steps; 0: never.
        accumulated: the gradients of this many batches make one step, after ``single`` steps of one
            batch each.
        single: the number of steps at the start that have one batch each.
        step_s: how long a batch takes, in virtual seconds.
        shards: the lengths of the shards, if the samples are a stream; empty: they are no stream.
        shared: all workers read the stream together, and it has one shard.
        max_global_batch: the most samples in a batch of all workers together; 0: any.
        aligned: ``batch_size`` is of all workers together, and the global batches have the same
            samples however many workers there are.
        batch_range: the least and largest global batch, in samples; the leader asks for another
            batch between them every 3 steps. (0, 0): it asks for none.
        micro_batch: the samples that a worker trains at once; 0: its whole batch.
        logical: how many logical workers there are, each of which trains ``batch_size`` samples of
            a step; 0: none.
    """

    samples: int = 48
    epochs: int = 2
    batch_size: int = 2
    prefetch_batches: int = 0
    exchange_every: int = 0
    accumulated: int = 1
    single: int = 0
    step_s: float = 0.1
    shards: tuple[int, ...] = ()
    shared: bool = False
    max_global_batch: int = 0
    aligned: bool = False
    batch_range: tuple[int, int] = (0, 0)
    micro_batch: int = 0
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
        """Return how long the next batch of the worker ``one`` takes, in virtual seconds.

        Here it is ``step_s`` for all workers. Tests override this method.
        """
        return self.step_s

    def prove(self, results: Mapping[int, Counted]) -> None:
        """Assert that all workers counted each sample once an epoch and ended with the same state.

        ``results`` are the results of the workers that trained to the end, by worker id.

        Raises:
            AssertionError: a result is wrong, or there is none; the message says which one.
        """
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
    """The result of one worker that has trained the counting model to the end.

    A step is given by the number of steps that the job has completed with it, from 1.

    Attributes:
        model: the model as it was trained, with how often each sample was counted.
        steps: the number of steps of the job, also of those before the worker joined.
        exchanged: by step, the messages or numbers that the workers gave to the exchange after it,
            in rank order.
        sizes: by step, the size of the ring that completed it; 0 if this worker missed the step.
        noise: the measured gradient noise scale.
        largest: the most samples of all workers in a step that this worker trained.
        ring: the largest size of a ring in which the worker began a step, whether it was completed
            or not.
        split: the number of steps whose samples come from more than one aligned global batch, or,
            with logical workers, are not all of one.
        batches: the changes of the global batch: (number of the first update with it, samples).
        rounds: by step, how many batches and microbatches this worker had in it.
    """

    model: CountingModel
    steps: int
    exchanged: Mapping[int, Sequence[bytes] | Sequence[Sequence[float]]]
    sizes: Mapping[int, int]
    noise: NoiseScale = UNKNOWN
    largest: int = 0
    ring: int = 1
    split: int = 0
    batches: tuple[tuple[int, int], ...] = ()
    rounds: Mapping[int, int] = field(default_factory=dict)


# ------------------------------------------------------------
# Make a known gradient noise scale, to test learning rates and batch sizes that follow it.
#
# `known_noise` makes it.


ENOUGH = 20  # measurements that all say the same


def known_noise(noise: float, signal: float, batch: int, update: int = 0) -> NoiseScale:
    """Return a gradient noise scale after ENOUGH (20) measurements with equal values."""
    known = UNKNOWN
    for _ in range(ENOUGH):
        known = known.after(NoiseSample(noise, signal), batch, update)
    return known
