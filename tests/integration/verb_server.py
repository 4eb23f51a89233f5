"""Forks a process for each `edl` verb that :class:`verbs.Verbs` writes to its standard input.

Its arguments are the names of the verbs whose modules it imports first.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO


def serve(asking: TextIO, answering: TextIO) -> None:
    for line in asking:
        words, directory, environment, timeout_s, place = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(Path(place) / name, os.O_WRONLY | os.O_CREAT), number)
            _run(words)
        answering.write(json.dumps(_code(pid, timeout_s)) + "\n")
        answering.flush()


def _run(words: Sequence[str]) -> None:
    from edl.cli.main import invoke

    sys.argv = ["edl", *words]
    code = 1
    try:
        code = invoke(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _code(pid: int, timeout_s: float) -> int | None:
    file = os.pidfd_open(pid)
    ended, _, _ = select.select([file], [], [], timeout_s)
    os.close(file)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    import importlib

    from edl.cli.verbs import every_verb

    asking = os.fdopen(os.dup(0), "r")
    answering = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    importlib.import_module("edl.cli.main")
    for typed, verb in every_verb():
        if typed.partition(" ")[0] in sys.argv[1:]:
            importlib.import_module(f"edl.cli.{verb.calls.partition(':')[0]}")
    serve(asking, answering)
