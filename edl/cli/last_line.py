"""Print the last line of `edl run`, `edl join` and `edl agent` with `--json`: how the agent ended.

:func:`last_line` does so. The line is the last one of standard output, also after an error.
Programs that start agents read it. The sentence of an error goes to standard error, as without
`--json`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from edl.cli.ending import ARGUMENT_ERROR, SENTENCES, complain, ending
from edl.errors import EdlError
from edl.host.agent import Agent
from edl.host.process import AgentEnd, AgentResult

LastLineOption = Annotated[
    bool,
    typer.Option("--json", help="End with a line of JSON that says how the agent has ended."),
]


class LastLine:
    """The last line that a command with an agent prints with `--json`."""

    def __init__(self, job: str | None, run: str | None) -> None:
        # what the line says so far; at first an end by an error without a reason
        self.result = AgentResult(job, run)

    def knows(self, **values: Any) -> None:
        """Set the fields of the line, an `AgentResult`, that are given by name."""
        self.result = replace(self.result, **values)

    def run(
        self, agent: Agent, exit_code: Callable[[AgentEnd, int], int] | None = None
    ) -> typer.Exit:
        """Run an agent to its end, and return the exception that ends the command with its code."""
        code = agent.run()
        self.result = agent.result(code)
        if exit_code is not None:
            self.knows(exit_code=exit_code(self.result.end, code))
        return typer.Exit(self.result.exit_code)

    def print(self) -> None:
        """Print the line, as JSON, to standard output."""
        print(json.dumps(self.result.to_json()), flush=True)


@contextmanager
def last_line(as_json: bool, job: str | None = None, run: str | None = None) -> Iterator[LastLine]:
    """While entered, provide the last line of a command with an agent; print it at the end.

    It is printed when the block raises ``typer.Exit``, or one of :data:`SENTENCES`: then the
    error's sentence is the reason in the line, and is printed to standard error, too, and
    ``typer.Exit`` with the exit code is raised in its place. A block that raises neither prints no
    line.

    Args:
        as_json: whether the line is printed at all; if not, errors pass through this block.
        job: the name of the job; None if it is not known yet.
        run: the token of the run of the job; None if it is not known yet.
    """
    line = LastLine(job, run)
    if not as_json:
        yield line
        return
    try:
        yield line
    except typer.Exit:
        line.print()
        raise
    except SENTENCES as error:
        raise _with_error(line, error) from None


def _with_error(line: LastLine, error: BaseException) -> typer.Exit:
    """Print the sentence of `error`, and `line` with its reason; return the end of the command."""
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
        """Parse the options in the words `args` into `ctx`, typer's context of the command."""
        as_json = "--json" in self.own_words(args)  # before typer takes the words away
        try:
            words: list[str] = super().parse_args(ctx, self.prepared(args))
        except (ARGUMENT_ERROR, EdlError) as error:
            if not as_json:
                raise
            raise _with_error(LastLine(None, None), error) from None
        return words
