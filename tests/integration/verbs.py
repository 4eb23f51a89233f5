"""`edl` verbs in processes of their own that need not import edl: they are forked by one that has.

The import is three quarters of what a verb costs. What a verb reads of its surroundings (arguments,
environment, directory, output) it has as if it were started anew; only its parent is another one.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

# They ask a job and end. Those that start processes, or stay, are started as users do.
SHORT = {
    "checkpoint",
    "delete",
    "drain",
    "events",
    "borrow",
    "leader",
    "logs",
    "migrate",
    "policy",
    "profile",
}
SHORT |= {"reclaim", "scale", "status", "stop"}
SHORT |= {"cluster", "submit", "list", "show", "wait", "halt", "resume", "priority", "undrain"}
LONG = ("cluster", "start")


class Verbs:
    """The process that forks, started with the first verb."""

    def __init__(self) -> None:
        self._path = os.environ.get("PYTHONPATH")
        self._server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("EDL_")},
        )
        atexit.register(self._end)

    def takes(self, words: Sequence[str], environment: Mapping[str, str]) -> bool:
        """Whether this verb can do with what is imported here."""
        is_short = bool(words) and words[0] in SHORT and tuple(words[:2]) != LONG
        return is_short and environment.get("PYTHONPATH") == self._path

    def run(
        self,
        words: Sequence[str],
        directory: Path,
        environment: Mapping[str, str],
        timeout_s: float,
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end.

        Raises:
            subprocess.TimeoutExpired: it did not, and was killed.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with tempfile.TemporaryDirectory() as place:
            asked = [list(words), str(directory), dict(environment), timeout_s, place]
            self._server.stdin.write(json.dumps(asked) + "\n")
            self._server.stdin.flush()
            code = json.loads(self._server.stdout.readline())
            if code is None:
                raise subprocess.TimeoutExpired(["edl", *words], timeout_s)
            shown = [(Path(place) / name).read_text() for name in ("out", "err")]
        return subprocess.CompletedProcess(["edl", *words], code, *shown)

    def _end(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        self._server.wait(10)


def serve(asking: TextIO, answering: TextIO) -> None:
    """One verb for each line."""
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
    """In the child; does not return."""
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
    """Return the exit code of a process; None if it was killed for being late."""
    file = os.pidfd_open(pid)
    ended, _, _ = select.select([file], [], [], timeout_s)
    os.close(file)
    if not ended:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if ended else None


if __name__ == "__main__":
    import importlib
    import pkgutil

    import edl.cli

    asking = os.fdopen(os.dup(0), "r")
    answering = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    for module in pkgutil.walk_packages(edl.cli.__path__, "edl.cli."):
        if module.name.rpartition(".")[2] in SHORT | {"main", "common", "borrowing"}:
            importlib.import_module(module.name)
    serve(asking, answering)
