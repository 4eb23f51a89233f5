"""This process's one worker, and the functions of the API that only need it.

``edl.torch`` and ``edl.tensorflow`` offer these functions under their own names; each adds what
its framework needs.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from edl import config
from edl.daemon.daemon import Daemon
from edl.daemon.own_log import OwnLog
from edl.daemon.stacks import offer_stacks
from edl.data.stream import refuse_in_stream
from edl.errors import REFUSED_EXIT, EdlError, NewcomerDiffers, UsageError
from edl.framework import ending, first_step
from edl.framework.forks import end_forks_by_sigterm, free_all_forks
from edl.framework.replica import FrameworkReplica, add_tracked
from edl.ring.gloo import Binding, gloo_ring
from edl.worker.job_of_one import JobOfOne
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

REGISTERS_WITHIN_S = 1.0  # whatever its launcher has asked for

_worker: Worker | None = None
_over: weakref.WeakSet[Worker] = weakref.WeakSet()
_hidden: EdlError | None = None


_replica: FrameworkReplica | None = None
_tracked_early: dict[str, Any] = {}
_elastic_state: str | None = None  # the class of the state that follows the job in its place


def start(binding: Callable[[], Binding], settings: dict[str, Any]) -> None:
    """``edl.init()``: take part in the job that the launcher started this process for.

    At a prompt a job of one begins anew with each call, for cells of a notebook are run again.

    Raises:
        ConfigError: a setting has no usable value.
        CoordinationError: ZooKeeper or the job is not there.
        JobFailed: the job did not start in time.
        UsageError: this process is no worker, but was started by one.
    """
    global _worker
    settings_now = config.load(**settings)
    if settings_now.job is not None:
        _refuse_child()
        if said := sorted(settings.keys() & config.OF_THE_JOB):
            logger.warning("edl.init: %s is as the launcher of the job has it", ", ".join(said))
            settings_now = config.load(**{k: v for k, v in settings.items() if k not in said})
    if _worker is not None and not _end_at_prompt(_worker):
        return
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
        speak_in_sentences()
        offer_stacks(settings_now.stacks, settings_now.stack_signal)
        _leave_on_sigterm(worker)
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
        lambda: worker.stopped,
    ).start()
    worker.start()
    _worker = worker


def _end_at_prompt(worker: Worker) -> bool:
    """Whether ``worker`` was a job of one at a prompt, which is over now."""
    global _worker, _replica, _elastic_state
    if worker.is_shared or not hasattr(sys, "ps1"):
        return False
    if not worker.loader.open:  # else a cell has failed, or was broken off, in the midst of a step
        worker.finishing.script_ended()
    worker.close()
    _over.add(worker)
    worker.loader.step_input.abandon()  # or the gradients of its model would go on being its own
    _worker = _replica = _elastic_state = None
    _tracked_early.clear()
    return True


def is_over(worker: Worker) -> bool:
    """Whether ``worker`` was of a job before this one, at a prompt."""
    return worker in _over


def _worker_of(settings: config.Config, binding: Binding) -> Worker:
    """A worker over Horovod; a job of one when no launcher started this process."""
    ring = gloo_ring(binding, settings.own_address, settings.connect_timeout_s)
    if settings.job is None:
        return Worker(settings, ring, SharedState(keeps_events=False), JobOfOne(settings))
    shared = SharedState()
    return Worker(settings, ring, shared, Daemon(settings, shared, ring, _log))


def shutdown() -> None:
    """Leave the job for good. Called by itself at the end of the process."""
    if _worker is not None:
        _worker.close()


def is_initialized() -> bool:
    return _worker is not None


def current_worker() -> Worker:
    """This process's worker.

    Raises:
        UsageError: ``edl.init()`` was not called.
    """
    if _worker is None:
        raise UsageError("call edl.init() first")
    return _worker


def rank() -> int:
    """This worker's rank in the ring. Never 0 while it warms up."""
    refuse_in_stream("edl.rank()")
    return current_worker().rank


def size() -> int:
    """The number of workers in the ring."""
    refuse_in_stream("edl.size()")
    return current_worker().size


def local_rank() -> int:
    """This worker's slot on its host, for choosing a device; constant while the process lives.

    Unlike Horovod's it does not close ranks when another worker leaves. Two workers of a host
    share it only while one replaces the other and no slot is free.
    """
    return current_worker().local_rank


def local_size() -> int:
    """How many workers of this host are in the ring; 1 while this worker warms up."""
    return current_worker().ring.place.local_size


def cross_rank() -> int:
    """The index of this host among those with a worker of the same local rank, as in Horovod."""
    return current_worker().ring.place.cross_rank


def cross_size() -> int:
    """How many hosts have a worker of the same local rank, as in Horovod."""
    return current_worker().ring.place.cross_size


def generation() -> int:
    """The number of the ring's membership; grows with each switch."""
    return current_worker().generation


def step() -> int:
    """How many optimizer updates the job has made."""
    return current_worker().step


def leader() -> str:
    """The name of the worker whose daemon leads the job, like ``w0``."""
    return f"w{current_worker().leader.worker}"


def is_leader() -> bool:
    worker = current_worker()
    return worker.leader.worker == worker.id


def is_warming_up() -> bool:
    """Whether this newcomer still trains for nothing, to be warm when it joins."""
    return current_worker().warming_up


def track(check: Callable[[dict[str, Any]], None], objects: dict[str, Any]) -> None:
    """Let objects follow the job; ``check`` raises UsageError for those that cannot.

    Raises:
        UsageError: also when another object has the name, or an elastic state follows the job.
    """
    current_worker()
    check(objects)
    _refuse_beside_state(objects)
    if _replica is not None:
        _replica.track(objects)
    else:
        add_tracked(_tracked_early, objects)


def let_state_follow(state_name: str) -> None:
    """An elastic state follows the job, and all that does is in it.

    Raises:
        UsageError: something was given to ``edl.track``.
    """
    global _elastic_state
    _elastic_state = state_name
    _refuse_beside_state(_tracked_early)


def _refuse_beside_state(objects: dict[str, Any]) -> None:
    for name in objects if _elastic_state is not None else ():
        raise UsageError(
            f"edl.track({name}=...) does nothing beside an elastic state; give it to the state: "
            f"elastic.{_elastic_state}(..., {name}=...)"
        )


def checkpoint(directory: str | os.PathLike[str], every_s: float = 300.0, keep: int = 3) -> None:
    """Save model, optimizer, tracked objects, step and ledger: the job may outlive its workers.

    Call it before training begins. One worker writes: at the first step, then every
    ``every_s`` seconds, and before the job ends in any orderly way. The ``keep`` newest files are
    kept. When all workers die, the restarted ones continue from the newest; `edl run --resume`
    does so in a new job, with any number of workers.

    Args:
        directory: one that all hosts share, for this training only.

    Raises:
        CheckpointError: nothing can be written there.
        UsageError: called twice, too late, or with values out of range.
    """
    worker = current_worker()
    worker.checkpointing.attach(Path(directory), every_s, keep)
    _leave_on_sigterm(worker)


def on_resize(callback: Callable[[int, int], None]) -> None:
    """Call ``callback(old_size, new_size)`` on this worker after each switch, and its own join."""
    current_worker().on_resize(callback)


def attach_replica(replica: FrameworkReplica) -> None:
    """Let this worker share ``replica``, and what was tracked before it was there.

    Raises:
        UsageError: there is one already.
    """
    global _replica
    current_worker().attach_replica(replica)
    current_worker().describe_model(replica.signature)
    replica.track(_tracked_early)
    _replica = replica


def _refuse_child() -> None:
    """A process of multiprocessing would take part in the job in the name of its parent.

    Spawned ones and those of a fork server run the script's top level again, before they know
    their parent; multiprocessing itself tells it by this attribute.
    """
    inheriting = getattr(multiprocessing.current_process(), "_inheriting", False)
    if inheriting or multiprocessing.parent_process() is not None:
        raise UsageError(
            "edl.init() was called in a process that multiprocessing has started, which is no "
            'worker; put edl.init() and the training under `if __name__ == "__main__":`'
        )


def _let_others_repair(registers_at_s: float | None) -> None:
    """Wait until ``registers_at_s``, by the monotonic clock; None: there is nothing to repair."""
    early_s = (registers_at_s or 0.0) - time.monotonic()
    time.sleep(min(max(0.0, early_s), REGISTERS_WITHIN_S))


def _leave_on_sigterm(worker: Worker) -> None:
    end_forks_by_sigterm()

    def leave(_number: int, _frame: FrameType | None) -> None:
        if not ending.has_begun():  # else this would end an exit handler, with a traceback
            worker.request_leave()

    if threading.current_thread() is threading.main_thread():  # Python allows it there only
        signal.signal(signal.SIGTERM, leave)


def _begin_again_under_edl_worker() -> NoReturn:
    """Elastic horovodrun has started the script itself: let `edl-worker` start it instead.

    The driver takes the end of a process of its own for more than that (docs/adr/0009).
    """
    command = sys.orig_argv
    if len(command) < 2 or "-" in command[1:2]:
        raise UsageError("write `edl-worker` before the command that horovodrun starts")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "edl.cli.worker", *command])


def hide(error: EdlError) -> None:
    """``error`` passes through a framework, which may raise something of its own for it."""
    global _hidden
    _hidden = error


@contextmanager
def unhiding() -> Iterator[None]:
    """What a framework raises in here for an error that passed through it, raised as that error."""
    try:
        yield
    except Exception as error:
        if (hidden := _hidden_in(error)) is None:
            raise
        raise hidden from error


def _hidden_in(error: BaseException) -> EdlError | None:
    """The error that a framework's one stands for: its sentence is in it."""
    stands = _hidden is not None and not isinstance(error, EdlError) and str(_hidden) in str(error)
    return _hidden if stands else None


def speak_in_sentences() -> None:
    """Let an :class:`EdlError` that ends the script be shown as its sentence, not as a traceback.

    Called at the import of edl, and by ``edl.init()`` in case that the script has set a hook since.
    """
    global _hook
    previous = sys.excepthook
    if previous is _hook:
        return

    def hook(kind: Any, error: Any, trace: Any) -> None:
        error = _hidden_in(error) or error
        refused = isinstance(error, NewcomerDiffers)
        ending.fails(REFUSED_EXIT if refused else 1)
        if isinstance(error, EdlError):
            logger.debug("", exc_info=(kind, error, trace))
            print(f"edl: {error}", file=sys.stderr, flush=True)
            if refused:  # CPython ends with the code of what its hook raises
                ending.say_refused()
                raise SystemExit(REFUSED_EXIT)
        else:
            previous(kind, error, trace)

    sys.excepthook = _hook = hook


def _own_log() -> OwnLog | None:
    """The log of this worker, which nothing that it prints can fail to reach from now on."""
    if not (path := config.log_of_worker()):
        return None
    log = OwnLog(path)
    log.guard()
    return log


def guard_output() -> None:
    """From now on what this process prints reaches its log, or is left out: no print() fails.

    Called at the import of edl, and in a process that is forked from one that has imported it.
    """
    global _log
    _log = _own_log()


_log: OwnLog | None = None
_hook: Any = None
speak_in_sentences()
guard_output()
