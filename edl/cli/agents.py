"""The commands whose process is an agent of this host: `edl run`, `edl join`, `edl agent`.

With `--json` their last line of output says how the agent has ended, also after an error; programs
that start agents read it.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from edl import config
from edl.checkpoint.location import location
from edl.cli.common import (
    AddressOption,
    BorrowedFileOption,
    HostOption,
    InterfaceOption,
    MetricsPortOption,
    ZooKeeperOption,
    console,
    settings_of_agent,
)
from edl.cli.ending import ARGUMENT_ERROR, SENTENCES, complain, ending
from edl.client.changes import checked_policy
from edl.client.connection import choose_job, connected, in_session_of_job, open_session
from edl.client.submitting import (
    create,
    has_finished,
    host_slots,
    job_spec,
    made_up_name,
    prepare,
    same_job,
)
from edl.config import read_policy
from edl.errors import CheckpointError, EdlError, JobExists, UsageError
from edl.host.address import check_own_name
from edl.host.agent import Agent
from edl.host.command import check_command
from edl.host.host_agent import (
    agent_display,
    agent_of_run,
    joining_agent,
    submitter_agent,
    this_host,
)
from edl.host.process import AgentEnd, AgentResult, agent_exit_code, run_exit_code
from edl.host.process import transparent as run_through_edl
from edl.job.run import check_run_token
from edl.records import NO_POLICY, JobPolicy
from edl.spec import JobSettings, JobSpec, Sizes
from edl.zookeeper.access import Access
from edl.zookeeper.local_server import find_local, start_local
from edl.zookeeper.paths import check_name
from edl.zookeeper.session import Session

SlotsOption = Annotated[
    int | None,
    typer.Option("--slots", help="Workers that fit on this host. Default: the job's maximum."),
]
LastLineOption = Annotated[
    bool, typer.Option("--json", help="End with a line of JSON that says how the agent has ended.")
]


class LastLine:
    def __init__(self, job: str | None, run: str | None) -> None:
        # what the line says so far; at first an end by an error without a reason
        self.result = AgentResult(job, run)

    def knows(self, **values: Any) -> None:
        self.result = replace(self.result, **values)

    def run(
        self, agent: Agent, exit_code: Callable[[AgentEnd, int], int] | None = None
    ) -> typer.Exit:
        code = agent.run()
        self.result = agent.result(code)
        if exit_code is not None:
            self.knows(exit_code=exit_code(self.result.end, code))
        return typer.Exit(self.result.exit_code)

    def print(self) -> None:
        print(json.dumps(self.result.to_json()), flush=True)


@contextmanager
def last_line(as_json: bool, job: str | None = None, run: str | None = None) -> Iterator[LastLine]:
    """While entered, provide the last line of a command with an agent; print it at the end."""
    line = LastLine(job, run)
    if not as_json:
        yield line
        return
    try:
        yield line
    except typer.Exit:
        line.print()
        raise
    except SENTENCES as error:  # whose sentence is the reason in the line, too
        raise _with_error(line, error) from None


def _with_error(line: LastLine, error: BaseException) -> typer.Exit:
    reason, end, _ = ending(error)
    code = complain(error)
    line.knows(end=end, reason=reason, exit_code=code)
    line.print()
    return typer.Exit(code)


class AgentCommand(TyperCommand):
    """A command with an agent, which prints its last line also if its options cannot be parsed."""

    def own_words(self, args: Sequence[str]) -> Sequence[str]:
        """Return those of the words `args` that are for edl, and not of a user's command: all."""
        return args

    def prepared(self, args: list[str]) -> list[str]:
        """Return the words after the command's name as typer can parse them: `args` unchanged."""
        return args

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        as_json = "--json" in self.own_words(args)  # before typer takes the words away
        try:
            words: list[str] = super().parse_args(ctx, self.prepared(args))
        except (ARGUMENT_ERROR, EdlError) as error:
            if not as_json:
                raise
            raise _with_error(LastLine(None, None), error) from None
        return words


_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|`")


def with_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Return `verb` with a command line option added for each setting of a job that has one."""
    declared = {
        one.name: _option(one, hints[one.name])
        for kind, hints in ((kind, get_type_hints(kind)) for kind in (Sizes, JobSettings))
        for one in fields(kind)
        if one.metadata.get("option")
    }

    @wraps(verb)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in declared}
        verb(**values, given={name: value for name, value in given.items() if value is not None})

    own = inspect.signature(verb, eval_str=True)
    parameters = [one for one in own.parameters.values() if one.name != "given"]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in declared.items()
    ]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    return run


def _option(one: Field[Any], hint: Any) -> Any:
    """Return the command line option for one setting, as a type annotation for typer."""
    about: Mapping[str, Any] = one.metadata
    kind: type = next((one for one in (bool, int, float) if hint in (one, one | None)), str)
    help = _LINK.sub(lambda match: match[1] or "", about["help"])
    if kind is bool and one.default:
        # So such a help is an order, like "fork later workers".
        help = f"do not {help}"
    default = one.default if isinstance(one.default, str) else f"{one.default or 0:g}"
    shown = "" if kind is bool or not one.default else f" Default: {default}."
    option = about["option"]
    if kind is bool:
        option = f" /{option}" if one.default else f"{option}/"
    return Annotated[
        kind | None,
        typer.Option(
            option,
            metavar=about["metavar"] or None,
            help=f"{help[0].upper()}{help[1:]}.{shown}",
        ),
    ]


RESUME = "--resume"
AUTO, AUTO_ALIAS = f"{RESUME}=auto", f"{RESUME}-auto"
OPTIONS_OF_SIZE = ("-np", "--np", "--min-np", "--max-np")


@with_settings
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND…", help="For example: python train.py --lr 0.1")
    ],
    np: Annotated[
        int,
        typer.Option("-np", "--np", help="Workers to start with. Default: 1.", show_default=False),
    ] = 1,
    job: Annotated[
        str | None, typer.Option("--job", help="Name of the job. Default: made up.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", help="Workers that fit on this host. Default: --max-np if given, else -np."
        ),
    ] = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    metrics_port: MetricsPortOption = None,
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
        bool, typer.Option(AUTO, AUTO_ALIAS, help="The same if there is a checkpoint, else begin.")
    ] = False,
    resume_from: Annotated[
        str | None,
        typer.Option(
            "--resume-from",
            metavar="DIR",
            help="As --resume, from another directory than the script's. Also a URL.",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            "--policy", metavar="FILE.toml", help="The rule by which the job finds its own size."
        ),
    ] = None,
    transparent: Annotated[
        bool,
        typer.Option(
            "--transparent",
            help="COMMAND runs an unchanged script for plain Horovod. It sees --logical ranks, by "
            "default as many as --max-np, or -np.",
        ),
    ] = False,
    borrowed_file: BorrowedFileOption = None,
    zookeeper: ZooKeeperOption = None,
    as_json: LastLineOption = False,
    *,
    given: dict[str, Any],
) -> None:
    """Train COMMAND with -np workers; other workers may join and leave while the job runs.

    Ends with the exit code of the job. Ctrl-C ends the job after the step that runs. Options of
    `edl run` stand before COMMAND; what follows COMMAND belongs to it.
    """
    with last_line(as_json, job) as line:
        settings = settings_of_agent(
            host=host,
            address=address,
            network_interface=network_interface,
            metrics_port=metrics_port,
            zookeeper=zookeeper,
            borrowed_file=borrowed_file,
            resume=_resume(resume, resume_auto, resume_from),
            **given,
        )
        line.knows(host=settings.host)
        if transparent:
            command, settings = _transparent(command, np, slots, settings)
        raise _run(line, settings, command, np, job, slots, policy, or_join)


def _transparent(
    command: list[str], np: int, slots: int | None, settings: config.Config
) -> tuple[list[str], config.Config]:
    """Return the command and the settings of a job with an unchanged script for plain Horovod."""
    through = run_through_edl(command)
    if through is None:
        raise UsageError(
            f"--transparent runs a Python script, and the command begins with {command[0]!r}; for "
            "example: edl run --transparent -np 2 python train.py"
        )
    of_job = settings.job_settings
    if not of_job.logical:
        ranks = settings.sizes.max_np or max(np, slots or 0)
        settings = replace(settings, job_settings=replace(of_job, logical=ranks))
    return list(through), settings


def _run(
    line: LastLine,
    settings: config.Config,
    command: list[str],
    np: int,
    job: str | None,
    slots: int | None,
    policy: Path | None,
    or_join: bool,
) -> typer.Exit:
    spec = job_spec(command, np, settings, Path.cwd(), slots)
    slots = host_slots(spec, slots)
    if or_join and (job is None or settings.secret is None):
        raise UsageError(
            "--or-join needs --job and EDL_SECRET or --secret-file, the same on all hosts: take "
            "`openssl rand -hex 32` for the secret"
        )
    cwd = Path(spec.cwd)
    kept = NO_POLICY
    if policy is not None:
        kept = checked_policy(*read_policy(policy, "--policy"), spec.sizes, command, cwd)
    if behind := [word for word in command if word in OPTIONS_OF_SIZE]:
        _print(
            f"{behind[0]} stands behind the command, so the script gets it and edl does not; "
            "options of `edl run` stand before the command"
        )
    check_command(command, cwd, config.environment().get("PATH"))
    check_own_name()
    name = check_name("job", job) if job is not None else made_up_name(command)
    check_name("host", settings.host)
    line.knows(job=name)

    hosts = settings.zookeeper or find_local() or start_local()
    here = this_host(settings, slots, hosts)
    with open_session(hosts, settings) as session:
        submission = prepare(session, name, settings.secret)
        if or_join and has_finished(session, submission.access, _print):
            return _finished(line, name)
        try:
            new = create(session, submission, spec, {here.name: np}, kept)
        except JobExists:
            if not or_join:
                raise
            found = _join(session, submission.access, spec, settings, slots, kept)
            if found is None:
                return _finished(line, name)
            agent = found
        else:
            display = agent_display(name, console())
            agent = submitter_agent(
                new.store, new.record, here, settings, display, or_join, new.replaced_events
            )
        return line.run(agent, None if or_join else run_exit_code)


class RunCommand(AgentCommand):
    """The command `edl run`, which accepts `--resume` without a value and `--resume=auto`."""

    # Typer by itself supports only options that always or never have a value.

    def prepared(self, args: list[str]) -> list[str]:
        """Return the words `args` after `edl run`, with `--resume=auto` as `--resume-auto`."""
        own = self.own_words(args)
        known = [AUTO_ALIAS if word == AUTO else word for word in own]
        for word in known:
            if word.startswith(f"{RESUME}="):
                raise UsageError(
                    f"{word} is not understood; write {RESUME}, {AUTO} or {RESUME}-from DIR"
                )
        return [*known, *args[len(own) :]]

    def own_words(self, args: Sequence[str]) -> Sequence[str]:
        flags = {name for one in self.params if getattr(one, "is_flag", False) for name in one.opts}
        options = {name for one in self.params for name in one.opts}
        end = 0
        while end < len(args) and args[end].startswith("-") and args[end] != "--":
            end += 2 if args[end] in options - flags else 1
        return args[:end]


def _resume(newest: bool, auto: bool, directory: str | None) -> str | None:
    if newest + auto + (directory is not None) > 1:
        raise UsageError(f"give one of {RESUME}, {AUTO} and {RESUME}-from")
    if directory is not None:
        from edl.checkpoint.store import check_resumable  # imports NumPy: 0.1 s

        place = location(directory).absolute()
        if not place.is_dir():
            raise UsageError(f"cannot resume: there is no directory {directory}")
        try:
            check_resumable(place)
        except CheckpointError as error:  # before any worker is started
            raise UsageError(str(error)) from None
        return str(place)
    return "auto" if auto else "1" if newest else None


def _join(
    session: Session,
    own: Access,
    spec: JobSpec,
    settings: config.Config,
    slots: int,
    asked: JobPolicy,
) -> Agent | None:
    """Return the agent with which this host joins the running job that it could not create."""
    store, running = same_job(session, own, spec)
    if asked is not NO_POLICY and running.policy.text != asked.text:
        _print(
            f"job {own.job} has another policy, which stays; `edl policy {own.job} set "
            f"{asked.source}` changes it"
        )
    try:
        display = agent_display(own.job, console())
        return joining_agent(store, settings, display, slots, spec.np, ends_job=True)
    except UsageError:
        if not has_finished(session, own, _print):  # a moment ago it was not
            raise
        return None


def _finished(line: LastLine, name: str) -> typer.Exit:
    reason = f"job {name} has finished; another --job would start anew"
    _print(reason)
    line.knows(end=AgentEnd.FINISHED, exit_code=0, reason=reason)
    return typer.Exit(0)


def _print(message: str) -> None:
    typer.echo(f"edl: {message}")


def join(
    job: Annotated[
        str | None,
        typer.Option("--job", help="Name of the job; may be left out when one is running."),
    ] = None,
    slots: SlotsOption = None,
    np: Annotated[
        int | None,
        typer.Option(
            "-np",
            "--np",
            help="Workers to start here at once, as far as the job's maximum has room. Default: "
            "none, until `edl scale`.",
        ),
    ] = None,
    borrowed_file: BorrowedFileOption = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    metrics_port: MetricsPortOption = None,
    zookeeper: ZooKeeperOption = None,
    as_json: LastLineOption = False,
) -> None:
    """Offer this host's slots to a job. `edl scale` then starts workers in them, or -np at once.

    Ends with the job. Ctrl-C makes the workers of this host leave the job, which goes on.
    """
    with last_line(as_json, job) as line:
        settings = settings_of_agent(
            host=host,
            address=address,
            network_interface=network_interface,
            metrics_port=metrics_port,
            zookeeper=zookeeper,
            borrowed_file=borrowed_file,
        )
        line.knows(host=settings.host)
        check_name("host", settings.host)
        check_own_name()
        with connected(zookeeper) as session, in_session_of_job(choose_job(session, job)) as store:
            agent = joining_agent(store, settings, agent_display(store.name, console()), slots, np)
            end = line.run(agent)
        raise end


def agent(
    job: Annotated[str, typer.Option("--job", help="Name of the job.")],
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="TOKEN",
            help="Token of the run, which is one start of the job: `submit(..., run=TOKEN)`.",
        ),
    ],
    slots: SlotsOption = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    metrics_port: MetricsPortOption = None,
    zookeeper: ZooKeeperOption = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Show no output of workers: it is in their logs.")
    ] = False,
    as_json: LastLineOption = False,
) -> None:
    """Keep the workers that a job has on this host, in one run of the job and in no other.

    It never creates a job: when the run is over, or another one has its place, it ends. It ends
    with the code of a job that has finished or failed, and else with a code of its own for each
    end. SIGTERM makes the workers of this host leave the job, which goes on.
    """
    with last_line(as_json, job, run) as line:
        settings = settings_of_agent(
            host=host,
            address=address,
            network_interface=network_interface,
            metrics_port=metrics_port,
            zookeeper=zookeeper,
        )
        line.knows(host=settings.host)
        check_run_token(run)
        check_name("host", settings.host)
        check_own_name()
        with connected(zookeeper) as session, in_session_of_job(choose_job(session, job)) as store:
            display = agent_display(store.name, console(), quiet)
            one = agent_of_run(store, run, settings, display, slots)
            end = line.run(one, agent_exit_code)
        raise end
