"""`edl` verbs in processes of their own that need not import edl: they are forked by one that has.

The import is three quarters of what a verb costs. What a verb reads of its surroundings (arguments,
environment, directory, output) it has as if it were started anew; only its parent is another one:
`verb_server.py`, which is itself forked from a process that has imported edl.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import forked

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
SERVER = Path(__file__).with_name("verb_server.py")


class Verbs:
    """The process that forks, started with the first verb."""

    def __init__(self) -> None:
        self._path = os.environ.get("PYTHONPATH")
        self._server = forked.Python(
            "",
            [SERVER, *sorted(SHORT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
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
