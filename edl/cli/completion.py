"""`edl completion`: print a script with which a shell completes commands of `edl` at Tab.

The script calls `edl` with the environment variable :data:`VARIABLE`; :func:`completion_begins`
prepares typer for the answer, and :func:`known_values` returns the values of some parameters.
"""

from __future__ import annotations

from enum import StrEnum
from importlib import import_module
from typing import Annotated, Any

import typer

from edl import config
from edl.errors import ConfigError
from edl.events import EventKind
from edl.zookeeper.access import CLUSTERS, JOBS, known_names

VARIABLE = "_EDL_COMPLETE"
_TYPER: Any = import_module("typer.completion")  # it re-exports what is used here


class Shell(StrEnum):
    """A shell for which there is a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that shall complete.")],
) -> None:
    """Print a script with which a shell completes commands, options, jobs and events at Tab.

    Names of jobs are those that were started or joined by this user on this machine, so that no
    ZooKeeper is asked.
    """
    script = _TYPER.get_completion_script(prog_name="edl", complete_var=VARIABLE, shell=shell.value)
    typer.echo(script)


def completion_begins() -> None:
    """Let typer know the shells, before it answers one that asks for completions."""
    _TYPER.completion_init()


def items(values: dict[str, str], incomplete: str) -> list[Any]:
    """Return the completions among `values` for the word that was begun with `incomplete`."""
    item: Any = _TYPER.shell_completion.CompletionItem
    return [item(one, help=text) for one, text in values.items() if one.startswith(incomplete)]


def known_values(metavar: str) -> dict[str, str]:
    """Return the values of a parameter, each with an empty help text, without asking ZooKeeper."""
    if "EVENT" in metavar:
        return {str(kind): "" for kind in EventKind}
    try:
        names = known_names(config.state_dir(), CLUSTERS if "CLUSTER" in metavar else JOBS)
    except (ConfigError, OSError):  # this user has no state directory
        return {}
    return dict.fromkeys(names, "")
