"""edl makes Horovod training elastic: workers join, leave and crash while a job trains on.

Import the module of your framework in a training script: ``import edl.torch as edl``. This module
stays light: it holds the version, ``__version__``, and :func:`run`, which starts a job from a
program or a notebook and imports what it needs when it is called.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__version__ = "0.1.0"


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    **options: Any,
) -> list[Any]:
    """Train by ``func`` on ``np`` workers as an elastic job; return what it returns on each.

    Each worker is a process that calls the function, as it would run a script: the function calls
    ``edl.torch`` or ``edl.tensorflow``, ``init()`` first. Workers may join, leave and be killed
    meanwhile (``edl scale``, ``edl status`` and the other commands work). The call returns when the
    job is over. Ctrl-C, or an interrupt of the notebook, ends the job after the step that runs.

    Args:
        func: the training function; a function of a notebook's cell, of the program's own file
            or inside of another function will do, with all that it refers to and cloudpickle takes.
        args: its positional arguments.
        kwargs: its keyword arguments.
        np: the number of workers to start with.
        **options: options of `edl run` and settings of a job by name, such as ``min_np``,
            ``max_np`` or ``zookeeper``; and ``name``, the name of the job; ``slots``, how many
            workers fit on this host (default: ``max_np``, else ``np``); ``directory``, one that all
            hosts of the job share (default: in this user's state directory, for workers of this
            host); ``policy``, the path of a policy file or its text, by which the job chooses its
            size; ``shows_workers``, False to show no line that a worker prints.

    Returns:
        The results by rank, one of each worker that has trained to the end. Workers that left or
        were killed before have none.

    Raises:
        UsageError: the job cannot be started as it is asked for, ``func`` cannot be called with
            these arguments, or one of them cannot be pickled. An argument of ``horovod.run`` that
            is none here gets a sentence that says what to write.
        JobFailed: the job has failed, or the function after its training; the message has the
            reason, and the traceback of the worker if it was an exception.
        JobStopped: the job was stopped, for example by `edl stop`.
        KeyboardInterrupt: Ctrl-C has ended the job.
        CoordinationError: ZooKeeper does not answer.
    """
    # By its name, as the modules that it needs import this one for the version.
    return list(importlib.import_module("edl.program.run").run(func, args, kwargs, np, options))
