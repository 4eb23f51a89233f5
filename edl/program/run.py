"""Start a job whose script is a function, run this host's agent, and return the results.

The main entry is :func:`run`, for ``edl.run``. It makes the calls of the command `edl run`.
"""

from __future__ import annotations

import shutil
import signal
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from edl import config
from edl.client.connection import open_session
from edl.client.policies import checked_policy
from edl.client.submitting import create, host_slots, job_spec, made_up_name, prepare
from edl.coordination.job_store import JobStore
from edl.coordination.local_server import find_local, start_local
from edl.coordination.paths import check_name
from edl.core.host.exit_codes import AgentEnd, AgentResult
from edl.core.job.placement import whole
from edl.core.job_spec import JobSpec
from edl.core.records import NO_POLICY, Generation, JobPolicy
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, JobError, JobFailed, JobStopped, UnknownJob, UsageError
from edl.launch.address import check_own_name
from edl.launch.host_agent import Display, submitter_agent, this_host
from edl.launch.live import LiveLine, agent_display
from edl.launch.output import Output
from edl.policy_source import read_policy
from edl.program.function_files import FunctionFiles
from edl.program.notebook_line import NotebookLine, notebook_display
from edl.program.options import check_call, split_options

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
    _check_place(settings)
    kwargs = {} if kwargs is None else kwargs
    check_call(func, args, kwargs)
    np = whole(np)
    spec = job_spec([sys.executable], np, settings, Path.cwd(), chosen.slots)
    slots = host_slots(spec, chosen.slots)
    policy = _policy(chosen.policy, spec)
    with ExitStack() as stack:
        files = FunctionFiles(_new_directory(chosen.directory))
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
        display = job.seen_by(_display(name, chosen.shows_workers))
        agent = submitter_agent(
            new.store, new.record, here, settings, display, replaced_events=new.replaced_events
        )
        ended = agent.result(agent.run())
        if ended.end in _GOES_ON:
            removal.pop_all()  # workers of other hosts need the function
        return job.results(agent.first_signal, ended)


def _policy(given: str | Path | None, spec: JobSpec) -> JobPolicy:
    """Return the policy of the job from its file or text `given`; None: the job has none."""
    if given is None:
        return NO_POLICY
    text, source = read_policy(given, "edl.run")
    return checked_policy(text, source, spec.sizes, (), Path(spec.cwd))


def _check_place(settings: config.Config) -> None:
    """Raise a UsageError if this process cannot start a job."""
    if settings.attempt_id:
        raise UsageError(
            "edl.run() was called in a worker of a job; call it in the program that starts the "
            'job, in a file under `if __name__ == "__main__":`'
        )
    if not sys.executable:
        raise UsageError("edl.run() cannot start workers: Python does not know its own program")
    check_name("host", settings.host)
    check_own_name()


def _new_directory(shared: str | Path | None) -> Path:
    """Make a directory for one function in `shared`; None: in this user's state directory."""
    parent = config.state_dir() / "functions" if shared is None else Path(shared).absolute()
    directory = parent / uuid.uuid4().hex[:12]
    try:
        directory.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(f"edl.run() cannot write the function into {parent}: {error}") from error
    return directory


def _display(job: str, shows_workers: bool) -> Display:
    """Return where the job is shown: a notebook's cell, or standard output as by `edl run`."""
    screen = Console(highlight=False)
    if (display := notebook_display()) is None:
        return agent_display(job, screen, quiet=not shows_workers)
    line = NotebookLine(LiveLine(job), display)
    return Display(Output(screen, shows_workers=shows_workers), line.update)


class FunctionJob:
    """The job that this process has started, as seen from its end."""

    def __init__(self, store: JobStore, files: FunctionFiles) -> None:
        self._store, self._files = store, files
        self._ring: tuple[str, ...] = ()  # the workers that train, or have trained to the end

    def seen_by(self, display: Display) -> Display:
        """Return a display that shows what `display` shows, and lets this object see the ring."""

        def on_snapshot(snapshot: Snapshot) -> None:
            if snapshot.generation is not None and snapshot.generation.members:
                self._ring = _ring_at_end(snapshot.generation, snapshot.job.finished_in)
            if display.on_snapshot is not None:
                display.on_snapshot(snapshot)

        return Display(display.output, on_snapshot)

    def results(self, number: signal.Signals | None, ended: AgentResult) -> list[Any]:
        """Return the results by rank, or raise the error that says how the job has ended."""
        if number is signal.SIGINT:
            raise KeyboardInterrupt(f"job {ended.job} was stopped by Ctrl-C at step {ended.step}")
        if number is not None:
            raise SystemExit(128 + number)
        if ended.end in _STOPPED:
            raise JobStopped(f"job {ended.job} was stopped at step {ended.step}: {ended.reason}")
        if ended.end is AgentEnd.FINISHED:
            self._wait_for_other_hosts()
        found = self._files.results()
        # Workers end well without ZooKeeper, too, and then nobody writes that the job has finished.
        if not found or ended.end not in (AgentEnd.FINISHED, AgentEnd.ERROR):
            raise self._failure(ended)
        for failure in self._files.failures():
            if failure.after_training:
                why = f"the function has failed after the training, on {failure.worker}"
                raise JobFailed(f"job {ended.job} has finished, but {why}\n\n{failure.text}")
        if missing := [one for one in self._ring if one not in found]:
            warnings.warn(
                f"the results of job {ended.job} lack that of {', '.join(missing)}: killed after "
                "the training, or its function has ended the process (sys.exit)",
                RuntimeWarning,
                stacklevel=4,  # the line that calls edl.run
            )
        return [result for _, result in found.values()]

    def _failure(self, ended: AgentResult) -> JobError:
        """Return the error of a job that has no results, with the newest traceback of a worker."""
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

    def _wait_for_other_hosts(self) -> None:
        """Wait until each worker of the last ring has written its result, or is gone."""
        deadline = time.monotonic() + _OTHERS_S
        while missing := {one for one in self._ring if not self._files.has_result(one)}:
            try:
                living = {member.name for member in self._store.snapshot().members}
            except (CoordinationError, UnknownJob):
                return
            if not missing & living or time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)


def _ring_at_end(newest: Generation, finished_in: int) -> tuple[str, ...]:
    """Return the names of the workers that have trained to the end of the job, or train now."""
    ids = newest.worker_ids
    if 0 < finished_in < newest.number:
        before = {member.id for member in newest.previous}
        ids = tuple(one for one in ids if one in before)
    return tuple(f"w{one}" for one in ids)
