"""`edl run`: start a job, with this host's agent in this process."""

from __future__ import annotations

import json
import logging
import re
import shlex
import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from edl import config
from edl.cli.common import (
    AddressOption,
    BorrowedFileOption,
    HostOption,
    InterfaceOption,
    ZooKeeperOption,
    check_own_name,
    choose_job,
    console,
    open_session,
)
from edl.cli.hosting import host_agent, joining_agent, this_host
from edl.cli.options import with_settings
from edl.cli.policy import read_policy
from edl.client.events import flat
from edl.client.policies import read
from edl.coordination.access import Access
from edl.coordination.job_store import JobStore
from edl.coordination.lifecycle import unlock
from edl.coordination.local_server import find_local, start_local
from edl.coordination.paths import check_name
from edl.coordination.secrets import announce, candidates, new_secret
from edl.coordination.session import Session
from edl.core.host.python_command import title
from edl.core.host.supervision import SupervisorLimits
from edl.core.job_spec import JobSpec
from edl.core.plural import counted, workers
from edl.core.records import NO_POLICY, Job, JobState
from edl.errors import AccessDenied, CheckpointError, EdlError, JobExists, UnknownJob, UsageError
from edl.launch.command import check_command
from edl.launch.workers import EVENTS, log_directory

logger = logging.getLogger(__name__)

POLL_S = 0.5  # for the end of a job that stops
LIMITS = SupervisorLimits()
RESUME = "--resume"
AUTO, AUTO_ALIAS = f"{RESUME}=auto", f"{RESUME}-auto"


@with_settings
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND…", help="For example: python train.py --lr 0.1")
    ],
    np: Annotated[int, typer.Option("-np", "--np", help="Workers to start with.")] = 1,
    job: Annotated[
        str | None,
        typer.Option("--job", help="Name of the job. Default: made up.", show_default=False),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", help="Workers that fit on this host. Default: --max-np.", show_default=False
        ),
    ] = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    or_join: Annotated[
        bool,
        typer.Option(
            "--or-join",
            help="Join the job with -np workers if it runs. So all hosts may run one and the same "
            "command; SIGTERM makes a host leave, and ends the job on the last one.",
        ),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the script's newest checkpoint.")
    ] = False,
    resume_auto: Annotated[
        bool,
        typer.Option(AUTO, AUTO_ALIAS, help="The same if there is a checkpoint, else begin."),
    ] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option(
            "--resume-from",
            metavar="DIR",
            help="As --resume, from another directory than the script's.",
            show_default=False,
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy",
            metavar="FILE.toml",
            help="The rule by which the job finds its own size.",
            show_default=False,
        ),
    ] = None,
    borrowed_file: BorrowedFileOption = None,
    zookeeper: ZooKeeperOption = None,
    *,
    given: dict[str, Any],
) -> None:
    """Train COMMAND with -np workers; others may join and leave while it runs.

    Ends with the job's result. Ctrl-C ends the job after the step that runs.
    """
    settings = config.load(
        host=host,
        address=address,
        network_interface=network_interface,
        zookeeper=zookeeper,
        borrowed_file=borrowed_file,
        resume=_resume(resume, resume_auto, resume_from),
        **given,
    )
    most = settings.sizes.max_np or max(np, slots or 0)
    least = settings.sizes.min_np
    if settings.sizes.max_np is None and least > most >= 1:  # nobody has said that max
        raise UsageError(
            f"--min-np is {least} and -np is {np}; start with -np {least} or more, or with a lower "
            "--min-np"
        )
    slots = most if slots is None else slots
    sizes = replace(settings.sizes, max_np=most)
    sizes.check(np)
    if slots < np:
        raise UsageError(
            f"-np is {np} and this host has {counted(slots, 'slot')}; raise --slots, or start with "
            f"-np {max(slots, 1)} and scale after `edl join` on another host"
        )
    if or_join and (job is None or settings.secret is None):
        raise UsageError(
            "--or-join needs --job and EDL_SECRET, the same on all hosts: take "
            "`openssl rand -hex 32` for the secret"
        )
    cwd = Path.cwd()
    kept = NO_POLICY
    if policy is not None:
        kept = read(*read_policy(policy), sizes, command, cwd)
    check_command(command, cwd, config.environment().get("PATH"))
    check_own_name()
    name = check_name("job", job) if job is not None else _made_up(title(command))
    check_name("host", settings.host)

    hosts = settings.zookeeper or find_local() or start_local()
    spec = JobSpec(tuple(command), np, sizes, settings.job_settings, str(cwd))
    job_record = Job(name=name, spec=spec, created=time.time())
    here = this_host(settings, slots, hosts)
    state = config.state_dir()
    earlier = [Access(name, one) for one in candidates(state, name, None)]
    with open_session(hosts, settings) as session:
        before = unlock(session, earlier).get(name)
        secret = settings.secret or (before.secret if before else new_secret())
        own = Access(name, secret)
        if or_join and _is_finished(session, own):
            raise _finished(name)
        announce(state, name, secret)
        session.identify(*earlier, own)  # an earlier job is replaced
        store = JobStore(session, name)
        events = _events_of(store) if before else ""
        try:
            store.create(job_record, {here.name: np}, policy=kept)
            _keep_events(events, state, name)  # the job of which they are was replaced
            greeting = f"job {name} starts with {workers(np)}; ZooKeeper is at {hosts}"
            agent = host_agent(
                store, settings, job_record, here, secret, greeting,
                np=np if or_join else 0, guest=or_join, ends_last=or_join, fresh=True,
            )  # fmt: skip
        except JobExists:
            if not or_join:
                raise
            store = choose_job(session, name, secret=secret)
            _check_ours(session, own)
            running = store.snapshot()
            _check_same(running.job, spec)
            if policy is not None and running.policy.text != kept.text:
                console().print(
                    f"edl: job {name} has another policy, which stays; `edl policy {name} set "
                    f"{policy}` changes it"
                )
            try:
                agent = joining_agent(store, settings, slots, np, ends_last=True)
            except UsageError:
                if not _is_finished(session, own):  # a moment ago it was not
                    raise
                raise _finished(name) from None
        code = agent.run()
    raise typer.Exit(code)


class Run(TyperCommand):
    """Takes ``--resume`` and ``--resume=auto``; an option of typer has a value always or never."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Before the words of the user's command, which are its own."""
        flags = {name for one in self.params if getattr(one, "is_flag", False) for name in one.opts}
        options = {name for one in self.params for name in one.opts}
        end = 0
        while end < len(args) and args[end].startswith("-") and args[end] != "--":
            end += 2 if args[end] in options - flags else 1
        own = [AUTO_ALIAS if word == AUTO else word for word in args[:end]]
        for word in own:
            if word.startswith(f"{RESUME}="):
                raise UsageError(
                    f"{word} is not understood; write {RESUME}, {AUTO} or {RESUME}-from DIR"
                )
        return super().parse_args(ctx, [*own, *args[end:]])


# What follows the first word that is not an option belongs to the user's command.
COMMAND = {"cls": Run, "context_settings": {"allow_interspersed_args": False}}


def _resume(newest: bool, auto: bool, directory: Path | None) -> str | None:
    """The setting ``resume``; None: as the environment says."""
    if newest + auto + (directory is not None) > 1:
        raise UsageError(f"give one of {RESUME}, {AUTO} and {RESUME}-from")
    if directory is not None and not directory.is_dir():
        raise UsageError(f"cannot resume: there is no directory {directory}")
    if directory is not None:
        from edl.checkpoint.store import check_resumable  # imports NumPy: 0.1 s

        try:
            check_resumable(directory.absolute())
        except CheckpointError as error:  # before any worker is started
            raise UsageError(str(error)) from None
        return str(directory.absolute())
    return "auto" if auto else "1" if newest else None


def _events_of(store: JobStore) -> str:
    """The events of a job that may be replaced, a line each."""
    try:
        return "".join(f"{json.dumps(flat(event))}\n" for _, event in store.events.read(-1))
    except EdlError as error:
        logger.warning("the events of the last run of job %s are lost: %s", store.name, error)
        return ""


def _keep_events(events: str, state: Path, job: str) -> None:
    """Write them beside the logs of the last run, which are put aside next."""
    if not events:
        return
    try:
        (log_directory(state, job, fresh=False) / EVENTS).write_text(events)
    except OSError as error:
        logger.warning("the events of the last run of job %s are lost: %s", job, error)


def _is_finished(session: Session, own: Access) -> bool:
    """Whether a job that was started with our secret has finished.

    The end of one that stops is waited for: it can be started anew then, and not joined now.

    Raises:
        AccessDenied: a job of that name runs, or has finished, with another secret.
    """
    job = _present(session, own)
    if job is not None and job.state is JobState.STOPPING:
        console().print(f"edl: job {job.name} stops; waiting for its end to start it anew")
        deadline = time.monotonic() + LIMITS.stop_limit_s(job) + LIMITS.stop_s
        while job is not None and job.state is JobState.STOPPING and time.monotonic() < deadline:
            time.sleep(POLL_S)
            job = _present(session, own)
    return job is not None and job.state is JobState.FINISHED


def _present(session: Session, own: Access) -> Job | None:
    """The job of that name, if there is one. Raises as :func:`_is_finished`."""
    try:
        job = choose_job(session, own.job, secret=own.secret).snapshot().job
    except AccessDenied:
        raise
    except UnknownJob:
        return None
    if not job.state.over or job.state is JobState.FINISHED:  # any other is replaced
        _check_ours(session, own)
    return job


def _check_ours(session: Session, own: Access) -> None:
    """Refuse a job that another secret of this user opens.

    What we wrote there would be closed to its processes: they would take the job for lost.
    """
    if session.access != own:
        raise AccessDenied(
            own.job,
            f"job {own.job} has another secret than this host's EDL_SECRET; with --or-join all "
            "hosts have the same EDL_SECRET, or choose another --job",
        )


def _check_same(running: Job, asked: JobSpec) -> None:
    """Refuse to join a job that was not started by this very command, in this directory."""
    for what, (theirs, mine) in running.spec.differences(asked).items():
        raise UsageError(
            f"job {running.name} runs with {what} {_shown(theirs)}, not {_shown(mine)}; with "
            "--or-join all hosts run the same `edl run`"
        )


def _finished(name: str) -> typer.Exit:
    console().print(f"edl: job {name} has finished; another --job would start anew")
    return typer.Exit(0)


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return repr(shlex.join(map(str, value))) if isinstance(value, tuple) else str(value)


def _made_up(script: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem).strip("-_")[:40] or "job"
    return f"{stem}-{uuid.uuid4().hex[:4]}"
