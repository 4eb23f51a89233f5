"""Compute which samples a script's input pipeline gives to each rank, in the order of the steps.

A :class:`Pipeline` describes a pipeline of stages as ``tf.data`` has them: a source of numbered
samples, and then :class:`Shard`, :class:`Shuffle`, :class:`Repeat`, :class:`Take`, :class:`Skip`
and one :class:`Batch`. Each stage maps a position in its output to a position in its input, so the
samples of any batch are known without a run of those before it. :class:`PipelineOrder` lays the
batches of all ranks out as the epochs of a job.

A position is counted within a *pass*: one run of the pipeline from its beginning to its end. A
:class:`Repeat` gives each of its rounds a pass of its own, and a :class:`Shuffle` has another order
in each pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edl.core.step.seeds import derived_seed
from edl.core.step.shuffle import EpochOrder, Indices
from edl.errors import UsageError

_NEXT = 1_000_003  # the passes of a repeated pipeline are numbered far from each other
MOST = 2**28  # positions of an epoch whose order is kept in memory

Length = int | None  # of a pipeline, in elements; None: it never ends
Places = tuple[Indices, Indices]  # positions, and the pass of each


@dataclass(frozen=True)
class Shard:
    """A stage that keeps each `count`-th element; each rank has its own first one."""

    count: int  # of ranks

    def length(self, before: Length, rank: int) -> Length:
        """Return the number of elements that `rank` gets of `before`."""
        return None if before is None else max(0, -(-(before - rank) // self.count))

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        """Return where the elements at `places` of this stage are in the stage before it."""
        return places[0] * self.count + rank, places[1]


@dataclass(frozen=True)
class Shuffle:
    """A stage with its elements in random order, another one in each pass."""

    buffer: int  # elements that `tf.data` would choose from
    seed: int | None = None  # of the script; None: it gives none
    changes: bool = True  # the order differs from pass to pass
    of_rank: bool = False  # each rank has an order of its own
    number: int = 0  # of stages of this kind before it

    def length(self, before: Length, rank: int) -> Length:
        return before

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        positions, passes = places
        # A pipeline that never ends is shuffled in runs, any other as a whole.
        run = self.buffer if before is None else max(1, before)
        parts = "shuffle", self.seed or 0, self.number, rank if self.of_rank else -1
        derived = derived_seed(seed if self.seed is None else 0, *parts)
        rounds = passes if self.changes else np.zeros_like(passes)
        keys = rounds * _NEXT + positions // run
        within = positions % run
        chosen = np.empty_like(positions)
        rounds_there, sorted_by_key = np.unique(keys), np.argsort(keys, kind="stable")
        ends = np.searchsorted(keys[sorted_by_key], rounds_there, side="right")
        for key, here in zip(rounds_there, np.split(sorted_by_key, ends[:-1]), strict=True):
            chosen[here] = EpochOrder(run, derived, int(key), True).at(0, run)[within[here]]
        return positions - within + chosen, passes


@dataclass(frozen=True)
class Repeat:
    """A stage that goes through its input several times."""

    count: int | None = None  # how many times; None: without end

    def length(self, before: Length, rank: int) -> Length:
        return None if before is None or self.count is None else before * self.count

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        positions, passes = places
        if not before:  # one that never ends has one round
            return places
        return positions % before, passes * (self.count or _NEXT) + positions // before


@dataclass(frozen=True)
class Take:
    """A stage with the first elements of its input."""

    count: int

    def length(self, before: Length, rank: int) -> Length:
        return self.count if before is None else min(self.count, before)

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        return places


@dataclass(frozen=True)
class Skip:
    """A stage without the first elements of its input."""

    count: int

    def length(self, before: Length, rank: int) -> Length:
        return None if before is None else max(0, before - self.count)

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        return places[0] + self.count, places[1]


@dataclass(frozen=True)
class Batch:
    """A stage that makes batches of its input's elements, which are samples."""

    size: int  # the samples of a batch
    drop_last: bool = False  # a smaller last batch is left out

    def length(self, before: Length, rank: int) -> Length:
        if before is None:
            return None
        return before // self.size if self.drop_last else -(-before // self.size)

    def samples(self, batches: Indices, before: Length) -> Indices:
        """Return how many samples each of `batches`, positions of batches, has."""
        if before is None:
            return np.full_like(batches, self.size)
        return np.minimum(self.size, before - batches * self.size)


Stage = Shard | Shuffle | Repeat | Take | Skip | Batch
UNEQUAL = (
    "the batches of the script's data set differ in size ({one} and {other} samples) before the "
    "end of an epoch, or from rank to rank; give batch() drop_remainder=True, or put repeat() "
    "before it"
)
ENDLESS = (
    "the script's data set never ends, and nothing says how long an epoch is: give model.fit "
    "steps_per_epoch, or the data set take(n)"
)
SHORT = (
    "steps_per_epoch is {steps}, and the script's data set has {batches} batches: put repeat() "
    "before its batch(), or leave out steps_per_epoch"
)
SPLIT = (
    "the script trains on a part, by {name}({count}), of a data set in one random order for all "
    "epochs (reshuffle_each_iteration=False), and edl computes another order than TensorFlow: the "
    "other part, such as that of the validation, would have samples that are trained; divide the "
    "arrays before from_tensor_slices, or, if {name} only limits the steps, put repeat() before it"
)
NO_BATCHES = "the script's data set has no batch(n): edl needs to know the samples of a batch"
DIFFERENT = (
    "the ranks have different numbers of batches, from {least} to {most}: give model.fit "
    "steps_per_epoch, or the data set take(n), so that all have equally many"
)


@dataclass(frozen=True)
class Pipeline:
    """A source of samples and the stages after it, as a script has put them together."""

    total: int  # samples of the source
    stages: tuple[Stage, ...] = ()

    def followed_by(self, stage: Stage) -> Pipeline:
        """Return the pipeline with `stage` at its end."""
        before = self.stages
        if isinstance(stage, Shuffle):
            number = sum(isinstance(one, Shuffle) for one in before)
            stage = replace(stage, of_rank=stage.seed is None, number=number)
            # Shuffled in each round, which mixes better.
            if before and isinstance(before[-1], Repeat):
                return Pipeline(self.total, (*before[:-1], stage, before[-1]))
        if isinstance(stage, Shard):  # of one order for all ranks, or samples would be missing
            before = tuple(_common(one) for one in before)
        return Pipeline(self.total, (*before, stage))

    @property
    def batch(self) -> Batch:
        found = [one for one in self.stages if isinstance(one, Batch)]
        if not found:
            raise UsageError(NO_BATCHES)
        return found[0]

    def length(self, rank: int) -> Length:
        """Return the number of elements that `rank` gets in a pass; None: there is no end."""
        return self._lengths(rank)[-1]

    def _lengths(self, rank: int) -> list[Length]:
        """Return the number of elements before the first stage and after each one."""
        found: list[Length] = [self.total]
        for stage in self.stages:
            found.append(stage.length(found[-1], rank))
        return found

    def batches(self, first: int, count: int, number: int, rank: int, seed: int) -> list[Indices]:
        """Return the samples of batches of a rank in the pass `number`, and the sizes of these."""
        lengths = self._lengths(rank)
        positions = np.arange(first, first + count, dtype=np.int64)
        places = positions, np.full_like(positions, number)
        sizes = None
        for stage, before in zip(reversed(self.stages), reversed(lengths[:-1]), strict=True):
            if isinstance(stage, Batch):
                sizes = stage.samples(places[0], before)
                starts = np.repeat(places[0] * stage.size, sizes)
                within = np.arange(len(starts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
                places = starts + within, np.repeat(places[1], sizes)
            else:
                places = stage.inner(places, before, rank, seed)
        if sizes is None:
            raise UsageError(NO_BATCHES)
        return [places[0], sizes]


def _refuse_split(pipeline: Pipeline, ranks: int) -> None:
    """Raise UsageError for a pipeline that trains one part of samples in an order that stays."""
    lengths = [pipeline._lengths(rank) for rank in range(ranks)]
    stays = False
    for index, stage in enumerate(pipeline.stages):
        # A Take or a Skip after a Repeat is for the number of steps.
        if isinstance(stage, Repeat) and stage.count != 1:
            return
        if isinstance(stage, Shuffle):
            # Else two parts have common samples under TensorFlow, too.
            stays = stays or not stage.changes
        elif isinstance(stage, Take | Skip) and stays and _changes(index, lengths):
            name = "take" if isinstance(stage, Take) else "skip"
            raise UsageError(SPLIT.format(name=name, count=stage.count))


def _changes(index: int, lengths: list[list[Length]]) -> bool:
    """Return whether the stage leaves elements out on a rank."""
    return any(of_rank[index] != of_rank[index + 1] for of_rank in lengths)


def _common(stage: Stage) -> Stage:
    return replace(stage, of_rank=False) if isinstance(stage, Shuffle) else stage


class PipelineOrder:
    """The samples of each epoch of a job, in the order of steps, and of ranks within a step."""

    def __init__(
        self,
        pipeline: Pipeline,
        ranks: int,
        steps: int | None,
        seed: int = 0,
    ) -> None:
        _refuse_split(pipeline, ranks)
        self._pipeline, self._ranks, self._seed = pipeline, ranks, seed
        size = pipeline.batch.size
        lengths = [pipeline.length(rank) for rank in range(ranks)]
        self._goes_on = None in lengths  # epochs are cuts of one pass
        self.steps = _steps(lengths, steps)  # of an epoch
        last = {int(pipeline.batches(self.steps - 1, 1, 0, r, 0)[1][0]) for r in range(ranks)}
        if len(last) > 1:
            raise UsageError(UNEQUAL.format(one=min(last), other=max(last)))
        self._last = last.pop()
        self.total = ((self.steps - 1) * size + self._last) * ranks  # positions of an epoch
        if self.total > MOST:
            raise UsageError(
                f"an epoch of the script's data set has {self.total} samples, and edl keeps the "
                f"order of at most {MOST}: give model.fit a smaller steps_per_epoch"
            )
        if self._goes_on and self._last != size:
            raise UsageError(UNEQUAL.format(one=size, other=self._last))

    def __call__(self, epoch: int) -> Indices:
        first, number = (epoch * self.steps, 0) if self._goes_on else (0, epoch)
        size = self._pipeline.batch.size
        whole = self.steps - (self._last != size)
        full, rest = [], []
        for rank in range(self._ranks):
            found, sizes = self._pipeline.batches(first, self.steps, number, rank, self._seed)
            if (sizes[:whole] != size).any():
                raise UsageError(UNEQUAL.format(one=size, other=int(sizes[:whole].min())))
            full.append(found[: whole * size].reshape(whole, size))
            rest.append(found[whole * size :])
        return np.concatenate([np.stack(full, axis=1).ravel(), *rest])


def _steps(lengths: list[Length], asked: int | None) -> int:
    """Return the number of steps of an epoch."""
    known = [length for length in lengths if length is not None]
    if not known:
        if asked is None:
            raise UsageError(ENDLESS)
        return asked
    least, most = min(known), max(known)
    if asked is None and least != most:
        raise UsageError(DIFFERENT.format(least=least, most=most))
    if asked is not None and asked != least:
        raise UsageError(SHORT.format(steps=asked, batches=least))
    if least < 1:
        raise UsageError("the script's data set has no batch for each rank; give it more samples")
    return least
