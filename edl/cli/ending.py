"""Print the error that has ended a command as one sentence, and say which exit code it gives.

:func:`complain` does so. The module imports nothing of a job's processes, because `edl simulate`,
which has none, uses it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from edl.errors import EdlError
from edl.host.process import EXIT_CODES, INTERRUPTED, AgentEnd, end_of_error

# typer brings its own copy of click since 0.26; this is the base of its usage errors in any case.
ARGUMENT_ERROR: Any = typer.BadParameter.__base__
SENTENCES = (ARGUMENT_ERROR, EdlError, KeyboardInterrupt, typer.Abort, OSError)
"""The exceptions that end a command with a sentence and an exit code, see :func:`complain`."""


def complain(error: BaseException) -> int:
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is to try to flush to it
        return 1
    sentence, _, code = ending(error)
    print(f"edl: {sentence}", file=sys.stderr)
    return code


def ending(error: BaseException) -> tuple[str, AgentEnd, int]:
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", AgentEnd.PREEMPTED, INTERRUPTED
    if isinstance(error, ARGUMENT_ERROR):
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "edl"
        message: str = error.format_message().rstrip(".")
        sentence = f"{message[:1].lower()}{message[1:]}; see `{path} --help`"
        return sentence, AgentEnd.REFUSED, EXIT_CODES[AgentEnd.REFUSED]
    end = end_of_error(error) if isinstance(error, EdlError) else AgentEnd.ERROR
    return str(error), end, EXIT_CODES[end]
