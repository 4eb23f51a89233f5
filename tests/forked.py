"""Starts processes of tests by a fork of a process that has imported what they need.

The imports are most of what a process costs a test. There are four ways:

- :func:`run_to_end`: such a command that a test waits for;
- :func:`start_in_terminal`: such a command in a terminal of its own;
- :func:`start`: `edl run`, `edl join` and `edl agent`, `edl cluster` and `edl host`, and verbs that
  ask a job. An agent that is started in this way forks its workers, too, from a template that it is
  given (:mod:`edl.host.template`);
- :class:`Python` and :func:`python`: a script or a piece of code, in place of
  :class:`subprocess.Popen` and :func:`subprocess.run`.

Tests of how a process starts, and commands with other imports, start theirs by ``exec``:
:func:`by_exec`.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edl.host.template import Child, Template
from edl.testing.job import start_process

EDL = str(Path(sys.executable).parent / "edl")
AGENTS = ("run", "join", "agent")
ASKING = ("borrow", "drain", "events", "logs", "migrate", "preempt", "profile", "reclaim")
ASKING += ("scale", "status", "stop", "zookeeper")
VERBS = (*AGENTS, *ASKING, "cluster", "host")
EVERYBODY = [
    "edl.cli.agents",
    "edl.cli.cluster",
    "edl.cli.host",
    "edl.binding.process",
    "edl.testing.throttle",
]
IMPORTS = {
    "torch": ["torch", "horovod.torch", "edl.torch"],
    "tensorflow": ["tensorflow", "keras", "horovod.tensorflow", "edl.tensorflow"],
    "": [],
}
SCRIPTS = Path(__file__).parent / "integration" / "scripts"
RUNS = "EDL_TEST_SCRIPT"  # names the one of SCRIPTS that chaos/scripts run
READY_S = 120.0
WANTED = os.environ.get("EDL_FORKED") != "0"
_FORKS = threading.Lock()
_FRAMEWORKS: dict[str, str] = {}  # by name of a job, of the script that `edl run` has started last


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
    if (framework := _framework(words, directory, environment)) is None:
        return start_process(words, directory, environment, output)
    is_agent = _verb(_of_edl(words)) in AGENTS
    if words[0] == EDL:
        words = [sys.executable, *words]
    child = _fork(framework, words, directory, environment, output, gives_template=is_agent)
    return Forked(child.pid, words)


def start_in_terminal(
    words: Sequence[str], directory: Path, environment: Mapping[str, str], terminal: int
) -> Started:
    """Start `edl` as the first process of a terminal, which this process has open."""
    if (framework := _framework([EDL, *words], directory, environment)) is None:
        return subprocess.Popen(
            [EDL, *words],
            cwd=directory,
            env=environment,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
    code = IN_TERMINAL.format(terminal=os.ttyname(terminal))
    command = [sys.executable, "-c", code, *words]
    is_agent = _verb(words) in AGENTS
    child = _fork(
        framework, command, directory, environment, Path(os.devnull), gives_template=is_agent
    )
    return Forked(child.pid, ["edl", *words])


def run_to_end(
    words: Sequence[str], directory: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str] | None:
    """Run `edl` with ``words`` to its end, and keep what it prints; None: it needs an ``exec``."""
    if (framework := _framework([EDL, *words], directory, environment)) is None:
        return None
    with tempfile.TemporaryDirectory() as place:
        out, err = Path(place, "out"), Path(place, "err")
        err.touch()
        begins = BEGINS.format(there={2: str(err)}, script="")
        code = f"{begins}\nfrom edl.cli.main import main\nmain()"
        command = [sys.executable, "-c", code, *words]
        is_agent = _verb(words) in AGENTS
        child = _fork(framework, command, directory, environment, out, gives_template=is_agent)
        process = Forked(child.pid, ["edl", *words])
        try:
            ended = process.wait(timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, ended, out.read_text(), err.read_text())


class Python(subprocess.Popen[str]):
    """A Python process: ``Python("torch", [script, "--option"], stdout=subprocess.PIPE)``."""

    def __init__(self, framework: str, arguments: Sequence[str | Path], **more: Any) -> None:
        self._framework = framework
        super().__init__([sys.executable, *map(str, arguments)], text=True, **more)

    def _execute_child(self, args: Any, *others: Any) -> None:
        # others: executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
        # creationflags, shell, six descriptors (see DESCRIPTORS), and the rest.
        if not WANTED:
            super()._execute_child(args, *others)
            return
        cwd, environment = Path(others[4] or "."), dict(others[5] or os.environ)
        stdin, _, stdout, stderr = (others[9 + n] for n in DESCRIPTORS)
        fixed = {0: stdin, 2: sys.stderr.fileno() if stderr == -1 else stderr}
        there = {n: f"/proc/{os.getpid()}/fd/{fd}" for n, fd in fixed.items() if fd != -1}
        _, *words = args
        rest = words[2:] if words[0] == "-c" else words
        begins = BEGINS.format(there=there, script="" if words[0] == "-c" else rest[0])
        command = [sys.executable, "-c", begins + (words[1] if words[0] == "-c" else ""), *rest]
        log = Path(f"/proc/self/fd/{sys.stdout.fileno() if stdout == -1 else stdout}")
        assert os.readlink(there[2]) != os.readlink(log), "its stderr would seem to be open at once"
        child = _fork(self._framework, command, cwd, environment, log)
        self.pid = child.pid
        self._child_created = True
        self._wait_until_open(there)
        self._close_pipe_fds(*others[9:15])

    def _wait_until_open(self, there: Mapping[int, str]) -> None:
        """Wait until the process has opened its standard streams, last of them stderr."""
        deadline = time.monotonic() + READY_S
        with contextlib.suppress(FileNotFoundError):  # it has ended
            while os.readlink(f"/proc/{self.pid}/fd/2") != os.readlink(there[2]):
                assert time.monotonic() < deadline
                time.sleep(0.001)


DESCRIPTORS = (0, 1, 3, 5)  # stdin's, ours of it, stdout's, stderr's, among six
BEGINS = """
import os
for number, path in {there}.items():
    os.dup2(os.open(path, os.O_RDWR if number else os.O_RDONLY), number)
if {script!r}:
    import runpy, sys
    del sys.argv[0]
    sys.path[0] = os.path.dirname({script!r})
    runpy.run_path({script!r}, run_name="__main__")
"""
IN_TERMINAL = """
import os, sys
for number in range(3):
    os.dup2(os.open({terminal!r}, os.O_RDWR), number)
sys.stdin, sys.stdout, sys.stderr = (open(n, "w" if n else "r", buffering=1) for n in range(3))
from edl.cli.main import main
main()
"""


def by_exec(
    command: Sequence[str | Path], timeout_s: float, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end as :func:`subprocess.run` does; keep what it prints."""
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, **more)


def python(
    framework: str,
    arguments: Sequence[str | Path],
    timeout_s: float,
    input: str | None = None,
    **more: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a :class:`Python` process to its end, within ``timeout_s``; keep what it prints."""
    stdin, pipe = subprocess.DEVNULL if input is None else subprocess.PIPE, subprocess.PIPE
    with Python(framework, arguments, stdin=stdin, stdout=pipe, stderr=pipe, **more) as process:
        try:
            shown = process.communicate(input, timeout_s)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, *shown)


def _framework(words: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str | None:
    """Return the name in IMPORTS of what a command imports; None: start it by ``exec``.

    A test that says anything about templates (EDL_TEMPLATE, --no-template) gets the agents that a
    user gets.
    """
    rest = _of_edl(words)
    same = all(environment.get(name) == os.environ.get(name) for name in ("PYTHONPATH", "PATH"))
    asked = "EDL_TEMPLATE" in environment or "--no-template" in rest
    verb = _verb(rest)
    if verb not in VERBS or (asked and verb in AGENTS) or not same or not WANTED:
        return None
    scripts = [Path(directory, word) for word in rest if word.endswith(".py")]
    text = "".join(path.read_text() for path in scripts if path.is_file())
    if RUNS in text:  # it trains nothing itself
        text += (SCRIPTS / environment.get(RUNS, "counting.py")).read_text()
    package = "horovod" if "--transparent" in rest else "edl"
    found = next((name for name in IMPORTS if name and f"{package}.{name}" in text), "")
    job = rest[rest.index("--job") + 1] if "--job" in rest else ""
    if scripts:
        _FRAMEWORKS[job] = found
    return found or _FRAMEWORKS.get(job, "")  # `edl join` starts the script of `edl run`


def _of_edl(words: Sequence[str]) -> Sequence[str]:
    """Return the words of a command after `edl`; empty: it is another command."""
    module = [sys.executable, "-m", "edl.cli.main"]
    return words[1:] if words[:1] == [EDL] else words[3:] if words[:3] == module else []


def _verb(words: Sequence[str]) -> str:
    """Return the first word of a command of edl that is no option; empty: there is none."""
    return next((word for word in words if not word.startswith("-")), "")


def _fork(
    framework: str,
    command: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    output: Path,
    *,
    gives_template: bool = False,
) -> Child:
    """Start a process by a fork of the template of a framework; the arguments are Template.fork's.

    Threads of a test take turns: while one of them forks, this process adopts orphans, and the end
    of another one's fork would end that too soon.
    """
    with _FORKS:
        return _base(framework).fork(
            environment, output, lambda pid: None, command, directory, gives_template
        )


@functools.cache
def _base(framework: str) -> Template:
    """Return the process that others are forked from; it ends with this one."""
    directory = Path(tempfile.mkdtemp())
    imports = directory / "imports"
    modules = [*EVERYBODY, *IMPORTS[framework]]
    imports.write_text(json.dumps({"modules": modules, "own": {}, "environment": {}}))
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EDL_")}
    environment["TF_CPP_MIN_LOG_LEVEL"] = "2"  # TensorFlow's libraries read it when they are loaded
    command = [sys.executable, "-m", "edl.cli.main"]
    base = Template(command, directory, environment, imports, directory / "output")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(base.close)
    deadline = time.monotonic() + READY_S
    while not base.ready:
        assert time.monotonic() < deadline, (directory / "output").read_text()
        base.poll()
        time.sleep(0.01)
    return base
