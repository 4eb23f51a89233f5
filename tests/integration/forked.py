"""Starts `edl run` and `edl join` by a fork of a process that has imported what they need.

The agent that is started in this way forks its workers, too, from a template that it is given
(:mod:`edl.launch.template`). The imports are most of what a job costs a test. Tests of how a
process starts, and commands with other imports, start theirs by ``exec``.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from edl.launch.template import Child, Template
from edl.testing.job import start_process

EDL = str(Path(sys.executable).parent / "edl")
VERBS = ("run", "join")
EVERYBODY = ["edl.cli.run", "edl.cli.join", "edl.framework.process", "edl.testing.throttle"]
IMPORTS = {
    "torch": ["torch", "horovod.torch", "edl.torch"],
    "tensorflow": ["tensorflow", "keras", "horovod.tensorflow", "edl.tensorflow"],
    "": [],
}
READY_S = 120.0
WANTED = os.environ.get("EDL_FORKED") != "0"


class Forked(Child):
    """A process, with what tests use of :class:`subprocess.Popen`."""

    def __init__(self, pid: int, command: Sequence[str]) -> None:
        super().__init__(pid)
        self.args = list(command)

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            return super().wait()
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


Started = subprocess.Popen[bytes] | Forked


def start(
    command: Sequence[str | Path], directory: Path, environment: Mapping[str, str], output: Path
) -> Started:
    """Start a process in a session of its own; what it prints is added to ``output``."""
    words = [str(word) for word in command]
    if (framework := _framework(words, environment)) is None:
        return start_process(words, directory, environment, output)
    if words[0] == EDL:
        words = [sys.executable, *words]
    child = _base(framework).fork(
        environment, output, lambda pid: None, words, directory,
        gives_template=True,
    )  # fmt: skip
    return Forked(child.pid, words)


def _framework(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the name in IMPORTS of what a command imports; None: start it by ``exec``.

    A test that says anything about templates (EDL_TEMPLATE, --no-template) gets what a user gets.
    """
    module = [sys.executable, "-m", "edl.cli.main"]
    rest = words[1:] if words[:1] == [EDL] else words[3:] if words[:3] == module else []
    same = all(environment.get(name) == os.environ.get(name) for name in ("PYTHONPATH", "PATH"))
    asked = "EDL_TEMPLATE" in environment or "--no-template" in rest
    if not rest or rest[0] not in VERBS or asked or not same or not WANTED:
        return None
    scripts = [Path(word) for word in rest if word.endswith(".py")]
    text = "".join(path.read_text() for path in scripts if path.is_file())
    return next((name for name in IMPORTS if name and f"edl.{name}" in text), "")


@functools.cache
def _base(framework: str) -> Template:
    """The process that such agents are forked from; it ends with this one."""
    directory = Path(tempfile.mkdtemp())
    imports = directory / "imports"
    modules = [*EVERYBODY, *IMPORTS[framework]]
    imports.write_text(json.dumps({"modules": modules, "own": {}, "environment": {}}))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EDL_")}
    command = [sys.executable, "-m", "edl.cli.main"]
    base = Template(command, directory, environment, imports, directory / "output")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(base.close)
    deadline = time.monotonic() + READY_S
    while not base.ready:
        assert time.monotonic() < deadline, (directory / "output").read_text()
        base.look()
        time.sleep(0.01)
    return base
