"""Check the arguments of ``edl.run``, and tell its options from the settings of a job.

The main entries are :func:`split_options` and :func:`check_call`.
"""

from __future__ import annotations

import inspect
import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from edl import config
from edl.core.job.placement import whole
from edl.core.job_spec import resume_directory
from edl.errors import CheckpointError, ConfigError, UsageError
from edl.program.function_files import name_of

_HOSTS = (
    "other hosts join by `edl join --job NAME --slots 4`; give directory=, one that all hosts share"
)
_NO_MPI = "leave it out: workers exchange by Gloo, never by MPI"
# What to write for arguments of horovod.run, options of `edl run`, and words of other launchers.
INSTEAD: Mapping[str, str] = {
    "num_proc": "write np=",
    "min_num_proc": "write min_np=",
    "max_num_proc": "write max_np=",
    "reset_limit": "a ring may change as often as it has to; see max_restarts=",
    "cooldown_range": "write backoff_max_s=, the longest pause before a worker is started again",
    "hosts": _HOSTS,
    "hostfile": _HOSTS,
    "host_discovery_script": _HOSTS,
    "ssh_port": _HOSTS,
    "ssh_identity_file": _HOSTS,
    "start_timeout": "write start_timeout_s=",
    "disable_cache": "leave it out: no checks of hosts are kept",
    "output_filename": "the output of each worker is in a log of its own; see `edl logs`",
    "verbose": "write shows_workers=False to hide what workers print, else leave it out",
    "use_gloo": _NO_MPI,
    "use_mpi": _NO_MPI,
    "mpi_args": _NO_MPI,
    "network_interfaces": "write network_interface=, the name of one",
    "executable": "leave it out: workers have the Python of this program",
    "job": "write name=",
    "or_join": "the command `edl run` has it",
    "resume_auto": 'write resume="auto"',
    "resume_from": "write resume=, with the directory",
    "elastic_timeout": "write elastic_timeout_s=",
    "stall_limit": "write stall_limit_s=",
    "num_workers": "write np=",
    "num_processes": "write np=",
    "nprocs": "write np=",
    "min_workers": "write min_np=",
    "max_workers": "write max_np=",
    "env": "set os.environ before the call: workers have the environment of this program",
}
_KINDS: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("name", (str,), "a str"),
    ("directory", (str, os.PathLike), "a path"),
    ("policy", (str, os.PathLike), "the path of a policy file, or its text"),
    ("shows_workers", (bool,), "True or False"),
)


@dataclass(frozen=True)
class Options:
    """The options of `edl.run` that are no settings of a job; `edl.run` describes them."""

    name: str | None = None
    slots: int | None = None
    directory: str | Path | None = None
    policy: str | Path | None = None
    shows_workers: bool = True

    def __post_init__(self) -> None:
        for option, kinds, words in _KINDS:
            value = getattr(self, option)
            if value is not None and not isinstance(value, kinds):
                raise UsageError(f"{option} is {reprlib.repr(value)}; give {words}")
        if self.slots is not None:
            object.__setattr__(self, "slots", whole(self.slots))


def split_options(options: Mapping[str, Any]) -> tuple[Options, config.Config]:
    """Return the options of `edl.run` and the settings of a job and of this process."""
    own = {name: options[name] for name in Options.__dataclass_fields__ if name in options}
    others = {name: options[name] for name in options.keys() - own.keys()}
    for name in sorted(others):
        if name in INSTEAD or name not in config.SETTINGS:
            raise ConfigError(name, f"edl.run has no option {name}{_advice(name)}")
    if isinstance(others.get("resume"), bool):
        others["resume"] = "1" if others["resume"] else ""
    chosen, settings = Options(**own), config.load(**others)
    _check_resumable(settings.job_settings.resume)
    return chosen, settings


def _check_resumable(resume: str) -> None:
    """Raise a UsageError if `resume` is a directory without a checkpoint to continue from."""
    directory = resume_directory(resume)
    if directory is None:
        return
    from edl.checkpoint.location import location  # imports NumPy: 0.1 s
    from edl.checkpoint.resumable import check_resumable

    try:
        check_resumable(location(directory).absolute())
    except CheckpointError as error:  # before any worker is started
        raise UsageError(str(error)) from None


def check_call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise an error if `func` cannot be called with `args` and `kwargs`."""
    if not callable(func):
        raise UsageError(
            f"edl.run takes a function, not {reprlib.repr(func)}; write edl.run(train, np=2)"
        )
    if not isinstance(args, Sequence) or isinstance(args, str | bytes):
        raise UsageError(
            f"args is {reprlib.repr(args)}; give the positional arguments of the function in a "
            "tuple, such as args=(20,)"
        )
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise UsageError(
            f"kwargs is {reprlib.repr(kwargs)}; give the keyword arguments of the function in a "
            'dict, such as kwargs={"lr": 0.1}'
        )
    try:  # the function's own, and not that of what it wraps: a decorator may add arguments
        signature = inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError):  # one that is written in C has none
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise UsageError(
            f"{name_of(func)} cannot be called with these args and kwargs of edl.run: {error}"
        ) from None


def _advice(name: str) -> str:
    """Return the end of the sentence that `edl.run` has no option `name`: what to write."""
    if name in INSTEAD:
        return f": {INSTEAD[name]}"
    known = [*Options.__dataclass_fields__, *config.SETTINGS]
    if near := get_close_matches(name, known, n=1, cutoff=0.7):
        return f"; did you mean {near[0]}?"
    return "; see help(edl.run), and `edl run --help` for the settings of a job"
