"""Train the counting model on a loopback ring; its parameters prove which samples were trained.

The model has one float64 parameter w[i] for each sample. The loss of a batch is the mean of w[i]
over its samples, so the gradient of a sample is 1 at its own place. Plain SGD with lr 1 over a
global batch of N moves w[i] by -1/N for each time that sample i was counted. So the change of w in
a step, divided by its smallest part, says how often each sample was counted in the step, without
any knowledge of edl's bookkeeping (design.md, section 8). Gradients of several batches are
accumulated as scripts do it: each is divided by their number. ``before`` (w at the last count) and
``count`` belong to the model, so newcomers receive them with the rest of the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from edl.core.step.aligned import AlignedSource
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale
from edl.core.step.source import Source
from edl.core.step.state_check import WHOLE, StateGroup
from edl.core.step.stream import StreamSource
from edl.core.step.weighting import Averaging, Share, weigh
from edl.errors import RingBroken
from edl.framework.digest import StateArrays, of_array
from edl.framework.noise_meter import Looked, NoiseMeter
from edl.framework.steps import BatchSteps
from edl.ring.loopback import LoopbackMember
from edl.ring.ring import CollectiveFailed, Ring
from edl.worker.progress import Receive
from edl.worker.sampler import Batch
from edl.worker.stream_sampler import StreamReader
from edl.worker.worker import Worker

if TYPE_CHECKING:
    from edl.testing.loopback import LoopbackWorker

Vector = npt.NDArray[np.float64]
TOLERANCE = 1e-6  # float64 leaves about 1e-12 of rounding; a wrong weight is far above


class CountingModel:
    """A model with one parameter for each sample, which counts how often each sample was trained.

    It is a :class:`edl.worker.replica.Replica`, the copy of the job's state that one worker
    holds.

    Args:
        samples: the number of samples, and so of parameters.
    """

    framework = "loopback"

    def __init__(self, samples: int) -> None:
        self.w: Vector = np.zeros(samples)
        self.before: Vector = np.zeros(samples)
        self.count: Vector = np.zeros(samples)
        self.wrong: list[str] = []
        self.sum: Vector | None = None  # of the gradients that are accumulated

    def gradient(self, batch: Batch) -> Vector:
        """Return the gradient of the mean loss over the samples of ``batch``, by sample."""
        gradient: Vector = np.zeros(len(self.w))
        np.add.at(gradient, batch.items, 1.0 / batch.samples)
        return gradient

    def update(self, gradient: Vector) -> None:
        """Make a step of plain SGD with lr 1, and count the samples that the step has trained.

        ``gradient`` is the mean gradient of the step. If a count that follows from it is no
        integer, or does not fit the change of the weights, a message is added to the attribute
        ``wrong``.
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

        Args:
            step: the step; it does not count.
            epoch: the epoch; it does not count.
        """

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Take part in the broadcast of the job's state from one worker to all others.

        Args:
            ring: the ring on which the state is sent.
            root: the rank of the worker that sends its state.
            receive: ``NOTHING``: keep this model's state; any other value: take the state that is
                sent.
        """
        sent = self.exchange(ring, root)
        if receive is not Receive.NOTHING:
            self.restore(sent)

    def exchange(self, ring: Ring, root: int) -> dict[str, Vector]:
        """Broadcast the state of the worker with rank ``root`` on ``ring``, and return it.

        The result has the arrays by name. The model itself is not changed, since the ring may break
        halfway.
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

        Args:
            group: the range of the arrays' bytes to digest; all by default.

        Returns:
            The digest of each piece of an array that lies in the range, by the piece's name.
        """
        parts = StateArrays(lambda: {"w": self.w, "count": self.count}, lambda array: array.nbytes)
        return {
            part.name: of_array(part.value, part.start, part.stop) or 0
            for part in parts.within(group)
        }

    def capture(self) -> dict[str, Vector]:
        """Return copies of the arrays ``w``, ``before`` and ``count``, for :meth:`restore`."""
        return {name: getattr(self, name).copy() for name in ("w", "before", "count")}

    def restore(self, state: object) -> None:
        """Set ``w``, ``before`` and ``count`` to the arrays in ``state``, from :meth:`capture`."""
        assert isinstance(state, dict)
        vars(self).update(state)


class Shards:
    """A reader of shards with given lengths, whose samples are the numbers from 0 on.

    Args:
        lengths: the number of samples in each shard.
    """

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = [0, *accumulate(lengths)]

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[int]:
        """Return up to ``count`` samples of a shard, the same in every epoch.

        It is the method of :class:`edl.worker.stream_sampler.StreamReader`.

        Args:
            epoch: the epoch; it does not count.
            shard: the index of the shard.
            offset: the index of the sample in the shard to begin with.
            count: the most samples to return; fewer are returned at the end of the shard.
        """
        start, stop = self._starts[shard : shard + 2]
        return [*range(start + offset, min(stop, start + offset + count))]


class TrainingData(Protocol):
    """The data that a counting script trains on."""

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
        """Whether all workers read one shared stream together."""


def source_of(
    data: TrainingData, prefetch_batches: int, batching: Batching | None = None
) -> tuple[Source, StreamReader | None]:
    """Return the data source of a counting script, and its reader if the source is a stream.

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
    """The batches that a worker forms from its leases, as :class:`edl.framework.steps.BatchSource`.

    To imitate slow loading, the first LATE (2) calls of :meth:`next` that do not wait return
    padding batches; then the data count as loaded.

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
        """Discard the batches that were formed ahead of need."""
        self._ahead.clear()

    def form_lost_again(self) -> None:
        """Do nothing: this source loses no samples that need to be formed into batches again."""

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Return the next batch, and whether it is a padding batch (of weight zero).

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


def accumulated(worker: Worker, model: CountingModel, gradient: Vector) -> Vector:
    """Return the sum of the step's gradients so far, each weighted by the samples of its batch.

    Args:
        worker: the worker, with the newest batch open.
        model: the model, whose ``sum`` is that of the earlier gradients.
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
        """Return the weighted sum of the squared norms of (gradient, weight) in ``gradients``."""
        return float(sum(times * (each @ each) for each, times in gradients))


def train_step(
    worker: Worker,
    member: LoopbackMember,
    model: CountingModel,
    gradient: Vector,
    noise: CountingNoise | None = None,
) -> bool:
    """Train one step as edl's frameworks do: send the gradient, wait for the step records, update.

    A step record is a worker's message with the number of its samples in the step.
    If the ring breaks, the step is repeated on the next ring. The gradient is sent before any
    worker knows how many samples the step has.

    Args:
        worker: the worker, with an open batch.
        member: its place in the loopback ring.
        model: the model to update.
        gradient: the gradient of the step's last batch.
        noise: measures the gradient noise scale; None: it is not measured.

    Returns:
        Whether this worker completed the step; False if the other workers had completed it, and
        this worker received their state.
    """
    local = gradient if model.sum is None else accumulated(worker, model, gradient)
    model.sum = mean = None
    if worker.warming_up:
        worker.loader.end()
        return True
    completed = True
    while True:
        try:
            mean = _mean(worker, member, local)
            break
        except RingBroken as error:
            if worker.loader.recover(error):  # the others had completed it: their state is here
                completed = False
                break
    if mean is not None:
        if noise is not None and noise.wants:
            own = mean if worker.ring.alone else local
            noise.show(lambda: [(own, 1)], lambda: [(mean, 1)])
        model.update(mean)
    worker.loader.end()
    return completed


def _mean(worker: Worker, member: LoopbackMember, local: Vector) -> Vector | None:
    """Return the mean gradient of the step's samples; None if the step has no samples.

    Args:
        worker: the worker, whose step record is sent with the gradient.
        member: its place in the loopback ring.
        local: the worker's own gradient, weighted by its samples.

    Raises:
        RingBroken: the ring failed, and its survivors have to complete the step.
    """
    handle, own = None, worker.loader.step_input.share(0)
    batch_size = worker.loader.progress.source.batch_size
    sent = own.send_weight(batch_size) * local
    try:
        if not worker.ring.alone and own.samples:
            handle = member.average_start(sent, "edl.gradient.w")
        records = worker.loader.records()
        weights = weigh(records.column("samples"), records.column("batches"), own, batch_size)
        if weights.averaging is Averaging.NONE:
            return None
        if not weights.sends:
            return local * weights.received
        if handle is None:
            handle = member.average_start(sent, "edl.gradient.w")
        average: Vector = member.average_finish(handle)
    except CollectiveFailed as error:
        raise RingBroken(worker.generation, str(error)) from error
    return average * weights.received


@dataclass(frozen=True)
class Counting:
    """A training script of the counting model; call it with a worker of a loopback job.

    Attributes:
        samples: the number of samples in the data.
        epochs: how often each sample is trained.
        batch_size: the samples of a worker's batch.
        prefetch_batches: how many batches a worker forms ahead.
        exchange_every: workers exchange numbers each time after this many steps; 0: never.
        accumulated: the gradients of this many batches make one step, after ``single`` steps of one
            batch each.
        single: the number of steps at the start that have one batch each.
        step_s: how long a batch takes, in virtual seconds.
        shards: the lengths of the shards, if the samples are a stream; empty: they are no stream.
        shared: all workers read the stream together, and it has one shard.
        max_global_batch: the most samples in a batch of all workers together; 0: any.
        aligned: ``batch_size`` is of all workers together, and the batches have the same samples in
            every job.
        batch_range: the least and largest global batch; the leader asks for another batch between
            them every 3 steps. (0, 0): it asks for none.
        micro_batch: the samples that a worker trains at once; 0: its whole batch.
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

    @property
    def _batching(self) -> Batching:
        """The rule by which batches are formed, from the script's fields (like ``batch_size``)."""
        micro = self.micro_batch
        if self.batch_range[1]:
            return Batching(batch_range=self.batch_range, micro_batch=micro)
        if self.aligned:
            return Batching(global_batch=self.batch_size, micro_batch=micro)
        return Batching(self.batch_size, self.max_global_batch, micro_batch=micro)

    def __call__(self, one: LoopbackWorker) -> None:
        """Train the model on a worker to the end, and leave a :class:`Counted` as its ``result``.

        Args:
            one: the worker of the loopback job that runs the script.
        """
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
                left = worker.loader.step_input.pieces_left
                batches += left == 0
                if batches < together or left:
                    model.sum = accumulated(worker, model, gradient)
                    worker.loader.accumulate()
                    continue
                before, epoch, w = worker.loader.progress.trained, worker.loader.epoch, model.w
                ring = max(ring, worker.size)
                completed = train_step(worker, one.member, model, gradient, noise)
                in_step, round_ = round_, 0
                batches, largest = 0, max(largest, worker.loader.progress.trained - before)
                if completed and self.aligned and together == 1 and not worker.warming_up:
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
        """Request another global batch within ``batch_range``, as a leader's policy does.

        Args:
            one: the worker that requests it; the request has no effect if it does not lead.
        """
        least, most = self.batch_range
        if most:
            one.shared.request_batch(least + one.worker.step // 3 * 5 % (most - least + 1))

    def cost_s(self, one: LoopbackWorker) -> float:
        """Return how long the next batch takes a worker, in virtual seconds.

        Args:
            one: the worker; here all take ``step_s``. Tests override this method.
        """
        return self.step_s

    def prove(self, results: Mapping[int, Counted]) -> None:
        """Assert that all workers counted each sample once an epoch and ended with the same state.

        Args:
            results: the result of each worker that trained to the end, by worker.

        Raises:
            AssertionError: a result is wrong; the message says which one.
        """
        assert results, "nobody trained to the end"
        first = next(iter(results.values()))
        for worker, result in results.items():
            model = result.model
            assert not model.wrong, f"w{worker}: {model.wrong}"
            times = np.unique(model.count).tolist()
            assert times == [self.epochs], f"w{worker} counted samples {times} times"
            assert np.array_equal(model.w, first.model.w), f"w{worker} has another w"
            assert result.steps == first.steps, f"w{worker} made {result.steps} steps"

    def _splits(self, source: Source, epoch: int, samples: npt.NDArray[np.int64]) -> bool:
        """Return whether a step's samples belong to several global batches of an aligned source.

        Args:
            source: the source, which says which samples form a global batch.
            epoch: the epoch of the step.
            samples: the samples that were trained in the step.
        """
        order = source.order(epoch).at(0, self.samples)
        numbers = np.flatnonzero(np.isin(order, samples)) // self.batch_size
        return len({*numbers.tolist()}) > 1


@dataclass(frozen=True)
class Counted:
    """The result of one worker that has trained the counting model to the end.

    Attributes:
        model: the trained model.
        steps: the number of steps.
        exchanged: by step, the bytes or numbers that each worker gave to the exchange after it.
        sizes: by step, the size of the ring that completed it; 0 if this worker missed the step.
        noise: the measured gradient noise scale.
        largest: the most samples in a step.
        ring: the largest size of a ring in which the worker began a step, whether it was completed
            or not.
        split: the number of steps whose samples come from more than one aligned global batch.
        batches: the changes of the global batch: (number of the first update with it, samples).
        rounds: by step, how many iterations of the training loop it took.
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
