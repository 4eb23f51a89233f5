"""The command line `edl`: :func:`main` runs a command, and prints an error as one sentence.

Only a bug is shown as a traceback. Exit codes: 0 done, 1 an error, 2 an impossible request, 94 no
such job, 95 the host has an agent, 130 interrupted; `edl run` and `edl join` end with the code of
the job, `edl agent` with codes of its own (:mod:`edl.host.process`).
"""

from __future__ import annotations

import io
import logging
import shutil
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from edl import config
from edl.cli.ending import SENTENCES, complain
from edl.cli.verbs import LISTED, REMOVED, VERBS
from edl.errors import ConfigError
from edl.host.signals import child_ends_kept

# Names of older versions, which work for one release more and are in no help.
OLD_VERBS = {verb.was: name for name, verb in VERBS.items() if verb.was}
OLD_OPTIONS = {"--lent-file": "--borrowed-file"}
MIN_COLUMNS = 52  # that typer writes for by itself


class Verbs(TyperGroup):
    """The group of all commands of `edl`, which imports a command's module when it is called."""

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of a call, as typer does; texts fit a terminal of under 52 columns."""
        columns = shutil.get_terminal_size().columns
        if columns < MIN_COLUMNS:
            extra.setdefault("terminal_width", columns - 2)
        return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = OLD_VERBS.get(cmd_name, cmd_name)
        return command_named(name) if name in VERBS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return what typer does; an unknown verb ends with what to type in its place."""
        name = args[0]
        if name in REMOVED:
            ctx.fail(f"there is no `edl {name}` any more: {REMOVED[name]}")
        near = [] if name in VERBS or name in OLD_VERBS else get_close_matches(name, VERBS, n=1)
        if near and not name.startswith("-"):
            ctx.fail(f"no such command {name!r}, but there is `edl {near[0]}`")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from edl.cli.machine import items

        return items({name: verb.summary for name, verb in VERBS.items()}, incomplete)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, VERBS))
        for title, verbs in LISTED.items():
            with formatter.section(title):
                formatter.write_dl([(verb.name.ljust(width), verb.summary) for verb in verbs])


@cache
def command_named(name: str) -> Any:
    """Import a command of edl, add the options that all commands share, and return it."""
    verb = VERBS[name]
    group = typer.Typer(
        help=verb.help or None,
        no_args_is_help=bool(verb.verbs),
        add_completion=False,
        rich_markup_mode=None,
    )
    for each in verb.verbs or (verb,):
        parser: Any = _found(each.parser) if each.parser else None
        settings = dict(each.settings) or None
        add = group.command(each.name, cls=parser, context_settings=settings, epilog=each.epilog())
        add(_found(each.calls))
    command: Any = typer.main.get_command(group)
    command.name = name
    for one in (command, *getattr(command, "commands", {}).values()):
        _complete_values(one)
        _let_know_secret(one)
    _take_job_by_option(command)
    _take_old_options(command)
    return command


def _found(named: str) -> Any:
    module, _, attribute = named.partition(":")
    return getattr(import_module(f"edl.cli.{module}"), attribute)


def _complete_values(command: Any) -> None:
    for parameter in command.params:
        word = parameter.metavar or ""
        word = "CLUSTER" if "--cluster" in parameter.opts else word
        word = "JOB" if "--job" in parameter.opts else word
        if any(known in word for known in ("JOB", "EVENT", "CLUSTER")):

            def complete(_context: Any, incomplete: str, word: str = word) -> list[Any]:
                from edl.cli.machine import items, known_values

                return items(known_values(word), incomplete)

            parameter.shell_complete = complete


def _take_old_options(command: Any) -> None:
    known = {name: one for one in command.params for name in one.opts}
    for old, new in OLD_OPTIONS.items():
        if new in known:
            variable = f"EDL_{new[2:].replace('-', '_').upper()}"
            command.params.append(_option(old, variable, hidden=True))


def _option(name: str, variable: str, **named: Any) -> Any:
    """Return an option that sets a variable; typer makes it, as its constructors change."""
    one = typer.Typer(add_completion=False)

    def take(value: str | None) -> None:
        if value is not None:
            config.set_environment({variable: value})

    @one.command()
    def _command(
        value: str | None = typer.Option(None, name, callback=take, expose_value=False, **named),
    ) -> None: ...

    option = typer.main.get_command(one).params[0]
    option.name = variable.lower()  # the parser keeps values by name
    return option


def _take_job_by_option(command: Any) -> None:
    """Let `--job JOB` mean the same as the argument `JOB` of `command`, a command of typer."""
    if any("--job" in one.opts for one in command.params) or not any(
        "JOB" in (one.metavar or "") for one in command.params if one.param_type_name == "argument"
    ):
        return
    parse = command.parse_args

    def parse_args(context: Any, words: list[str]) -> list[str]:
        for at, word in enumerate(words):
            if word == "--":
                break
            if word == "--job" and at + 1 < len(words):
                words = [words[at + 1], *words[:at], *words[at + 2 :]]
                break
            if word.startswith("--job="):
                words = [word.partition("=")[2], *words[:at], *words[at + 1 :]]
                break
        parsed: list[str] = parse(context, words)
        return parsed

    command.parse_args = parse_args


def _let_know_secret(command: Any) -> None:
    if not any("--zookeeper" in parameter.opts for parameter in command.params):
        return
    of_cluster = any("--cluster" in parameter.opts for parameter in command.params)
    takes_jobs = not of_cluster or any("'':" in (p.help or "") for p in command.params)
    what = " or ".join(["job's"] * takes_jobs + ["cluster's"] * of_cluster)
    text = (
        f"A file or pipe with the {what} secret, for example copied from the host of "
        f"`edl {'run' if takes_jobs else 'cluster start'}`. "
        "Default: EDL_SECRET_FILE or EDL_SECRET, or what this user's state directory has."
    )
    command.params.append(_option("--secret-file", "EDL_SECRET_FILE", metavar="PATH", help=text))


app = typer.Typer(
    name="edl",
    cls=Verbs,
    help="Elastic training for Horovod: workers join and leave while the others train on.",
    epilog="`edl COMMAND --help` shows the options of a command, with examples.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log decisions (or set EDL_LOG=DEBUG).")
    ] = False,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    configure_logging(verbose)
    if version:
        typer.echo(f"edl {metadata.version('edl-horovod')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line of `edl` in this process, and return its exit code."""

    def run() -> int:
        if "_EDL_COMPLETE" in config.environment():
            from edl.cli.machine import completion_begins

            completion_begins()
        code = app(args=list(arguments), prog_name="edl", standalone_mode=False)
        return code if isinstance(code, int) else 0

    return run_command(run)


def run_command(command: Callable[[], int]) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        with child_ends_kept():
            return command()
    except SENTENCES as error:
        return complain(error)


def configure_logging(verbose: bool = False) -> None:
    """Configure Python's logging to standard error; a command calls it once at its start."""
    level = "INFO" if verbose else config.environment().get("EDL_LOG") or "WARNING"
    if level.upper() not in logging.getLevelNamesMapping():
        raise ConfigError("EDL_LOG", f"EDL_LOG is {level!r}; use DEBUG, INFO, WARNING or ERROR")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


if __name__ == "__main__":
    main()
