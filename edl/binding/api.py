"""Let a script choose the rules by which the number of workers of its job is decided.

A script may give its job a policy with :func:`policy`. Or it may name a function with
:func:`on_interval`: each worker calls that function regularly, and it returns how many workers to
add or remove.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
import platform
import weakref
import zlib
from collections.abc import Callable, Collection, Mapping
from math import inf
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, SupportsIndex, overload

from edl.binding.process import current_worker
from edl.config import read_policy
from edl.errors import UsageError
from edl.policy.file import CustomRule, PolicyFile, check_sizes, parse_policy
from edl.policy.hill_climbing import MAX, MEAN, SUM, Votes
from edl.records import JobPolicy
from edl.ring.ring import ADASUM
from edl.step.weighting import weighted_means
from edl.worker.worker import Worker

TOGETHER = (SUM, MEAN, MAX)


def policy(policy: str | os.PathLike[str]) -> None:
    """Propose the job's policy for its size, batches and learning rate; a job has one at a time.

    All workers call this function after ``edl.init()``, and before the script makes its data loader
    and optimizer (docs/guides/job-size.md). The call checks the policy and returns; the first
    proposal is written to ZooKeeper a moment later. If the job has another policy already, that one
    stays: from the command line (`edl run --policy`, `edl policy set`, `edl policy off`), or an
    earlier proposal. Without a launcher the job keeps one worker, whatever the policy says.

    Args:
        policy: the path of a policy file, or the policy's text: TOML, with a line for each key. A
            string that has a newline is taken as text.

    Raises:
        UsageError: if ``edl.init()`` was not called, if the policy cannot be read, if it has a size
            rule and the job may have only one size, if the function of a custom rule cannot be
            imported, or if it sets batches or a learning rate and the data loader or the optimizer
            exists already, or the script has proposed a policy without them (also by
            :func:`on_interval`).
    """
    text, source = read_policy(policy, "edl.policy")
    worker = current_worker()
    found = parse_policy(text, source)
    if worker.is_shared:
        check_sizes(found, worker.sizes, source)
    if isinstance(found.size, CustomRule):
        _find(found.size, source)
    if any(found.of_script) and (worker.loader.progress.attached or worker.replica is not None):
        raise UsageError(
            f"{source} has a [batch] or a [learning_rate], and the script has its data loader or "
            "its optimizer already: call edl.policy before both"
        )
    first = worker.size_request.policy or found
    if any(found.of_script) and found.of_script != first.of_script:
        raise UsageError(
            f"{source} has another [batch] or [learning_rate] than the policy that the script has "
            "proposed before, which stays: call edl.policy before edl.on_interval, and once"
        )
    _propose(worker, found, JobPolicy(text, source, found.hold_s))


def on_interval(
    desired_change: Callable[[], int], every_s: float = 60.0, together: str = SUM
) -> None:
    """Call a function of the script regularly, and change the number of workers by what it returns.

    All workers call this function once, after ``edl.init()``. The answers of all workers are
    combined into one change of the job's size, at most once in ``every_s`` seconds and within the
    limits that users, hosts and allowed sizes set. This is a policy (with the rule ``votes``); it
    has no effect if the job has a policy with another rule. If the script has called :func:`policy`
    with the rule ``votes``, that policy stays, with its own ``every`` and ``together``.

    Args:
        desired_change: a function without arguments, called on each worker between two steps, in
            the thread that trains. It returns how many workers to add, or to remove if negative,
            as a whole number; 0: no change.
        every_s: the least number of seconds between two calls of ``desired_change``, and before the
            first; above 0.
        together: how the workers' answers are combined: ``"sum"``, ``"mean"`` or ``"max"``.

    Raises:
        UsageError: if called twice, or with an argument out of range. Raised later, in training, if
            ``desired_change`` returns anything but a whole number from minus a million to a
            million.
    """
    if not callable(desired_change):
        raise UsageError(
            f"edl.on_interval needs a function that returns how many workers more, or fewer, the "
            f"script wants, and was given {desired_change!r}"
        )
    if isinstance(every_s, bool) or not isinstance(every_s, (int, float)) or not 0 < every_s < inf:
        raise UsageError(f"every_s is {every_s!r}; it must be a number of seconds above 0")
    if together not in TOGETHER:
        raise UsageError(f"together is {together!r}; it must be {' or '.join(TOGETHER)}")
    text = f'[size]\nrule = "votes"\ntogether = "{together}"\nevery = "{every_s:f}s"\n'
    found = parse_policy(text, "edl.on_interval")
    worker = current_worker()
    worker.size_request.ask(desired_change, float(every_s))
    first = worker.size_request.policy
    if first is None or not isinstance(first.size, Votes):
        _propose(worker, found, JobPolicy(text, "edl.on_interval", found.hold_s))


def _propose(worker: Worker, found: PolicyFile, policy: JobPolicy) -> None:
    worker.size_request.policy = worker.size_request.policy or found  # the first one stays
    worker.policy.propose(policy)


def _find(rule: CustomRule, source: str) -> None:
    """Check that this process can import a custom rule's function, as the leader will have to."""
    try:
        found = getattr(importlib.import_module(rule.module), rule.function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{source}: cannot find the rule {rule}: {error}") from None
    if not callable(found):
        raise UsageError(f"{source}: the rule {rule} is no function")


# ------------------------------------------------------------
# Import an adapter of a library that only one of edl's extras installs.


def import_adapter(module: str, libraries: Collection[str], extra: str) -> ModuleType:
    """Import a module of edl that needs libraries which edl itself does not need."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in libraries:
            raise
        raise UsageError(
            f"{module.rpartition('.')[0]} needs the package {library}, which is not installed "
            f"here: pip install 'edl-horovod[{extra}]'"
        ) from error


# ------------------------------------------------------------
# Raise an error with advice for each function of Horovod that edl does not offer.
#
# `absent` makes the function that raises it, and ABSENT has the advice by name.
# docs/guides/horovod-scripts.md lists the same functions with the same advice.


PROCESS_SETS = (
    "process sets need a ring of constant size, and workers come and go here; collectives are "
    "those of all workers"
)

_STATE = "the elastic state brings all workers to the same variables; see hvd.elastic.run"

LOCAL_LAYERS = (
    "variables that each worker has for its own would be lost with the worker; average all of them"
)

_KERAS_MODEL = (
    "load it with keras.models.load_model, and compile it with hvd.DistributedOptimizer(...) "
    "around its optimizer"
)

ABSENT: Mapping[str, str] = {
    "ProcessSet": PROCESS_SETS,
    "add_process_set": PROCESS_SETS,
    "remove_process_set": PROCESS_SETS,
    "is_homogeneous": "how many workers a host has may change; see hvd.local_size()",
    "load_model": _KERAS_MODEL,
    "broadcast_global_variables": _STATE,
    "BroadcastGlobalVariablesHook": _STATE,
    "DistributedAdasumOptimizer": ADASUM,
    "PartialDistributedGradientTape": LOCAL_LAYERS,
    "PartialDistributedOptimizer": LOCAL_LAYERS,
    "broadcast_object_fn": "TensorFlow 2 has not what it calls; use hvd.broadcast_object",
    "BestModelCheckpoint": (
        "use keras.callbacks.ModelCheckpoint(..., save_best_only=True) on rank 0"
    ),
    "LocalGradientAggregationHelper": (
        "give the Keras optimizer gradient_accumulation_steps instead"
    ),
    "gpu_available": 'use tf.config.list_physical_devices("GPU")',
    "ObjectState": "take hvd.elastic.TensorFlowState, which keeps any attributes",
    "run": "a program starts a job by edl.run, of `import edl`; a script has hvd.elastic.run",
    "run_fn": "put the decorator hvd.elastic.run above the function that trains",
}
# Functions for Horovod's own use that happen to lie in its modules.
INTERNAL = frozenset({
    "check_extension",
    "check_num_rank_power_of_2",
    "handle_average_backwards_compatibility",
    "is_version_greater_equal_than",
    "process_set_included_op",
    "refs_to_vars",
    "split_list",
    "vars_to_refs",
})  # fmt: skip


def absent(module: str, lazy: Mapping[str, str] = MappingProxyType({})) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module of edl that replaces one of Horovod's modules.

    `lazy` has the names of `edl.contrib`, each with its module, or "module:name".
    """

    def find(name: str) -> Any:
        if name in lazy:
            file, _, attribute = lazy[name].partition(":")
            found = importlib.import_module(file)
            return getattr(found, attribute) if attribute else found
        if name in ABSENT:
            raise UsageError(f"{module} has no {name}: {ABSENT[name]}")
        if name in INTERNAL:
            raise UsageError(
                f"{module} has no {name}: import it from horovod, it is a helper there"
            )
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find


# ------------------------------------------------------------
# Name the instruction sets by which libraries compute on this host, for jobs that must be exact.
#
# PyTorch, oneDNN and MKL choose among instruction sets when they are loaded, by the processor that
# they find. With another set they add up numbers in another order, so the last bits of a result
# differ. Variables of the environment limit the choice; where they are set, it is the same on all
# hosts. Of the processor the maker counts, too: MKL looks at it.


# The sets by which results in float32 and float64 differ, the newest first, by their flag.
_SETS = (("avx512f", "AVX512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sse4_1", "SSE41"))
_ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def processor() -> str:
    """Return the maker and the newest instruction set of this host's processor."""
    try:
        return described(_CPU_INFO.read_text())
    except OSError:
        return platform.machine()


def described(cpu_info: str) -> str:
    """Return what `processor` returns, from the text of Linux's `/proc/cpuinfo`."""
    known = dict[str, str]()
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        known.setdefault(name.strip(), value.strip())
    flags = known.get("flags", "").split()
    newest = next((name for flag, name in _SETS if flag in flags), platform.machine())
    return f"{known.get('vendor_id', '')} {newest}".strip()


def of_onednn(environ: Mapping[str, str]) -> str:
    """Return the instruction set to which oneDNN is limited, else what the processor has."""
    limits = [environ[name].upper() for name in _ONEDNN if environ.get(name)]
    return f"oneDNN {limits[0] if limits else processor()}"


def of_mkl(environ: Mapping[str, str]) -> str:
    """Return the branch of MKL's code that the user has chosen, else what the processor has."""
    return f"MKL {environ.get('MKL_CBWR', '').upper() or processor()}"


# ------------------------------------------------------------
# Compute the mean of a number over all workers of a job, weighted by samples (`mean`).


def batch_weight() -> int:
    """Return how many samples of this worker's batch count in :func:`mean`.

    The batch is the one that the script got last, whether it is trained yet or not. The result is 0
    for a padding batch and before the first batch. A newcomer's warm-up batch counts with its
    samples, although its result is discarded.

    Raises:
        UsageError: if ``edl.init()`` was not called, or the script has an elastic state and so no
            batches that edl knows.
    """
    return current_worker().steps.batch_weight


@overload
def mean(value: Mapping[str, Any], weight: float | None = None) -> dict[str, float]: ...


@overload
def mean(value: Any, weight: float | None = None) -> float: ...


def mean(value: Any, weight: float | None = None) -> float | dict[str, float]:
    """Return the weighted mean of ``value`` over all workers: the same on all, even if one dies.

    All workers must call this at the same points, after the update of a batch and before the next
    batch; each waits for all. While this worker warms up, the result is its own value. Where a
    newcomer calls it at other steps, by a count of its own that no epoch sets back, the mean is
    over those that call it.

    Args:
        value: a number, a tensor with one element, or a dict of these with the same keys on all
            workers.
        weight: how many samples this worker's value stands for; None: :func:`batch_weight`. A value
            with weight 0 is left out.

    Returns:
        A float, or for a dict a dict of floats with the same keys; nan if the weight of every
        worker is 0.

    Raises:
        UsageError: if this is called inside a step or outside of the training, if a value is not a
            number or the weight is negative, or if workers give different numbers of values. With
            an elastic state also if ``weight`` is None.
        RingBroken: if a worker is gone, in a script with an elastic state.
        WorkerEvicted, JobFailed: if this worker or the job cannot go on.
    """
    samples = weight_of(weight, "edl.mean")
    named = isinstance(value, Mapping)
    names = sorted(value) if named else [""]
    numbers = [number_of(value[name] if named else value, "edl.mean") for name in names]
    worker = current_worker()
    means = weighted_means(worker.exchange([samples, *numbers], apart=True))
    if not named:
        return means[0]
    found = dict(zip(names, means, strict=True))
    if not worker.warming_up:
        worker.learning.observe_means(worker.step, found)
    return found


def weight_of(weight: Any, call: str) -> float:
    """Return `weight` as a number of samples; None: `batch_weight`."""
    samples = batch_weight() if weight is None else number_of(weight, call)
    if not samples >= 0:
        raise UsageError(f"{call}: the weight is {weight}; it is a number of samples")
    return samples


def number_of(value: Any, call: str) -> float:
    """Return a number, or the one element of a tensor, as a float."""
    item = getattr(value, "item", None)  # of a tensor whose gradient float() would warn of
    try:
        return float(item() if item is not None else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{call} takes a number, or a tensor with one element in it: {error}"
        ) from error


# ------------------------------------------------------------
# Let one worker write the job's numbers to TensorBoard, MLflow or another logger (`log`).


NOTHING = -1  # the step before all steps
_written: weakref.WeakKeyDictionary[Worker, dict[str, int]] = weakref.WeakKeyDictionary()


def log(
    values: Mapping[str, Any],
    write: Callable[[int, dict[str, float]], object],
    step: SupportsIndex | None = None,
    weight: float | None = None,
) -> dict[str, float]:
    """Let one worker write the means of ``values`` over all workers, once a step; return the means.

    All workers must call this at the same points, with the same names, after the update of a batch
    and before the next batch, as :func:`edl.binding.api.mean`. Rank 0 calls ``write``, and
    all wait until that has returned. If rank 0 dies before, the next rank 0 writes the point. A
    step that was written is not written again, not even when the job trains it again after all
    workers have died and the job continues from a checkpoint. Only if rank 0 dies in the moment
    between the return of ``write`` and its word to the others, the point is written twice.

    Args:
        values: numbers, or tensors with one element, by name.
        write: called as ``write(step, means)`` on rank 0; it is to return when the point is safe
            from a death of its process (``SummaryWriter.flush()``). What it raises ends rank 0.
        step: the step of the point, a whole number from 0 that grows, the same on all workers;
            None: ``edl.step()``.
        weight: how many samples this worker's values stand for; None: ``edl.batch_weight()``.

    Returns:
        The mean of each value, the same on all workers; nan if the weight of every worker is 0.
        While this worker warms up, its own values.

    Raises:
        UsageError: if this is called inside a step or outside of the training, if ``values`` is no
            dict of numbers by name, if ``step`` or ``weight`` is no number that it can be, or if
            workers give different names or steps. With an elastic state also if ``weight`` is None.
        RingBroken: if a worker is gone, in a script with an elastic state.
        WorkerEvicted, JobFailed: if this worker or the job cannot go on.
    """
    worker = current_worker()
    is_named = isinstance(values, Mapping) and all(isinstance(one, str) for one in values)
    if not is_named or not values or not callable(write):
        raise UsageError(
            "edl.log takes numbers by name, and a function that writes them: "
            'edl.log({"loss": loss}, write), which calls write(step, {"loss": ...})'
        )
    at = worker.step if step is None else _checked_step(step)
    samples = weight_of(weight, "edl.log")
    names = sorted(values)
    name = ",".join(names)
    numbers = [number_of(values[one], "edl.log") for one in names]
    mine = [worker.id, _known(worker, name), at, _code(name)]
    rows = worker.exchange([samples, *mine, *numbers], apart=True)
    _check_alike([int(row[3]) for row in rows], [int(row[4]) for row in rows])
    means = weighted_means([[row[0], *row[5:]] for row in rows])
    point = dict(zip(names, means, strict=True))
    if not worker.warming_up:
        worker.learning.observe_means(worker.step, point)
        known = max(int(row[2]) for row in rows)
        rank_0 = worker.steps.progress.members[0]
        if rank_0 not in [int(row[1]) for row in rows]:  # it exchanges at other steps
            return point
        while known < at:  # once, and once more for each rank 0 that dies before it has written
            if worker.rank == 0:
                write(at, dict(point))
                known = at
                worker.checkpointing.put_logged(name, at)
            known = max(int(row[0]) for row in worker.exchange([known], apart=True))
        _written[worker][name] = known
    return point


def _checked_step(step: SupportsIndex) -> int:
    """Return the step of a point that the script gives."""
    try:
        at = operator.index(step)
    except TypeError:
        at = NOTHING
    if at < 0:
        raise UsageError(
            f"edl.log: the step is {step!r}; give a whole number from 0, as edl.step() or "
            "int(optimizer.iterations)"
        )
    return at


def _code(name: str) -> int:
    return zlib.crc32(name.encode())


def _check_alike(steps: list[int], codes: list[int]) -> None:
    """Raise an error, the same on all workers, unless all log the same names at the same step."""
    what = "steps " + ", ".join(map(str, steps)) if len({*steps}) > 1 else "different names"
    if len({*steps}) > 1 or len({*codes}) > 1:
        raise UsageError(
            f"edl.log: the workers gave {what}; all must log the same names at the same step"
        )


def _known(worker: Worker, name: str) -> int:
    """Return the highest step of which this worker knows that `name` was written; -1: of none."""
    of_worker = _written.setdefault(worker, {})
    if name not in of_worker:
        if worker.warming_up or worker.rank != 0:
            return NOTHING  # rank 0 says what the checkpoint's directory has
        of_worker[name] = worker.checkpointing.logged().get(name, NOTHING)
    return of_worker[name]
