"""Start a job whose script is a function, run this host's agent, and return the results."""

from __future__ import annotations

import inspect
import os
import reprlib
import shutil
import signal
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.console import Console

from edl import config
from edl.client.changes import checked_policy
from edl.client.connection import open_session
from edl.client.submitting import create, host_slots, job_spec, made_up_name, prepare
from edl.config import read_policy
from edl.errors import (
    CheckpointError,
    ConfigError,
    CoordinationError,
    JobError,
    JobFailed,
    JobStopped,
    UnknownJob,
    UsageError,
)
from edl.host.address import check_own_name
from edl.host.host_agent import Display, LiveLine, agent_display, submitter_agent, this_host
from edl.host.output import Output
from edl.host.process import AgentEnd, AgentResult
from edl.job.placement import whole
from edl.job.snapshot import Snapshot
from edl.program.function_files import FunctionFiles, name_of
from edl.records import NO_POLICY, Generation
from edl.spec import resume_directory
from edl.zookeeper.local_server import find_local, start_local
from edl.zookeeper.paths import check_name
from edl.zookeeper.store import JobStore

# ------------------------------------------------------------
# The status line below a notebook's cell.


_REDRAW_S = 0.5


class NotebookLine:
    """The status line of a job in a notebook, which is drawn anew as the job trains."""

    def __init__(
        self,
        line: LiveLine,
        display: Callable[..., Any],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._line, self._display, self._now_s = line, display, now_s
        self._handle: Any = None
        self._shown, self._at_s = "", -_REDRAW_S

    def update(self, snapshot: Snapshot) -> None:
        self._line.update(snapshot)
        now_s = self._now_s()
        job = snapshot.job
        if not job.state.over and now_s - self._at_s < _REDRAW_S:
            return
        text = self._line.render().plain
        if job.state.over:
            text = f"{job.name} {job.state.phrase}: {job.reason}"
        if text == self._shown:
            return
        self._shown, self._at_s = text, now_s
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def notebook_display() -> Callable[..., Any] | None:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is None or getattr(shell, "kernel", None) is None:
        return None
    found: Callable[..., Any] = ipython.display.display
    return found


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
    own = {name: options[name] for name in Options.__dataclass_fields__ if name in options}
    others = {name: options[name] for name in options.keys() - own.keys()}
    for name in sorted(others):
        if name not in INSTEAD and name in config.SETTINGS:
            continue
        advice = "; see help(edl.run), and `edl run --help` for the settings of a job"
        known = [*Options.__dataclass_fields__, *config.SETTINGS]
        if name in INSTEAD:
            advice = f": {INSTEAD[name]}"
        elif near := get_close_matches(name, known, n=1, cutoff=0.7):
            advice = f"; did you mean {near[0]}?"
        raise ConfigError(name, f"edl.run has no option {name}{advice}")
    if isinstance(others.get("resume"), bool):
        others["resume"] = "1" if others["resume"] else ""
    chosen, settings = Options(**own), config.load(**others)
    if (directory := resume_directory(settings.job_settings.resume)) is not None:
        from edl.checkpoint.location import location  # imports NumPy: 0.1 s
        from edl.checkpoint.store import check_resumable

        try:
            check_resumable(location(directory).absolute())
        except CheckpointError as error:  # before any worker is started
            raise UsageError(str(error)) from None
    return chosen, settings


def check_call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
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


_POLL_S = 0.2
_GOES_ON = (AgentEnd.LEFT, AgentEnd.PREEMPTED)
_STOPPED = (AgentEnd.STOPPED, AgentEnd.HALTED, AgentEnd.UNSAVED)
_OTHERS_S = 600.0  # for workers of other hosts to return, as long as a script has after training


def run(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    np: int,
    options: Mapping[str, Any],
) -> list[Any]:
    """Do what `edl.run` describes; the arguments, the result and the errors are the same."""
    chosen, settings = split_options(options)
    if settings.attempt_id:
        raise UsageError(
            "edl.run() was called in a worker of a job; call it in the program that starts the "
            'job, in a file under `if __name__ == "__main__":`'
        )
    if not sys.executable:
        raise UsageError("edl.run() cannot start workers: Python does not know its own program")
    check_name("host", settings.host)
    check_own_name()
    kwargs = {} if kwargs is None else kwargs
    check_call(func, args, kwargs)
    np = whole(np)
    spec = job_spec([sys.executable], np, settings, Path.cwd(), chosen.slots)
    slots = host_slots(spec, chosen.slots)
    policy = NO_POLICY
    if chosen.policy is not None:
        text, source = read_policy(chosen.policy, "edl.run")
        policy = checked_policy(text, source, spec.sizes, (), Path(spec.cwd))
    shared, own = chosen.directory, config.state_dir() / "functions"
    parent = own if shared is None else Path(shared).absolute()
    directory = parent / uuid.uuid4().hex[:12]
    try:
        directory.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(f"edl.run() cannot write the function into {parent}: {error}") from error
    with ExitStack() as stack:
        files = FunctionFiles(directory)
        removal = stack.enter_context(ExitStack())
        removal.callback(shutil.rmtree, files.directory, ignore_errors=True)
        script = files.write_function(func, args, kwargs)
        command = [sys.executable, str(script)]
        spec = job_spec(command, np, settings, Path.cwd(), chosen.slots)
        name = made_up_name(command) if chosen.name is None else check_name("job", chosen.name)
        hosts = settings.zookeeper or find_local() or start_local()
        here = this_host(settings, slots, hosts)
        session = stack.enter_context(open_session(hosts, settings))
        submission = prepare(session, name, settings.secret)
        new = create(session, submission, spec, {here.name: np}, policy)
        job = FunctionJob(new.store, files)
        display = _display(name, chosen.shows_workers)
        show = display.on_snapshot

        def on_snapshot(snapshot: Snapshot) -> None:
            job.observe(snapshot)
            if show is not None:
                show(snapshot)

        display = Display(display.output, on_snapshot)
        agent = submitter_agent(
            new.store, new.record, here, settings, display, replaced_events=new.replaced_events
        )
        ended = agent.result(agent.run())
        if ended.end in _GOES_ON:
            removal.pop_all()  # workers of other hosts need the function
        return job.results(agent.first_signal, ended)


def _display(job: str, shows_workers: bool) -> Display:
    screen = Console(highlight=False)
    if (display := notebook_display()) is None:
        return agent_display(job, screen, quiet=not shows_workers)
    line = NotebookLine(LiveLine(job), display)
    return Display(Output(screen, shows_workers=shows_workers), line.update)


class FunctionJob:
    def __init__(self, store: JobStore, files: FunctionFiles) -> None:
        self._store, self._files = store, files
        self._ring: tuple[str, ...] = ()  # the workers that train, or have trained to the end

    def observe(self, snapshot: Snapshot) -> None:
        if snapshot.generation is not None and snapshot.generation.members:
            self._ring = _ring_at_end(snapshot.generation, snapshot.job.finished_in)

    def results(self, number: signal.Signals | None, ended: AgentResult) -> list[Any]:
        if number is signal.SIGINT:
            raise KeyboardInterrupt(f"job {ended.job} was stopped by Ctrl-C at step {ended.step}")
        if number is not None:
            raise SystemExit(128 + number)
        if ended.end in _STOPPED:
            raise JobStopped(f"job {ended.job} was stopped at step {ended.step}: {ended.reason}")
        # Each worker of the last ring writes its result, or is gone, also on other hosts.
        deadline, waits = time.monotonic() + _OTHERS_S, ended.end is AgentEnd.FINISHED
        while waits and (missing := {w for w in self._ring if not self._files.has_result(w)}):
            try:
                living = {member.name for member in self._store.snapshot().members}
            except (CoordinationError, UnknownJob):
                break
            if not missing & living or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        found = self._files.results()
        # Workers end well without ZooKeeper, too, and then nobody writes that the job has finished.
        if not found or ended.end not in (AgentEnd.FINISHED, AgentEnd.ERROR):
            raise self._failure(ended)
        for failure in self._files.failures():
            if failure.after_training:
                why = f"the function has failed after the training, on {failure.worker}"
                raise JobFailed(f"job {ended.job} has finished, but {why}\n\n{failure.text}")
        if lacking := [worker for worker in self._ring if worker not in found]:
            warnings.warn(
                f"the results of job {ended.job} lack that of {', '.join(lacking)}: killed after "
                "the training, or its function has ended the process (sys.exit)",
                RuntimeWarning,
                stacklevel=4,  # the line that calls edl.run
            )
        return [result for _, result in found.values()]

    def _failure(self, ended: AgentResult) -> JobError:
        if ended.end in _GOES_ON:
            return JobError(
                f"{ended.reason}; job {ended.job} trains on elsewhere, and its results do not come "
                f"here: see `edl status {ended.job}`"
            )
        why = f"job {ended.job} {ended.end}: {ended.reason}"
        if ended.end is AgentEnd.FINISHED:
            why = (
                f"job {ended.job} has finished, but no worker has returned a result: each was "
                "killed after its training, or its function has ended the process (sys.exit)"
            )
        elif ended.end is not AgentEnd.FAILED:
            why = f"job {ended.job} has no results: {ended.reason}"
        failures = self._files.failures()
        return JobFailed("\n\n".join([why, *(one.text for one in failures[-1:])]))


def _ring_at_end(newest: Generation, finished_in: int) -> tuple[str, ...]:
    ids = newest.worker_ids
    if 0 < finished_in < newest.number:
        before = {member.id for member in newest.previous}
        ids = tuple(one for one in ids if one in before)
    return tuple(f"w{one}" for one in ids)
