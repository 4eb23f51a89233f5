"""`edl`: the command line's entry. An error is one sentence on standard error, never a traceback.

Exit codes: 0 done, 1 an error, 2 asked for something impossible, 130 interrupted; `edl run` and
`edl join` end with the code of the job.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Annotated, Any

import typer

from edl import config
from edl.cli import (
    chaos,
    checkpoint,
    drain,
    events,
    join,
    leader,
    migrate,
    profile,
    run,
    scale,
    status,
    stop,
    zookeeper,
)
from edl.errors import ConfigError, EdlError, UsageError

# typer brings its own copy of click since 0.26; this is the base of its usage errors in any case.
_ArgumentError: Any = typer.BadParameter.__base__

app = typer.Typer(
    name="edl",
    help="Elastic training for Horovod: workers join and leave while the others train on.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# What follows the first word that is not an option belongs to the user's command.
app.command("run", cls=run.Run, context_settings={"allow_interspersed_args": False})(run.run)
app.command("join")(join.join)
app.command("status")(status.status)
app.command("scale")(scale.scale)
app.command("drain")(drain.drain)
app.command("migrate")(migrate.migrate)
app.command("profile")(profile.profile)
app.command("stop")(stop.stop)
app.command("events")(events.events)
app.command("leader")(leader.leader)
app.command("chaos")(chaos.chaos)
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(zookeeper.app, name="zookeeper")


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


def _lazily(module: str, function: str) -> Callable[[typer.Context], None]:
    """A verb whose module is imported when it is called; it reads its own arguments."""

    def verb(context: typer.Context) -> None:
        sub = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        sub.command()(getattr(import_module(module), function))
        code = sub(args=context.args, prog_name=context.command_path, standalone_mode=False)
        raise typer.Exit(code if isinstance(code, int) else 0)

    return verb


_OWN_ARGUMENTS = {
    "allow_extra_args": True,
    "ignore_unknown_options": True,
    "help_option_names": [],
}
app.command(
    "doctor", context_settings=_OWN_ARGUMENTS, help="Check this machine and say what is missing."
)(_lazily("edl.cli.doctor", "doctor"))
app.command(
    "build-horovod",
    context_settings=_OWN_ARGUMENTS,
    help="Build Horovod 0.28.1 for today's PyTorch and TensorFlow, and install it.",
)(_lazily("edl.cli.build_horovod", "build_horovod"))


def main() -> None:
    """The console script."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""

    def run() -> int:
        code = app(args=list(arguments), prog_name="edl", standalone_mode=False)
        return code if isinstance(code, int) else 0

    return guarded(run)


def guarded(command: Callable[[], int]) -> int:
    """The exit code of a command; that of an error, after its sentence."""
    try:
        return command()
    except _ArgumentError as error:
        return _complain(_sentence(error), 2)
    except UsageError as error:
        return _complain(str(error), 2)
    except EdlError as error:
        return _complain(str(error), 1)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output is gone (`edl events | head`); let nothing try to flush to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        return _complain(str(error), 1)


def _sentence(error: Any) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "edl"
    message: str = error.format_message().rstrip(".")
    return f"{message[:1].lower()}{message[1:]}; see `{path} --help`"


def _complain(sentence: str, code: int) -> int:
    print(f"edl: {sentence}", file=sys.stderr)
    return code


def configure_logging(verbose: bool = False) -> None:
    """Log as asked for; to be called once, by the command that was started.

    Raises:
        ConfigError: EDL_LOG is no level.
    """
    level = "INFO" if verbose else config.environment().get("EDL_LOG") or "WARNING"
    if level.upper() not in logging.getLevelNamesMapping():
        raise ConfigError("EDL_LOG", f"EDL_LOG is {level!r}; use DEBUG, INFO, WARNING or ERROR")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


if __name__ == "__main__":
    main()
