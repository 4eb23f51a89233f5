"""Give each worker random numbers of its own in the training thread (:class:`RandomNumbers`).

All workers run one script, which seeds its random generators, so all would draw the same dropout
masks and the same noise: the samples of a step would not be independent, and a newcomer would
repeat what was drawn in the first epoch. So a worker's generators are seeded anew when it has the
job's state and training begins: from the script's own seeds, and from the worker's rank in the
job's first ring, or for a newcomer from its id and the step in which it joins. The model was made
before, and is the same everywhere. Rank 0 of a job that begins goes on with the numbers of the
script, so a job of one worker draws what the framework alone would.

If a script seeds again while it trains (``torch.manual_seed(seed + epoch)``), edl notices that at
the worker's next batch, and derives a new seed of the worker's own from it, except on that rank 0.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from edl.core.step.seeds import derived_seed
from edl.worker.worker import Worker

KEPT = 0  # the rank, in a job that begins, whose numbers are those of the script


def seed_python(seed: int) -> None:
    """Seed the global random generators of Python (:mod:`random`) and NumPy.

    Args:
        seed: a whole number from 0; NumPy gets its lowest 32 bits.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)


class RandomNumbers:
    """A seeder of a worker's random generators; no two workers draw the same numbers.

    The generators are those of Python, NumPy and the framework. None is seeded if the setting
    ``same_random`` asks for the same numbers on all workers.

    Args:
        worker: the worker that this process is.
        read: a function that returns the seed that the framework's generator was given last.
        seed: a function that seeds all generators of the framework with a number.

    """

    def __init__(
        self, worker: Worker, read: Callable[[], int], seed: Callable[[int], object]
    ) -> None:
        self._worker, self._read, self._seed = worker, read, seed
        self._seen: int | None = None  # what read() returned last; None: training has not begun
        self._own: tuple[str, int, int] | None = None  # mixed into seeds; None: the script's seeds
        self._one_at_a_time = threading.Lock()

    @property
    def script(self) -> int:
        """The seed that the script has given to the framework last, in a job with logical workers.

        The seed has to be the same on all workers. Newcomers and a resumed job take that of the
        job. -1: not known yet.
        """
        return self._worker.loader.progress.seed

    def warm_up(self) -> None:
        """Seed a newcomer's generators for its warm-up; call this before its first batch.

        The seed is derived from the script's own seeds and the worker's id. This cannot wait until
        the newcomer joins: its first batch may build a TensorFlow graph, which keeps for ever the
        seeds that were set when it was built. :meth:`enter` seeds again.
        """
        self.look()
        self._begin("warm-up", self._worker.id, 0)

    def enter(self) -> None:
        """Seed this worker's generators; call this once, when it has the job's state.

        In the first ring of a job that begins, rank 0 keeps the script's own seeds, and the seeds
        of the other workers depend on their ranks. In a later ring, and in a job that is resumed, a
        worker's seeds depend on its id and the job's step.
        """
        worker = self._worker
        if worker.logical:  # each pass is seeded on its own
            if worker.step > 0 and self.script >= 0:  # that of the job, which has come so far
                self._seen = self._read()
            self.look()
        elif worker.generation > 1 or worker.step > 0:
            self._begin("worker", worker.id, worker.step)
        elif worker.rank != KEPT:
            self._begin("rank", worker.rank, 0)
        else:
            self._seen = self._read()

    def look(self) -> None:
        """Seed this worker's generators anew if the script has seeded them since edl did.

        Call this between two batches. The worker's new seed is derived from the script's new seed.
        Nothing happens if the script has not seeded, on a worker that keeps the script's own seeds,
        and before :meth:`warm_up` or :meth:`enter`. With logical workers the script's seed is only
        noted, for :meth:`begin_piece`.
        """
        if self._worker.logical:
            if self._read() != self._seen:
                self._worker.loader.progress.seed = self._seen = self._read()
        elif self._own is not None and self._read() != self._seen:
            self._begin(*self._own)

    def begin_piece(self, epoch: int, position: int) -> None:
        """Seed the generators for the pass of a logical worker; other workers draw the same there.

        The seed is derived from the one that the script gave to the framework last, and from where
        in the data the logical worker is. Nothing else enters, so what was drawn before does not
        matter.

        Args:
            epoch: the number of the job's epoch.
            position: the epoch position of the logical worker's first sample.
        """
        self._seed_logical("logical", epoch, position)

    def begin_update(self, step: int) -> None:
        """Seed the generators for an optimizer's update, in a job with logical workers.

        All workers draw the same in the update. ``step`` is the number of steps made before it.
        """
        self._seed_logical("update", step, 0)

    def end_step(self, step: int) -> None:
        """Seed the generators for the script's code between two steps of logical workers.

        All workers draw the same there. ``step`` is the number of steps that the job has made.
        """
        self._seed_logical("between steps", step, 0)

    def _seed_logical(self, kind: str, number: int, position: int) -> None:
        seed = derived_seed(self.script, kind, number, position)
        with self._one_at_a_time:
            seed_python(seed)
        self._seed(seed)
        self._seen = self._read()

    @contextmanager
    def loading(self, epoch: int, position: int) -> Iterator[None]:
        """Seed the generators of Python and NumPy for a ``with`` block that loads a batch.

        It is for the batch of a logical worker, in a thread that loads it while the training thread
        waits. Afterwards the generators are as they were.

        Args:
            epoch: the number of the job's epoch.
            position: the epoch position of the batch's first sample.
        """
        with self._one_at_a_time:
            before = random.getstate(), np.random.get_state()
            seed_python(derived_seed(self.script, "samples", epoch, position))
            try:
                yield
            finally:
                random.setstate(before[0])
                np.random.set_state(before[1])

    def _begin(self, kind: str, number: int, step: int) -> None:
        if self._worker.same_random or self._worker.logical:
            return
        self._own = kind, number, step
        drawn = random.getrandbits(63), int(np.random.randint(2**31))
        seed = derived_seed(self._read(), *drawn, *self._own)
        seed_python(seed)
        self._seed(seed)
        self._seen = self._read()
