"""`edl run`: start a job; the agent of this host runs in this process."""

from __future__ import annotations

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
    console,
)
from edl.cli.live import agent_display
from edl.cli.options import with_settings
from edl.cli.policy import read_policy
from edl.client.connection import open_session
from edl.client.joining import has_finished, same_job
from edl.client.policies import checked_policy
from edl.client.submitting import create, job_spec, made_up_name, prepare
from edl.coordination.access import Access
from edl.coordination.local_server import find_local, start_local
from edl.coordination.paths import check_name
from edl.coordination.session import Session
from edl.core.job_spec import JobSpec
from edl.core.plural import counted
from edl.core.records import NO_POLICY, JobPolicy
from edl.errors import CheckpointError, JobExists, UsageError
from edl.launch.agent import Agent
from edl.launch.command import check_command
from edl.launch.host_agent import joining_agent, submitter_agent, this_host

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
            "--slots",
            help="Workers that fit on this host. Default: --max-np if given, else -np.",
            show_default=False,
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
    """Train COMMAND with -np workers; other workers may join and leave while the job runs.

    Ends with the exit code of the job. Ctrl-C ends the job after the step that runs.
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
    spec = job_spec(command, np, settings, Path.cwd(), slots)
    slots = _slots_of(spec, slots)
    if or_join and (job is None or settings.secret is None):
        raise UsageError(
            "--or-join needs --job and EDL_SECRET or --secret-file, the same on all hosts: take "
            "`openssl rand -hex 32` for the secret"
        )
    cwd = Path(spec.cwd)
    kept = NO_POLICY
    if policy is not None:
        kept = checked_policy(*read_policy(policy), spec.sizes, command, cwd)
    check_command(command, cwd, config.environment().get("PATH"))
    check_own_name()
    name = check_name("job", job) if job is not None else made_up_name(command)
    check_name("host", settings.host)

    hosts = settings.zookeeper or find_local() or start_local()
    here = this_host(settings, slots, hosts)
    with open_session(hosts, settings) as session:
        submission = prepare(session, name, settings.secret)
        if or_join and has_finished(session, submission.access, _print):
            raise _finished(name)
        try:
            new = create(session, submission, spec, {here.name: np}, kept)
        except JobExists:
            if not or_join:
                raise
            agent = _join(session, submission.access, spec, settings, slots, kept)
        else:
            display = agent_display(name)
            agent = submitter_agent(
                new.store, new.record, here, settings, display, or_join, new.replaced_events
            )
        code = agent.run()
    raise typer.Exit(code)


class RunCommand(TyperCommand):
    """The command `edl run`, which accepts ``--resume`` without a value and ``--resume=auto``.

    Typer by itself supports only options that always or never have a value.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options of `edl run`, which end where the user's own command begins.

        Args:
            ctx: the context of typer.
            args: the words after `edl run`.

        Returns:
            The words that were not parsed, as the method of typer returns them.

        Raises:
            UsageError: ``--resume`` has a value other than auto.
        """
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
COMMAND = {"cls": RunCommand, "context_settings": {"allow_interspersed_args": False}}


def _resume(newest: bool, auto: bool, directory: Path | None) -> str | None:
    """Return the value of the setting ``resume`` that three options give together.

    Args:
        newest: whether ``--resume`` was given.
        auto: whether ``--resume=auto`` was given.
        directory: the directory of ``--resume-from``; None if it was not given.

    Returns:
        "1", "auto" or the directory; None if no option was given, so that the environment decides.

    Raises:
        UsageError: more than one option was given, or the directory has no checkpoint to continue
            from.
    """
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


def _slots_of(spec: JobSpec, slots: int | None) -> int:
    """Return how many workers fit on this host: ``slots``, or the job's maximum if it is None.

    ``spec`` is the specification of the job.

    Raises:
        UsageError: fewer workers fit than the job starts with.
    """
    if slots is None:
        slots = spec.sizes.max_np or spec.np
    if slots < spec.np:
        raise UsageError(
            f"-np is {spec.np} and this host has {counted(slots, 'slot')}; raise --slots, or start "
            f"with -np {max(slots, 1)} and scale after `edl join` on another host"
        )
    return slots


def _join(
    session: Session,
    own: Access,
    spec: JobSpec,
    settings: config.Config,
    slots: int,
    asked: JobPolicy,
) -> Agent:
    """Return the agent with which this host joins the running job that it could not create.

    Args:
        session: the ZooKeeper session.
        own: the name of the job and this host's secret.
        spec: the specification of the job that this host would have created.
        settings: the settings of this process.
        slots: the number of workers that fit on this host.
        asked: the policy that this host would have given the job; NO_POLICY if none was asked for.

    Raises:
        typer.Exit: the job has finished in the meantime; the exit code is 0.
    """
    store, running = same_job(session, own, spec)
    if asked is not NO_POLICY and running.policy.text != asked.text:
        _print(
            f"job {own.job} has another policy, which stays; `edl policy {own.job} set "
            f"{asked.source}` changes it"
        )
    try:
        return joining_agent(store, settings, agent_display(own.job), slots, spec.np, ends_job=True)
    except UsageError:
        if not has_finished(session, own, _print):  # a moment ago it was not
            raise
        raise _finished(own.job) from None


def _finished(name: str) -> typer.Exit:
    """Print that the job ``name`` has finished; return the exception that ends with code 0."""
    _print(f"job {name} has finished; another --job would start anew")
    return typer.Exit(0)


def _print(message: str) -> None:
    """Print a message of edl to standard output."""
    console().print(f"edl: {message}")
