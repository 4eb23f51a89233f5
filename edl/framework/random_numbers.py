"""Give each worker random numbers of its own in a step, and all the same between steps.

All workers run one script, which seeds its random generators. If all drew the same dropout masks,
the samples of a step would not be independent, and a newcomer would repeat what was drawn in the
first epoch. But what the script draws outside of a step (the order of its data set, a subsample)
belongs to all workers. So there are two streams of random numbers:

- in a step, from the batch that is handed out until its gradients are the job's mean, the worker's
  own. It is derived from the script's seeds and the worker's rank in the job's first ring; for a
  newcomer from its id and the step in which it joins. Rank 0 of a job that begins goes on with the
  numbers of the script. The stream of one step goes on in the next.
- at any other time after the training has begun, the job's: derived from the seeds that the script
  had set before it, on the job's first rank 0, and from the epoch that begins or the step that is
  made. A newcomer needs nothing else to draw the same.

If a script seeds again while it trains (``torch.manual_seed(seed + epoch)``), all draw as it has
asked until the next batch is handed out, and the worker's own stream is derived from the new seed.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from edl.core.step.seeds import derived_seed
from edl.worker.worker import Worker

KEPT = 0  # the rank, in a job that begins, whose numbers in a step are those of the script
BETWEEN = "between steps"  # what a seed is for
EPOCH = "epoch"
LOOP_END = "after a loop"

Seeder = Callable[[int | None], object]
_alike: list[Seeder] = []  # of what was seeded alike

_global: Any = np.random  # its functions for the global generator are not in its stubs


def seed_python(seed: int) -> None:
    """Seed the global generators of Python and NumPy, which gets the lowest 32 bits."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_alike(worker: Worker, seeders: Mapping[Seeder, bool]) -> None:
    """Seed generators that the script has not, the same on all workers of this start of the job."""
    # What is drawn before the training, such as a data set of random numbers, belongs to all.
    if not _alike and worker.is_shared and not worker.same_random:
        _alike.extend(seed for seed, is_seeded in seeders.items() if not is_seeded)
        for seed in _alike:
            seed(derived_seed("start", worker.checkpointing.run) % 2**32)


def end_alike() -> None:
    """Let each worker draw other numbers again, where no `RandomNumbers` sees to it."""
    while _alike:
        _alike.pop()(None)


def seed_numpy(seed: int | None) -> None:
    """Seed NumPy's global generator; None: by chance."""
    np.random.seed(seed)


def numpy_is_seeded() -> bool:
    """Return whether the script has seeded NumPy's global generator by a number, or has drawn."""
    _, key, at, *_ = _global.get_state()
    return bool(key[0] != 1 << 31 or at != len(key) - 1)  # as NumPy begins, and np.random.seed()


class Generators(Protocol):
    """The global random generators of a framework."""

    def read(self) -> int:
        """Return the seed that they were given last."""

    def seed(self, seed: int) -> None:
        """Seed them, and those of the models' layers."""

    def save(self) -> Any:
        """Return their state, without those of layers."""

    def restore(self, saved: Any) -> None:
        """Go back to a state that `save` has returned."""

    def seed_between(self, seed: int) -> None:
        """Seed them for the script's code between two steps; layers draw in steps only."""


class RandomNumbers:
    """Decides by which stream the global generators of this process draw."""

    def __init__(self, worker: Worker, generators: Generators) -> None:
        self._worker, self._framework = worker, generators
        self._python = _GlobalGenerators()
        self._seen: int | None = None  # what read() returned last; None: training has not begun
        self._own: tuple[str, int, int] | None = None  # mixed into seeds; None: the script's seeds
        self._aside: tuple[Any, Any] | None = None  # the worker's stream, while the job's draws
        self._one_at_a_time = threading.Lock()

    @property
    def script(self) -> int:
        """The job's seed; with logical workers the one that the script has given last; -1: none."""
        return self._worker.loader.progress.seed

    def warm_up(self) -> None:
        """Seed a newcomer for its warm-up."""
        self.step()
        self._begin("warm-up", self._worker.id, 0)  # a TensorFlow graph keeps its seeds for ever

    def describe(self) -> None:
        """Note the script's seeds as the job's; who joins, or resumes, takes over others later."""
        progress = self._worker.loader.progress
        if self._has_streams and progress.seed < 0:
            python, numpy_ = random.getstate(), np.random.get_state()
            drawn = random.getrandbits(63), int(np.random.randint(2**31))
            random.setstate(python)
            np.random.set_state(numpy_)
            progress.seed = derived_seed(self._framework.read(), *drawn)

    def enter(self) -> None:
        """Begin the worker's stream; call this once, when it has the job's state."""
        worker = self._worker
        if worker.logical:  # each pass is seeded on its own
            if worker.step > 0 and self.script >= 0:  # that of the job, which has come so far
                self._seen = self._framework.read()
            self.step()
            return
        self.step()
        if worker.generation > 1 or worker.step > 0:
            self._begin("worker", worker.id, worker.step)
        elif worker.rank != KEPT:
            self._begin("rank", worker.rank, 0)
        else:
            self._own, self._seen = None, self._framework.read()

    def step(self) -> None:
        """Draw by the worker's stream, from a new seed if the script has set one since."""
        aside, self._aside = self._aside, None
        now = self._framework.read()
        if self._worker.logical:
            if now != self._seen:
                self._worker.loader.progress.seed = self._seen = now  # for `begin_piece`
        elif self._seen is None:
            return
        elif now != self._seen:  # the script has
            self._seen = now
            if self._own is not None:
                self._begin(*self._own)
        elif aside is not None:
            self._python.restore(aside[0])
            self._framework.restore(aside[1])
            self._seen = self._framework.read()

    def between(self, kind: str, number: int) -> None:
        """Draw by the job's stream, in the script's code outside of a step."""
        if self._worker.logical:
            self._seed_logical(kind, number, 0)
        elif self._seen is not None and self._has_streams:
            self.step()  # so the state is that of the worker's stream
            self._aside = self._python.save(), self._framework.save()
            seed = derived_seed(self.script, kind, number)
            self._python.seed(seed)
            self._framework.seed_between(seed)
            self._seen = self._framework.read()

    def end_step(self) -> None:
        """Go on with the job's stream after a step's reduction, or its end, if not there yet."""
        worker = self._worker
        if self._aside is None or worker.logical:
            # The step is not counted yet, but by a worker that missed it and got the others' state.
            self.between(BETWEEN, worker.step - worker.loader.engine.completed_by_peers)

    def begin_piece(self, epoch: int, position: int) -> None:
        """Seed the generators for the pass of a logical worker, by its place in the data alone."""
        self._seed_logical("logical", epoch, position)

    def begin_update(self, step: int) -> None:
        """Seed for an optimizer's update with logical workers; `step` were made before it."""
        self._seed_logical("update", step, 0)

    def _seed_logical(self, kind: str, number: int, position: int) -> None:
        seed = derived_seed(self.script, kind, number, position)
        self._framework.seed(seed)  # it may make a generator, and draw the seed for that
        with self._one_at_a_time:
            seed_python(seed)
        self._seen = self._framework.read()

    @contextmanager
    def loading(self, epoch: int, position: int) -> Iterator[None]:
        """Seed Python's and NumPy's generators for a block that loads a logical worker's batch."""
        with self._one_at_a_time:
            before = random.getstate(), np.random.get_state()
            seed_python(derived_seed(self.script, "samples", epoch, position))
            try:
                yield
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])

    @property
    def _has_streams(self) -> bool:
        worker = self._worker
        # Without a launcher there is one worker for ever, which draws as without edl.
        return worker.is_shared and not (worker.same_random or worker.logical)

    def _begin(self, kind: str, number: int, step: int) -> None:
        if self._worker.same_random or self._worker.logical:
            return
        self._own = kind, number, step
        drawn = random.getrandbits(63), int(np.random.randint(2**31))
        seed = derived_seed(self._framework.read(), *drawn, *self._own)
        seed_python(seed)
        self._framework.seed(seed)
        self._seen = self._framework.read()


class _GlobalGenerators:
    """Python's and NumPy's global generators, whose states are swapped twice in each step."""

    def __init__(self) -> None:
        self._bits = np.random.MT19937()  # of the job's stream
        self._seeder = np.random.RandomState(self._bits)

    def save(self) -> tuple[Any, Any]:
        return random.getstate(), _global.get_bit_generator()

    def restore(self, saved: tuple[Any, Any]) -> None:
        random.setstate(saved[0])
        _global.set_bit_generator(saved[1])  # forgets the second of two normal numbers, too

    def seed(self, seed: int) -> None:
        random.seed(seed)
        self._seeder.seed(seed % 2**32)
        _global.set_bit_generator(self._bits)
