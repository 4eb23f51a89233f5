"""Hold this process's only worker, and define the API functions that need no framework.

:func:`start` makes the worker, for ``edl.init()``; :func:`current_worker` returns it. ``edl.torch``
and ``edl.tensorflow`` offer the functions from :func:`shutdown` to :func:`on_resize`, some of them
with what the framework adds.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import time
import weakref
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NoReturn

from edl import config
from edl.checkpoint.location import location
from edl.core.host.process import STOPPED_EXIT
from edl.daemon.daemon import Daemon
from edl.daemon.own_log import OwnLog
from edl.daemon.stacks import offer_stacks
from edl.data.stream import refuse_in_stream
from edl.errors import EdlError, NewcomerDiffers, UsageError
from edl.framework import ending, first_step
from edl.framework.forks import free_all_forks
from edl.framework.freed_memory import keep_freed_memory
from edl.framework.hidden_error import hidden_in
from edl.framework.notices import leave_on_notices
from edl.framework.replica import FrameworkReplica, add_tracked
from edl.framework.tracing import trace_worker
from edl.ring.gloo import Binding, gloo_ring
from edl.worker.job_of_one import JobOfOne
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

REGISTERS_WITHIN_S = 1.0  # whatever its launcher has asked for

_worker: Worker | None = None
_over: weakref.WeakSet[Worker] = weakref.WeakSet()


_replica: FrameworkReplica | None = None
_tracked_early: dict[str, Any] = {}
_elastic_state: str | None = None  # the class of the state that follows the job in its place


def start(binding: Callable[[], Binding], settings: dict[str, Any]) -> None:
    """Make this process a worker of its job and let it take part: the core of `edl.init()`."""
    global _worker
    settings_now = config.load(**settings)
    if settings_now.job is not None:
        _refuse_child()
        if said := sorted(settings.keys() & config.OF_THE_JOB):
            logger.warning("edl.init: %s is as the launcher of the job has it", ", ".join(said))
            settings_now = config.load(**{k: v for k, v in settings.items() if k not in said})
    if _worker is not None and not _end_at_prompt(_worker):
        return  # a second call has no effect
    if config.horovod_slot() is not None:
        _begin_again_under_edl_worker()
    if settings_now.job is None and (size := config.horovod_size()) > 1:
        raise UsageError(
            f"this is one of {size} processes that a launcher without elasticity has started; "
            "give horovodrun `--host-discovery-script edl-discover`, or use `edl run`"
        )
    worker = _worker_of(settings_now, binding())
    if settings_now.job is not None:
        free_all_forks()
        keep_freed_memory(config.environment())
        speak_in_sentences()
        offer_stacks(settings_now.stacks, settings_now.stack_signal)
        leave_on_notices(worker)
        ending.arm()
        worker.on_trained(
            partial(first_step.tell, settings_now.trained_file, settings_now.imports_file)
        )
        _let_others_repair(settings_now.registers_at_s)
    ending.Closing(
        worker.close,
        worker.ring.break_,
        lambda: worker.checkpointing.settings.save_timeout_s,
        worker.finishing.script_ended,
        partial(_was_stopped, worker),
    ).start()
    worker.start()
    _worker = worker
    if directory := worker.checkpointing.settings.checkpoint_dir:
        checkpoint(directory)
    trace_worker(worker, settings_now.job, settings_now.run)


def _was_stopped(worker: Worker) -> bool:
    # The script's own handler of a signal has ended it, so the training has not come to its end.
    if worker.is_shared and worker.finishing.ends_early:
        ending.fails_late(STOPPED_EXIT)
    return worker.stopped


def _end_at_prompt(worker: Worker) -> bool:
    """End the job of `worker` if it was begun at a Python prompt without a launcher."""
    global _worker, _replica, _elastic_state
    # Cells of a notebook are run again: there each edl.init() begins another job of one worker.
    if worker.is_shared or not hasattr(sys, "ps1"):
        return False
    try:
        if not worker.loader.open:  # else a cell has failed, or was broken off, in a step
            worker.finishing.script_ended()
    finally:
        worker.close()
        _over.add(worker)
        worker.loader.progress.abandon()  # or the gradients of its model would go on being its own
        _worker = _replica = _elastic_state = None
        _tracked_early.clear()
    return True


def is_over(worker: Worker) -> bool:
    """Return whether `edl.init()`, called again at a Python prompt, has ended a worker's job."""
    return worker in _over


def _worker_of(settings: config.Config, binding: Binding) -> Worker:
    """Return a new worker, which is not started yet: it is in no job and no ring."""
    ring = gloo_ring(binding, settings.own_address, settings.connect_timeout_s)
    if settings.job is None:
        return Worker(settings, ring, SharedState(keeps_events=False), JobOfOne(settings))
    shared = SharedState()
    return Worker(settings, ring, shared, Daemon(settings, shared, ring, _log))


def shutdown() -> None:
    """Leave the ring and the job for good; wait for a checkpoint that is being written.

    Nothing happens before ``edl.init()`` and in a second call. At the end of the process edl leaves
    the job by itself.
    """
    if _worker is not None:
        _worker.close()


def is_initialized() -> bool:
    """Return whether ``edl.init()`` has made this process a worker; still True after shutdown()."""
    return _worker is not None


def current_worker() -> Worker:
    """Return the worker that ``edl.init()`` has made in this process.

    Raises:
        UsageError: if ``edl.init()`` was not called.
    """
    if _worker is None:
        raise UsageError("call edl.init() first")
    return _worker


def has_trained() -> bool:
    """Return whether this process has the state of a job that has made a step."""
    return _worker is not None and not _worker.warming_up and _worker.step > 0


def rank() -> int:
    """Return this worker's rank in the ring of all workers, from 0.

    A newcomer that warms up expects the last rank, so the result is never 0 then.

    Raises:
        UsageError: if ``edl.init()`` was not called, or in the code that reads a stream of samples,
            which must be the same on all workers.
    """
    refuse_in_stream("edl.rank()")
    return current_worker().rank


def size() -> int:
    """Return the number of workers in the ring of all workers; with logical workers, their number.

    A newcomer that warms up counts the workers that it found at its start, and itself. The number
    of logical workers (``edl run --logical``) never changes, and they share each step evenly, so
    what a script computes from the size (a learning rate) holds for any number of workers. To
    divide an evaluation among the workers, use :func:`num_processes`; a call within the training
    logs a warning of that.

    Raises:
        UsageError: if ``edl.init()`` was not called, or in the code that reads a stream of samples,
            which must be the same on all workers.
    """
    refuse_in_stream("edl.size()")
    worker = current_worker()
    if worker.logical and worker.step > 0:
        _warn_of_logical_size(worker.logical)
    return worker.logical or worker.size


def num_processes() -> int:
    """Return the number of workers in the ring, by which a script may divide an evaluation.

    :func:`rank` is below it. It changes when workers come and go, and is that of :func:`size`,
    except in a job with logical workers.

    Raises:
        UsageError: if ``edl.init()`` was not called, or in the code that reads a stream of samples,
            which must be the same on all workers.
    """
    refuse_in_stream("edl.num_processes()")
    return current_worker().size


@cache
def _warn_of_logical_size(logical: int) -> None:
    logger.warning(
        "edl.size() is %d, the number of logical workers, also while fewer processes share them: "
        "to divide data among these, by edl.rank(), use edl.num_processes()",
        logical,
    )


def local_rank() -> int:
    """Return this worker's slot on its host, from 0, for choosing a device; it never changes.

    Unlike Horovod's local rank, the number does not change when another worker leaves. Two workers
    of a host have the same number only while one replaces the other and no slot of the host is
    without a worker. Without a launcher the number is 0.
    """
    return current_worker().local_rank


def local_size() -> int:
    """Return how many workers on this worker's host are in the ring, itself included.

    The result is 1 while this worker warms up.
    """
    return current_worker().ring.place.local_size


def cross_rank() -> int:
    """Return the index of this host, from 0, among the hosts with a worker of the same local rank.

    "Local rank" here is Horovod's: the index of a worker among the workers of its host, without
    gaps. It may differ from the result of :func:`local_rank`. The result is 0 while this worker
    warms up.
    """
    return current_worker().ring.place.cross_rank


def cross_size() -> int:
    """Return how many hosts have a worker with this worker's local rank, this host included.

    "Local rank" is Horovod's, as in :func:`cross_rank`. The result is 1 while this worker warms up.
    """
    return current_worker().ring.place.cross_size


def generation() -> int:
    """Return the number of the ring's generation, which grows with each change of the ring.

    It is 0 while this worker warms up, and always in a job without a launcher.
    """
    return current_worker().generation


def step() -> int:
    """Return how many optimizer updates the job has made since it began, on all workers together.

    An update that all workers make together counts once; updates before a restart count as well. In
    a script with an elastic state the result is the number of saves of this state. It is 0 until a
    newcomer has got the job's state.
    """
    return current_worker().step


def leader() -> str:
    """Return the name, such as ``w0``, of the worker whose daemon decides about membership.

    It is this worker's own name while no leader is known, and in a job without a launcher.
    """
    return f"w{current_worker().leader.worker}"


def is_leader() -> bool:
    """Return whether this worker's daemon is the leader, which decides about membership.

    Also True while no leader is known, and in a job without a launcher. So use rank 0, and not the
    leader, for work that exactly one worker must do.
    """
    worker = current_worker()
    return worker.leader.worker == worker.id


def is_warming_up() -> bool:
    """Return whether this worker is a newcomer that still warms up, and so is in no common ring.

    In its warm-up it trains a batch alone; the result is discarded.
    """
    return current_worker().warming_up


def track(check: Callable[[dict[str, Any]], None], objects: dict[str, Any]) -> None:
    """Let newcomers and checkpoints get the states of the script's `objects`, from now on."""
    current_worker()
    check(objects)
    _refuse_beside_state(objects)
    if _replica is not None:
        _replica.track(objects)
    else:
        add_tracked(_tracked_early, objects)


def let_state_follow(state_name: str) -> None:
    """Declare that the script has an elastic state; from now on `edl.track` raises a UsageError."""
    global _elastic_state
    _elastic_state = state_name
    _refuse_beside_state(_tracked_early)


def _refuse_beside_state(objects: dict[str, Any]) -> None:
    """Raise a UsageError if a script has both tracked objects and an elastic state."""
    for name in objects if _elastic_state is not None else ():
        raise UsageError(
            f"edl.track({name}=...) does nothing beside an elastic state; give it to the state: "
            f"elastic.{_elastic_state}(..., {name}=...)"
        )


def checkpoint(
    directory: str | os.PathLike[str], every_s: float = 300.0, keep: int = 3, sharded: bool = False
) -> None:
    """Save the job's state in a directory regularly, so the job can outlive its workers.

    The state is the model, the optimizer, tracked objects, the step and the ledger. Call this on
    all workers before training begins. Rank 0 saves before the first step, then between two steps
    when ``every_s`` seconds have passed, and at the end. It copies the state, and a thread writes
    it. In a job without a launcher, SIGTERM then makes the worker save and end. When all die, new
    ones continue from the newest file. So does `edl run --resume`, with any number of workers.

    Args:
        directory: a directory that all hosts share, used for this training only; it is created if
            it does not exist. Or a URL that the library fsspec knows, such as ``s3://bucket/run``.
        every_s: seconds from one checkpoint to the next; above 0.
        keep: how many of the newest checkpoints are kept, at least 1; older ones are deleted.
        sharded: whether each worker writes a part of the state between two steps, not rank 0 all.

    Raises:
        CheckpointError: if nothing can be written into the directory.
        UsageError: if called twice, in training, before ``edl.init()``, or with a wrong value.
    """
    worker = current_worker()
    worker.checkpointing.attach(location(directory), every_s, keep, sharded)
    leave_on_notices(worker)


def on_resize(callback: Callable[[int, int], None]) -> None:
    """Call ``callback(old_size, new_size)`` on this worker after each change of its ring.

    The changes are: this worker joins, a planned switch, and a repair after a crash. The training
    thread calls it, after the callbacks of earlier calls of this function.

    Args:
        callback: a function of two numbers of workers: those in the ring before and after.
    """
    current_worker().on_resize(callback)


def attach_replica(
    replica: FrameworkReplica, before_join: Callable[[], None] = lambda: None
) -> None:
    """Let this worker send, receive and save the state in `replica` from now on."""
    global _replica
    current_worker().attach_replica(replica, before_join)
    if current_worker().is_shared:
        leave_on_notices(current_worker())  # the script may have set handlers since edl.init()
    current_worker().describe_model(replica.signature)
    replica.track(_tracked_early)
    _replica = replica


def _refuse_child() -> None:
    """Raise a UsageError if `multiprocessing` has started this process; else do nothing."""
    # Such a child of a worker would take part in the job under its parent's id. If it is spawned,
    # it runs the script's top level before it knows its parent, but has `_inheriting`.
    inheriting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if inheriting or multiprocessing.parent_process() is not None:
        raise UsageError(
            "edl.init() was called in a process that multiprocessing has started, which is no "
            'worker; put edl.init() and the training under `if __name__ == "__main__":`'
        )


def _let_others_repair(registers_at_s: float | None) -> None:
    """Wait before this worker, which replaces a dead one, registers: the others repair first."""
    early_s = (registers_at_s or 0.0) - time.monotonic()
    time.sleep(min(max(0.0, early_s), REGISTERS_WITHIN_S))


def _begin_again_under_edl_worker() -> NoReturn:
    """Replace this process by `edl-worker`, which starts the script again as its child process."""
    # Else Horovod's driver would exclude its host or end the job when it ends (docs/adr/0009).
    command = sys.orig_argv
    if len(command) < 2 or "-" in command[1:2]:
        raise UsageError("write `edl-worker` before the command that horovodrun starts")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "edl.cli.worker", *command])


def speak_in_sentences() -> None:
    """Print an `EdlError` that ends the script as one sentence, without a traceback."""
    global _hook
    previous = sys.excepthook
    if previous is _hook:  # the script has set no other one since edl was imported
        return

    def hook(kind: Any, error: Any, trace: Any) -> None:
        error = hidden_in(error) or error
        refused = error.exit_code if isinstance(error, NewcomerDiffers) else None
        ending.fails(1 if refused is None else refused)
        if isinstance(error, EdlError):
            logger.debug("", exc_info=(kind, error, trace))
            print(f"edl: {error}", file=sys.stderr, flush=True)
            if refused is not None:  # CPython ends with the code of what its hook raises
                ending.say_refused()
                raise SystemExit(refused)
        else:
            previous(kind, error, trace)

    sys.excepthook = _hook = hook


def _own_log() -> OwnLog | None:
    if not (path := config.log_of_worker()):
        return None
    log = OwnLog(path)
    log.guard()
    return log


def guard_output() -> None:
    """Leave out output that cannot be written to this worker's log file, if it has one."""
    global _log
    _log = _own_log()


_log: OwnLog | None = None
_hook: Any = None
speak_in_sentences()
guard_output()
