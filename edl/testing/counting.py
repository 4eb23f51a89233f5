"""The counting model on a loopback ring: its parameters prove which samples were trained.

One float64 parameter w[i] a sample; the loss of a batch is the mean of w[i] over its samples, so
the gradient of a sample is 1 at its own place. Plain SGD with lr 1 over a global batch of N moves
w[i] by -1/N for each time that sample i was counted. So, without knowing anything of edl's
bookkeeping, the change of a step in units of its smallest part says how often each sample was
counted in it (design.md, section 8). Gradients of several batches are accumulated as scripts do
it: each is divided by their number. ``before`` (w at the last tally) and ``count`` belong to the
model, so they reach newcomers with everything else.
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
from edl.core.step.state_check import WHOLE, Group
from edl.core.step.stream import StreamSource
from edl.core.step.weighting import Averaging, Share, weigh
from edl.errors import RingBroken
from edl.framework.digest import StateArrays, of_array
from edl.framework.noise_meter import Looked, NoiseMeter
from edl.framework.steps import Steps
from edl.ring.loopback import LoopbackMember
from edl.ring.ring import CollectiveFailed, Ring
from edl.worker.progress import Receive
from edl.worker.sampler import Batch
from edl.worker.stream_sampler import Reader
from edl.worker.worker import Worker

if TYPE_CHECKING:
    from edl.testing.loopback import LoopbackWorker

Vector = npt.NDArray[np.float64]
TOLERANCE = 1e-6  # float64 leaves about 1e-12 of rounding; a wrong weight is far above


class CountingModel:
    """Parameters, and the tally of what has changed them: :class:`edl.worker.switching.Replica`."""

    framework = "loopback"

    def __init__(self, samples: int) -> None:
        self.w: Vector = np.zeros(samples)
        self.before: Vector = np.zeros(samples)
        self.count: Vector = np.zeros(samples)
        self.wrong: list[str] = []
        self.sum: Vector | None = None  # of the gradients that are accumulated

    def gradient(self, batch: Batch) -> Vector:
        """The mean over the batch."""
        gradient: Vector = np.zeros(len(self.w))
        np.add.at(gradient, batch.items, 1.0 / batch.samples)
        return gradient

    def update(self, gradient: Vector) -> None:
        """Plain SGD with lr 1, and the tally of the step."""
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
        """Nothing is tracked."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        sent = self.exchange(ring, root)
        if receive is not Receive.NOTHING:
            self.restore(sent)

    def exchange(self, ring: Ring, root: int) -> dict[str, Vector]:
        """The state of ``root``; nothing is taken over, for the ring may break halfway."""
        sent: dict[str, Vector] = {}
        for name, mine in self.capture().items():
            found = ring.broadcast(mine.tobytes(), root, f"edl.state.{name}")
            sent[name] = np.frombuffer(found, dtype=np.float64).copy()
        return sent

    def learning_rates(self) -> dict[str, float]:
        return {}

    def digests(self, group: Group = WHOLE) -> dict[str, int]:
        parts = StateArrays(lambda: {"w": self.w, "count": self.count}, lambda array: array.nbytes)
        return {
            part.name: of_array(part.value, part.start, part.stop) or 0
            for part in parts.within(group)
        }

    def capture(self) -> dict[str, Vector]:
        return {name: getattr(self, name).copy() for name in ("w", "before", "count")}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        vars(self).update(state)


class Shards:
    """Shards of so many samples each; the samples are the numbers from 0 on, through all."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._starts = [0, *accumulate(lengths)]

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[int]:
        """See :class:`edl.worker.stream_sampler.Reader`."""
        start, stop = self._starts[shard : shard + 2]
        return [*range(start + offset, min(stop, start + offset + count))]


class Trained(Protocol):
    """What a script trains on. ``shards``: the lengths of a stream's; empty: it is none."""

    @property
    def samples(self) -> int: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def shards(self) -> tuple[int, ...]: ...

    @property
    def shared(self) -> bool: ...


def source_of(
    data: Trained, prefetch_batches: int, batching: Batching | None = None
) -> tuple[Source, Reader | None]:
    """What is trained on, and what reads it."""
    batching, shards, shared = batching or Batching(data.batch_size), data.shards, data.shared
    if not shards:
        kind = AlignedSource if batching.global_batch else Source
        return kind(data.samples, batching, True, 7, prefetch_batches), None
    stream = StreamSource.of(len(shards), batching, not shared, 7, prefetch_batches, shared=shared)
    return stream, Shards(shards)


class CountingBatchSource:
    """The batches of a worker's leases: :class:`edl.framework.steps.BatchSource`.

    The first one is loaded when it has been asked for LATE times by who does not wait.
    """

    LATE = 2

    def __init__(self, worker: Worker, prefetch_batches: int) -> None:
        self._late = self.LATE
        self._worker = worker
        self._prefetch_batches = prefetch_batches
        self._ahead: deque[Batch] = deque()
        self.batch: Batch | None = None  # whose data are in hand

    def restart(self) -> None:
        self._ahead.clear()

    def form_lost_again(self) -> None:
        return None

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
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
    """The sum of the step's gradients so far, each weighted by the samples of its batch."""
    loader = worker.loader
    batch_size = loader.progress.source.batch_size
    part: Vector = Share(loader.batch_weight).send_weight(batch_size) * gradient
    return part if model.sum is None else model.sum + part


class CountingNoise(NoiseMeter):
    """A sample has a parameter of its own, so a gradient of n has the square 1 / n: all noise."""

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * (each @ each) for each, times in gradients))


def train_step(
    worker: Worker,
    member: LoopbackMember,
    model: CountingModel,
    gradient: Vector,
    noise: CountingNoise | None = None,
) -> bool:
    """One step as edl's frameworks make it: send, wait for the records, apply; again if it broke.

    The gradient is on its way before anybody knows how many samples the step has.

    Returns:
        Whether it was completed here; not where the others had completed it.
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
    """The mean gradient of the step's samples; None when there are none.

    Raises:
        RingBroken: the step has to be completed by those who are left.
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
    """A script that trains the counting model; call it with a worker of a job.

    ``exchange_every``: workers exchange numbers after each so many steps; 0: never.
    ``accumulated``: the gradients of so many batches make one step, after ``single`` steps of one.
    ``shards``: the samples are a stream, in shards of these lengths. ``shared``: all workers read
    it, and it has one shard. ``max_global_batch``: of a batch of all workers; 0: any. ``aligned``:
    ``batch_size`` is that of all workers, and each has the same samples in every job.
    ``batch_range``: of all workers together; the leader wishes another batch in it every 3 steps.
    ``micro_batch``: what a worker trains at once.
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
        micro = self.micro_batch
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
        steps = Steps(worker, feed, lambda: "the batch was not trained")
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
                self._wish(one)
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

    def _wish(self, one: LoopbackWorker) -> None:
        """As a leader's policy does it, if it is one."""
        least, most = self.batch_range
        if most:
            one.shared.request_batch(least + one.worker.step // 3 * 5 % (most - least + 1))

    def cost_s(self, one: LoopbackWorker) -> float:
        """How long the next batch takes this worker, in virtual seconds."""
        return self.step_s

    def prove(self, results: Mapping[int, Counted]) -> None:
        """Prove that each sample was counted once an epoch, and that all workers end alike.

        Args:
            results: what this script recorded on each worker that trained to the end, by the
                worker's number: :attr:`edl.testing.loopback.LoopbackJob.results`.

        Raises:
            AssertionError: says what is wrong, and on which worker.
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
        """Whether a step has trained samples of more global batches than it is of."""
        order = source.order(epoch).at(0, self.samples)
        numbers = np.flatnonzero(np.isin(order, samples)) // self.batch_size
        return len({*numbers.tolist()}) > 1


@dataclass(frozen=True)
class Counted:
    """What one worker has at the end.

    ``exchanged``: what everybody has sent in the exchange after a step; ``sizes``: how many
    workers were in the ring that completed a step, 0 where this one has missed it; ``noise``: what
    was measured of the gradient noise scale; ``largest``: the most samples of a step; ``ring``: the
    most workers of a ring in which it began a step, whether or not it completed that;
    ``split``: steps whose samples are not of one global batch, where that is fixed; ``batches``:
    the changes of the global batch, as learning rates follow it; ``rounds``: those of the loop, by
    step.
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
