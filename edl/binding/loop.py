"""Hand out the batches of a script's training loop: epochs, padding, and a newcomer's warm-up.

:class:`BatchSteps` does so, for the loader or data set of each framework, which implements
:class:`BatchSource`, the queue of batches.
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import numbers
import random
import sys
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from edl.binding.process import is_over
from edl.data.dataset import fingerprint_of, skip_events
from edl.data.stream import ShardReader, StatefulStream
from edl.errors import UsageError
from edl.events import DataSkippedDetails
from edl.step.batching import Batching, batching, logical_batching
from edl.step.engine import Batch
from edl.step.source import (
    NO_FINGERPRINT,
    SUBSET,
    AlignedSource,
    Indices,
    Source,
    StreamSource,
    TrainingLength,
    derived_seed,
    first_untrained,
)
from edl.step.state_check import DATA, UNSTABLE
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Read a few samples of the data set, to compare them with those of the other workers.
#
# A script may build or order its data set by what differs between workers: a newcomer has not run
# the epochs before, a rank or a host is in a seed. Then an index is another sample on each worker,
# and samples are trained twice or never. So at each epoch's start, and where workers join, all read
# `COUNT` samples of the same indices (`StateCheck` compares them). Samples that are not the same
# each time, as of a data set with a generator of its own, or that cannot be read here, are not
# compared.


COUNT = 3
READS = 4  # of the same sample, if workers differ; a flip by chance is the same in one of 8
SCALE = 1.37  # so that rounding, which hosts may do differently, does not differ twice


class DataCheck:
    """Digests of a few samples of the data set."""

    def __init__(self, total: Callable[[], int], read: Callable[[int, int], Any]) -> None:
        self._total, self._read = total, read  # read(index, seed of the random numbers)

    def digests(self, epoch: int) -> dict[str, int]:
        """Return a digest of each sample that is compared in an epoch, by a name."""
        return {f"{DATA}{k}": self._digest(epoch, k, 1.0) for k in self._indices(epoch)}

    def again(self, epoch: int) -> dict[str, int]:
        """Return other digests of the same samples; `UNSTABLE` for one that changes."""
        found = {}
        for index in self._indices(epoch):
            read = {self._digest(epoch, index, SCALE) for _ in range(READS)}
            found[f"{DATA}{index}"] = read.pop() if len(read) == 1 else UNSTABLE
        return found

    def _indices(self, epoch: int) -> list[int]:
        numbers, total = random.Random(derived_seed(DATA, epoch)), self._total()
        return numbers.sample(range(total), min(COUNT, total))

    def _digest(self, epoch: int, index: int, scale: float) -> int:
        try:
            sample = self._read(index, derived_seed(DATA, epoch, index))
            content = _content(sample, scale, False)
            if _is_empty(content):
                content = _content(sample, scale, True)  # it has nothing but texts
            return zlib.crc32(repr(content).encode())
        except Exception:  # noqa: BLE001 - it may be readable in loader processes only
            return UNSTABLE


def held(dataset: Any, index: int) -> Any:
    """Return what `dataset` holds at `index` in lists of numbers and names; read nothing else."""
    # Loader processes read such a data set. If it opens a file when it is first read, it must not
    # do so in the process that forks them.
    found: dict[str, Any] = {}
    while dataset is not None:
        own, length = getattr(dataset, "__dict__", {}), len(dataset)
        for name, value in own.items():
            if hasattr(value, "__getitem__") and hasattr(value, "__len__") and len(value) == length:
                if isinstance(value, Mapping) or value is own.get("dataset"):
                    continue
                one = value[index % length]
                found[f"{len(found)} {name}"] = one if _is_plain(one) else None
        dataset = own.get("dataset")
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | str | np.integer) or getattr(value, "shape", None) == ()


def _content(value: Any, scale: float, with_texts: bool) -> Any:
    """Return what is compared of a sample: numbers, rounded if they are no integers, and bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        return [(str(key), _content(item, scale, with_texts)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_content(item, scale, with_texts) for item in value]
    if isinstance(value, str):
        return value if with_texts else None  # it may be a path, which differs between hosts
    if value is None or isinstance(value, bytes):
        return value
    try:
        array = np.asarray(value)  # of a tensor, too
    except Exception:  # noqa: BLE001 - whatever a sample's own code raises
        return None
    if array.dtype.kind == "f":
        flat = array.astype(np.float64).ravel()
        weighted = flat * np.cos(np.arange(flat.size))  # so the order of the values counts
        sums = flat.mean(), flat.std(), weighted.mean()
        return array.shape, [f"{scale * each:.2g}" for each in sums]
    return (array.shape, array.tobytes()) if array.dtype.kind in "biu" else None


def _is_empty(content: Any) -> bool:
    if isinstance(content, list):
        return all(_is_empty(each[1] if isinstance(each, tuple) else each) for each in content)
    return content is None


# ------------------------------------------------------------
# Compute the number of the job's current batch in its epoch: `batch_in_epoch`.


def batch_in_epoch(worker: Worker) -> int:
    """Return the number, from 0, of the batch that the job trains now; the same on all workers."""
    progress = worker.loader.progress
    if worker.logical:
        return first_untrained(worker.loader.ledger, progress.source.batch_size)
    return progress.update_order.batch  # from 0 again after a resume within the epoch


# ------------------------------------------------------------
# Load a newcomer's first batch in a thread (`FirstBatch`), while it trains padding batches.
#
# A newcomer is a worker that has just joined the ring; the weight of a padding batch is 0.


class FirstBatch:
    """A thread that loads a newcomer's first batch; until it ends, only it uses the iterator."""

    def __init__(self, batches: Iterator[Any], missing: object) -> None:
        self._batches = batches
        self._batch: Any = missing
        self._error: Exception | None = None
        self._come = threading.Event()
        self._taken = threading.Event()
        self._wanted = True
        self._thread = threading.Thread(target=self._await, name="edl-first-batch", daemon=True)
        self._thread.start()

    @property
    def has_come(self) -> bool:
        """Whether `take` need not wait: the batch is loaded, there is none, or it failed."""
        return self._come.is_set()

    def take(self) -> Any:
        """Wait until the batch is loaded, and return it; return `missing` if there is no batch."""
        self._taken.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._batch

    def discard(self) -> None:
        """Wait until the batch is loaded, and drop it, or the error that loading it has raised."""
        self._wanted = False
        self._taken.set()
        self._thread.join()

    def may_form(self) -> bool:
        """Return whether the framework's loader may form one more batch; False after a discard."""
        if threading.current_thread() is self._thread:
            self._come.set()
            # The samples of the second batch depend on the steps that are trained until `take`.
            self._taken.wait()
        return self._wanted

    def _await(self) -> None:
        try:
            self._batch = next(self._batches, self._batch)
        except Exception as error:  # noqa: BLE001 - raised by the training thread
            self._error = error
        self._come.set()


# ------------------------------------------------------------
# Give each worker random numbers of its own in a step, and all the same between steps.
#
# All workers run one script, which seeds its random generators. If all drew the same dropout masks,
# the samples of a step would not be independent, and a newcomer would repeat what was drawn in the
# first epoch. But what the script draws outside of a step (the order of its data set, a subsample)
# belongs to all workers. So there are two streams of random numbers:
#
# - in a step, from the batch that is handed out until its gradients are the job's mean, the
#   worker's own. It is derived from the script's seeds and the worker's rank in the job's first
#   ring; for a newcomer from its id and the step in which it joins. Rank 0 of a job that begins
#   goes on with the numbers of the script. The stream of one step goes on in the next.
# - at any other time after the training has begun, the job's: derived from the seeds that the
#   script had set before it, on the job's first rank 0, and from the epoch that begins or the step
#   that is made. A newcomer needs nothing else to draw the same.
#
# If a script seeds again while it trains (`torch.manual_seed(seed + epoch)`), all draw as it has
# asked until the next batch is handed out, and the worker's own stream is derived from the new
# seed.


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


# ------------------------------------------------------------
# Declare a script's training data to its worker, once in a job.
#
# The data loader of each framework calls `asked_batching`, and then `attach_source` for samples
# that have numbers, or `attach_stream`.


NO_PLACE = (
    "the samples of a {kind} have no numbers (__len__, __getitem__), and it cannot tell where in "
    "them it is, so some could be lost or trained twice when a worker goes; give edl its shards "
    "with edl.data.stream(shards, open), or give it state_dict() and load_state_dict(), as "
    "torchdata's StatefulDataLoader asks"
)

STATE_OF_OTHERS = (
    "{kind}.state_dict() needs {arguments}, which a loader of its own library gives it and edl's "
    "does not; {instead}"
)

BY_NUMBER = (
    "its samples have numbers, so give edl a map-style data set of the same files, for MDS shards "
    "streaming.LocalDataset(directory) (docs/guides/data.md)"
)

BY_SHARD = "give edl its shards with edl.data.stream(shards, open)"


def refuse_logical(worker: Worker, what: str) -> None:
    """Raise UsageError if the job has logical workers, which do not go with a part of edl."""
    if worker.logical:
        raise UsageError(
            f"the job has {worker.logical} logical workers, and {what} without them only: leave "
            "out --logical, or train as docs/guides/exact.md says"
        )


def asked_batching(
    worker: Worker,
    what: str,
    batch_size: Any = 1,
    max_global_batch: Any = None,
    global_batch: Any = None,
    micro_batch: Any = None,
) -> Batching:
    """Return the batch sizes of the job, from a script's arguments and the job's policy."""
    own = batching(what, batch_size, max_global_batch, global_batch, micro_batch)
    if own.is_chosen and not worker.is_shared:
        logger.warning("without a launcher nobody chooses a global batch: it stays %s", own)
    policy = worker.follows()
    table = policy.batch if policy is not None else None
    if table is None:
        return logical_batching(what, own, worker.logical) if worker.logical else own
    if worker.logical:
        raise UsageError(
            f"the job has {worker.logical} logical workers, which fix its global batch, and its "
            "policy has a table [batch], too; leave one of them out"
        )
    sizes = {
        "max_global_batch": max_global_batch,
        "global_batch": global_batch,
        "micro_batch": micro_batch,
    }
    for name in (name for name, given in sizes.items() if given is not None):
        raise UsageError(
            f"{what} was given {name}, and the job's policy has a table [batch], too; leave one of "
            "them out"
        )
    if table.batch_size:
        return table
    most, micro = table.max_global_batch or None, table.micro_batch or None
    return batching(what, batch_size, most, micro_batch=micro)


def is_numbered(dataset: Any) -> bool:
    """Return whether the samples of a data set can be read by number."""
    if any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__):
        return False  # PyTorch's inherits a __getitem__
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def stream_of(dataset: Any) -> ShardReader:
    """Return a reader of the samples of `dataset`, which are not numbered, in order."""
    if isinstance(dataset, ShardReader):
        return dataset
    if isinstance(dataset, type):
        raise UsageError(f"edl needs a data set, and was given the class {dataset.__name__}")
    kind = type(dataset).__name__
    if not all(hasattr(dataset, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        raise UsageError(NO_PLACE.format(kind=kind))
    if needed := _required(dataset.state_dict):  # as that of mosaicml-streaming
        by_number = hasattr(dataset, "__len__") and _is_indexed(dataset)
        raise UsageError(
            STATE_OF_OTHERS.format(
                kind=kind,
                arguments=" and ".join(needed),
                instead=BY_NUMBER if by_number else BY_SHARD,
            )
        )
    return StatefulStream(dataset)


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments without which `function` cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one that is written in C has no signature
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in several]


def _is_indexed(dataset: Any) -> bool:
    # That of PyTorch's own classes only raises an error.
    own = [base for base in type(dataset).__mro__ if not base.__module__.startswith("torch.")]
    return any("__getitem__" in vars(base) for base in own)


def attach_stream(
    worker: Worker,
    stream: ShardReader,
    batches: Batching,
    shuffle: bool,
    seed: int | None,
    prefetch_batches: int,
) -> Source:
    """Declare `stream` as the training data, the same on all workers; return its description."""
    if worker.logical:
        raise UsageError(
            "the samples of a stream have no numbers, so nobody could tell which of them a logical "
            "worker trains: leave out --logical, or give edl a map-style data set"
        )
    if batches.global_batch or batches.micro_batch:
        raise UsageError(
            "the samples of a stream have no numbers, so nobody could tell which of them a global "
            "batch or a piece of one has: give no global_batch or micro_batch, but batch_size, and "
            "max_global_batch if you like"
        )
    if shuffle and stream.shared:
        raise UsageError(
            "edl cannot shuffle a data set without numbered samples; let it do so itself, in "
            "the same order on all workers"
        )
    source = StreamSource.of(
        stream.count,
        batches,
        bool(shuffle),
        _whole_seed(seed),
        prefetch_batches,
        stream.fingerprint,
        stream.shared,
    )
    worker.attach_source(source, stream)
    return source


def attach_source(
    worker: Worker,
    dataset: Any,
    total: int,  # samples; with a sampler, positions of an epoch
    batches: Batching,
    shuffle: bool,
    seed: int | None,
    prefetch_batches: int,
    sampler: Callable[[int], Indices] | None = None,  # the samples of an epoch, by its number
) -> Source:
    """Declare a numbered data set, the same on all workers; return the data's description."""
    order = bool(shuffle), _whole_seed(seed)
    data = total, batches, *order, prefetch_batches, data_fingerprint(dataset), sampler
    audits = worker.checkpointing.settings.exact_audit if worker.logical else 0
    source = AlignedSource(*data, audits) if batches.global_batch else Source(*data)
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source


def data_fingerprint(dataset: Any) -> str:
    """Return a line of text that is equal where the samples are, as far as edl can know that."""
    kinds = {kind.__name__ for kind in type(dataset).__mro__}  # PyTorch is not imported here
    if "Subset" in kinds:
        chosen = np.asarray(dataset.indices)
        which = f"{SUBSET} of {len(chosen)} samples ({zlib.crc32(chosen.tobytes()):08x})"
        within = data_fingerprint(dataset.dataset)
        return f"{which} of {within}" if within else which
    if "ConcatDataset" in kinds:
        parts = [data_fingerprint(part) for part in dataset.datasets]
        return " and ".join(part or NO_FINGERPRINT for part in parts) if any(parts) else ""
    return fingerprint_of(dataset)


def _whole_seed(given: Any) -> int:
    """Return a user's seed as an `int`, which messages and checkpoints can hold."""
    if given is None:
        return 0
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    if not whole:
        raise UsageError(f"seed is {given!r}; give a whole number, the same on all workers")
    return int(given)


# ------------------------------------------------------------
# Refuse a script that sets other options of the optimizer in each pass of a step.
#
# A process goes through the script's loop once for each of its logical workers. A rate that the
# script steers by what it counts or decides in a pass would depend on the number of processes.


STEERED = (
    "in step {step} the {name} was {before} in one pass of the script's loop and is {now} in "
    "another: a process goes through the loop once for each logical worker (with --transparent: "
    "rank) that it has, so what the script counts or decides in each pass depends on the number of "
    "processes; set it before the update, by the epoch and the number of the step, the same in all "
    "passes (with --transparent `i` of `for i, batch in enumerate(...)`, else edl.step()), or by a "
    "schedule of PyTorch or Keras"
)


class PassOptions:
    """The options of the optimizer in the first of several passes of a step."""

    def __init__(self) -> None:
        self.step = -1  # this worker's number of the step that they are of
        self._first: Mapping[str, Any] = {}

    def check(self, step: int, options: Mapping[str, Any], made: int) -> None:
        """Raise UsageError if `options`, of a pass of `step`, differ from those of the first."""
        if self.step != step:
            self.step, self._first = step, options
        for name, now in options.items():
            if now != (before := self._first.get(name, now)):
                told = STEERED.format(step=made + 1, name=name, before=before, now=now)
                raise UsageError(told)


class BatchSource(Protocol):
    """The interface of a queue of batches that are not trained yet."""

    def restart(self) -> None:
        """Drop the batches in the queue, because this worker's leases have changed."""

    def form_lost_again(self) -> None:
        """Form again, between two steps, what was lost when a framework ended its iterator."""

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Take the next batch from the queue; return it, and whether it is a padding batch."""
        # It is one if no samples are left, or the data are not loaded and `waits` is False.

    def pad(self) -> Batch:
        """Return a padding batch, of any data, for an open step that others have not finished."""


def asked_length(what: str, count: int | None, max_steps: int | None) -> None:
    """Check that a script's call says how long the job trains."""
    if count is None and max_steps is None:
        raise UsageError(
            f"{what} does not say how long to train: give the number of epochs, or max_steps=n, "
            "the number of updates that the job makes"
        )
    if max_steps is None:
        return
    given: Any = max_steps
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    if not whole or given < 1:
        raise UsageError(
            f"{what}: the number of steps is {max_steps!r}; it must be a whole number, 1 or more"
        )


MOST_PADDING = 1000  # batches that count for nothing are handed out for one step

NO_STEP = (
    "{count} batches were handed out since the last optimizer.step(), and this worker has no "
    "samples left that no step has trained; call optimizer.step() inside the loop, after each "
    "group of batches whose gradients are added up"
)

OTHER_LENGTH = (
    "w{worker} trains as long as the job does: {job}; its script asks for {script}. Let the script "
    "ask for the same on all workers, and not by a file that the job rewrites"
)


def end_batch(worker: Worker) -> None:
    """End the batch that `worker`'s script has trained, and keep copies of tracked objects."""
    loader = worker.loader
    loader.end_batch()
    if loader.replica is not None and not worker.warming_up:
        loader.replica.end_batch(worker.step, loader.epoch)


def average_buffers(worker: Worker) -> None:
    """Set BatchNorm's averages to the job's, so that all evaluate the same model, as with DDP."""
    replica = worker.loader.replica
    # Logical workers average buffers in each step.
    if replica is None or worker.ring.alone or worker.warming_up or worker.logical:
        return
    replica.average_buffers(worker.step, worker.exchange_bytes)  # all workers come here


class BatchSteps:
    """The training loop of one worker's script: it hands out batches and ends them."""

    def __init__(
        self,
        worker: Worker,
        feed: BatchSource,
        unfinished: Callable[[], str],  # the error if the last batch has got no update
        end_batch: Callable[[], None] | None = None,  # ends a step whose update was skipped
        numbers: RandomNumbers | None = None,  # None: the script's own seeds stay
    ) -> None:
        self._worker = worker
        self._feed = feed
        self._unfinished = unfinished
        if end_batch is not None:  # else the script's optimizers set it
            worker.finishing.end_batch = end_batch
        self._numbers = numbers
        self._restarts = -1
        self._warmed_up = False
        self._came_to_end = False  # the script was told that the epoch is over
        self._padding = 0  # batches of the open step that count for nothing
        self._in_epoch = False
        self.max_steps: int | None = None  # set by `limit`
        self._has_entered = False
        self._loop = object()  # the newest of the script's loops over batches
        self._is_new = False  # it has come into the ring, and has trained nothing there yet

    def check_may_iterate(self, outside: str) -> None:
        """Check that the script may begin to iterate over its batches; change nothing."""
        if not self._in_epoch:
            raise UsageError(outside)
        if self._came_to_end:
            raise UsageError(
                "all samples of this epoch are trained, so a second loop over them would see none; "
                "edl's loader is for training: evaluate with one of the framework's own"
            )

    def epochs(self, count: int | None = None, max_steps: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs to train: from the job's current epoch to `count - 1`."""
        worker = self._worker
        asked = worker.loader.progress.length = TrainingLength.asked(count, max_steps)
        if worker.warming_up:
            self.warm_up()
            yield from self._within(worker.loader.epoch)  # of one batch
        self.enter()
        length = worker.loader.progress.length
        if asked.is_below(length):
            logger.warning("%s", OTHER_LENGTH.format(worker=worker.id, job=length, script=asked))
        self.limit(length.max_steps)
        most = math.inf if length.epochs is None else length.epochs
        while worker.loader.epoch < most and not self.made_all_steps:
            yield from self._within(worker.loader.epoch)
            if worker.loader.epoch + 1 >= most or self.made_all_steps:
                break
            worker.loader.next_epoch()
            if worker.steps.target is not None:  # newcomers begin the epoch where the others do
                worker.boundary()
        worker.finishing.finish(early=self.made_all_steps)

    def warm_up(self) -> None:
        """Seed a newcomer's random generators for its warm-up; call this before its first batch."""
        if self._numbers is not None:
            self._numbers.describe()
            self._numbers.warm_up()

    def warm_up_again(self) -> None:
        """Let a newcomer train one more batch alone, in a loop that the job has behind it."""
        self._warmed_up = self._came_to_end = False

    def limit(self, max_steps: int | None) -> None:
        """Set how many updates the job makes at most since it began; None: its epochs decide."""
        self.max_steps = max_steps

    @property
    def made_all_steps(self) -> bool:
        """Whether the job has made as many updates as `limit` allows; False without limit."""
        return self.max_steps is not None and self._worker.step >= self.max_steps

    @property
    def is_over(self) -> bool:
        """Whether `begin` would return False, as known after an update; the same on all workers."""
        worker = self._worker
        if worker.loader.open:
            return False
        if worker.warming_up:
            return self._warmed_up
        return worker.loader.ledger.finished or self.made_all_steps

    def enter(self) -> None:
        """Enter the job's training; a newcomer, which has warmed up before, joins the ring here."""
        if is_over(self._worker):
            raise UsageError(
                "this loader is of the job before the last edl.init(); make a new one after it"
            )
        self._worker.check_trains()
        self._check_batching()
        if self._worker.warming_up:
            self._warmed_up = False  # it warms up once more in the next fit, if it does not join
            self._feed.restart()  # while no other worker waits for this one
            self._worker.join()
            self._is_new = True
        elif self._numbers is not None:
            self._numbers.describe()
        self._worker.begin()
        if self._numbers is not None and not self._has_entered:
            self._numbers.enter()
        self._has_entered = True

    def _check_batching(self) -> None:
        progress = self._worker.loader.progress
        if progress.optimizers > 1 and progress.source.batching.is_chosen:
            raise UsageError(
                "the job is to choose its global batch, by the noise of its gradients, which is "
                "measured where a script has one optimizer; this one has several: give one "
                "number as global_batch, or batch_size"
            )

    def begin(self) -> bool:
        """Begin a step on the next batch; return True, or False when the epoch is over."""
        worker, feed = self._worker, self._feed
        worker.finishing.end_batch()
        if worker.loader.open:
            if not worker.loader.engine.batches.may_grow:
                raise UsageError(self._unfinished())
            self._add()  # the step adds up gradients
            return True
        end_batch(worker)
        if worker.warming_up:
            if self._warmed_up:
                return False
            self._warmed_up = True
            self._draw_for_step()
            worker.loader.begin(self._next()[0])
            return True
        self._padding = 0
        if worker.loader.ledger.finished or self.made_all_steps:
            average_buffers(worker)
            self._came_to_end = True
            return False
        feed.form_lost_again()
        worker.boundary()  # to another ring, if all workers have agreed on one
        self._restart_feed()
        self._draw_for_step()
        with worker.loader.timer.loading():
            batch, padding = self._next(waits=not (self._is_new and self._others_train()))
        self._is_new &= padding
        worker.loader.begin(batch, padding)
        return True

    @contextmanager
    def looping(self, exiting: Callable[[], bool] = sys.is_finalizing) -> Iterator[None]:
        """Let the script loop over the batches; what it draws after the loop is the job's."""
        self._loop = mine = object()
        self._draw_for_step()  # what the framework draws for its iterator
        try:
            yield
        finally:
            # The iterator may be kept, until the interpreter's end, where modules are empty.
            if self._numbers is not None and self._loop is mine and not exiting():
                self._numbers.between(LOOP_END, self._worker.step)

    def begin_epoch(self) -> None:
        """Let the script draw the same numbers on all workers from now on, until a batch."""
        if self._numbers is not None:
            self._numbers.between(EPOCH, self._worker.loader.epoch)

    def _draw_for_step(self) -> None:
        if self._numbers is not None:
            self._numbers.step()

    def _next(self, waits: bool = True) -> tuple[Batch, bool]:
        try:
            return self._feed.next(waits)
        except (Exception, KeyboardInterrupt):
            self._form_again()  # the script may begin its loop again
            raise

    def _form_again(self) -> None:
        """Drop all batches that no step has trained, but those of an open step; form them again."""
        loader = self._worker.loader
        loader.sampler.form_again(loader.engine.batches)
        self._feed.restart()

    def _restart_feed(self) -> None:
        """Let the queue drop its batches, if they do not fit this worker's leases any more."""
        if self._worker.loader.sampler.restarts != self._restarts:
            self._restarts = self._worker.loader.sampler.restarts
            self._feed.restart()

    def _others_train(self) -> bool:
        """Return whether this newcomer may train a padding batch, because others train samples."""
        root, loader = self._worker.steps.state_source, self._worker.loader  # root: no newcomer
        source = loader.progress.source
        if not source.lets_newcomers_pad:
            return False
        enough = source.batching.of_one(0, self._worker.size)
        return root != self._worker.id and loader.ledger.held_samples(root) >= enough

    def _add(self) -> None:
        """Hand out one more batch for the open step, which adds up gradients."""
        worker = self._worker
        self._draw_for_step()  # the script may have seeded
        self._restart_feed()  # a repair inside the step may have changed the leases
        if worker.loader.engine.batches.is_exhausted:
            worker.loader.begin(self._feed.pad(), True)
            return
        with worker.loader.timer.loading():
            batch, padding = self._next()
        if padding or worker.warming_up:
            self._padding += 1
            if self._padding > MOST_PADDING:
                raise UsageError(NO_STEP.format(count=worker.loader.engine.batches.count))
        worker.loader.begin(batch, padding and not worker.warming_up)

    def _within(self, epoch: int) -> Iterator[int]:
        """Yield `epoch` once, for the script to train it; then end the epoch's last batch."""
        self._in_epoch, self._came_to_end = True, False
        self._form_again()  # the script may have left an earlier loop by an exception
        self.begin_epoch()
        yield epoch
        self._worker.finishing.end_batch()  # the script may have left its loop in the middle
        if not self._worker.loader.open and not self._came_to_end:
            end_batch(self._worker)
        self._in_epoch = False
