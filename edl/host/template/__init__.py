"""The template: a process that has imported what a job's workers import, and forks workers.

A forked worker spends no seconds on importing its framework. It is a child of the launcher with a
process group of its own, and behaves like one that was started by ``exec``. This is the launcher's
side; :mod:`edl.host.template.main` is the program. Without an answer, workers start by ``exec``.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from edl import config
from edl.host.command import is_own_interpreter
from edl.host.process import Main, PythonCommand, parse_command

logger = logging.getLogger(__name__)
END_S = 5.0  # for a template that was killed to be gone
FORK_S = 5.0  # for the template to fork a worker; it takes some 20 ms
_MAIN = Path(__file__).with_name("main.py")
_PACKET = 1 << 16
_PR_SET_CHILD_SUBREAPER = 36


class TemplateError(Exception):
    """One template process can fork no more workers, another one might; the text is a clause."""


class TemplateRefused(TemplateError):
    """Workers with the imports of a job cannot be forked from any template."""


def why_none(command: Sequence[str], search_path: str | None) -> str:
    python = parse_command(command)
    if python is None:
        return f"{command[0]} is not Python"
    if python.main is Main.OTHER:
        return f"`{' '.join(command[:3])}` runs no script"
    if python.main is Main.SCRIPT and python.target.endswith(".pyc"):
        return f"{python.target} is compiled"
    found = shutil.which(python.program, path=search_path)
    if found is None or not is_own_interpreter(found):
        return f"{python.program} is another interpreter than the launcher's, {sys.executable}"
    return ""


class Child:
    """A child process of this process that `subprocess` has not started, known by its `pid`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._reaping = threading.Lock()
        self.returncode: int | None = None  # -9: SIGKILL; None: its end was not seen

    def poll(self) -> int | None:
        """Reap; return the exit code, None while it runs or another thread waits for it."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int:
        code = self._reap(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # another thread has seen its end
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        if not self._reaping.acquire(blocking=options != os.WNOHANG):
            return None  # another thread is about to see its end
        try:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, options)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
            return self.returncode
        finally:
            self._reaping.release()


class Template:
    """A template process as its launcher's one thread sees it; `poll` until it is ready."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        imports: Path,
        log: Path,
    ) -> None:
        self._command, self._cwd = tuple(command), cwd
        self._process: subprocess.Popen[bytes] | Child
        self._orphans: set[int] = set()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ready = False
        python = _parsed(command)
        words = [python.program, *python.options, str(_MAIN), str(theirs.fileno()), str(imports)]
        with theirs, log.open("ab") as output:
            try:
                self._process = subprocess.Popen(
                    words,
                    cwd=cwd,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except OSError:
                self._control.close()
                raise

    @classmethod
    def inherited(cls, command: Sequence[str], cwd: Path, descriptor: int, pid: int) -> Self:
        """Return the template that this process got when it was forked itself; for tests."""
        self = cls.__new__(cls)
        self._command, self._cwd = tuple(command), cwd
        self._process, self._control = Child(pid), socket.socket(fileno=descriptor)
        self._orphans = set()
        self.ready = True
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> None:
        """Read one message of the template process, if one has come, without a wait."""
        # The children of workers that died during `fork` would stay zombies.
        for pid in list(self._orphans):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                self._orphans.discard(pid)
        try:
            said = self._control.recv(_PACKET, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise TemplateError(f"it does not answer: {error}") from error
        if not said:
            raise TemplateError(f"it has ended, with code {self._end()}")
        message = json.loads(said)
        if reason := message.get("refused"):
            raise TemplateRefused(reason)
        self.ready = True

    def fork(
        self,
        environment: Mapping[str, str],
        log: Path,
        started: Callable[[int], None],
        command: Sequence[str] = (),
        cwd: Path | None = None,
        gives_template: bool = False,
    ) -> Child:
        python = _parsed(command or self._command)
        order = {
            "command": command or self._command,
            "cwd": str(cwd or self._cwd),
            "environment": dict(environment),
            "main": python.main,
            "target": python.target,
            "arguments": python.arguments,
            "template": gives_template,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, log.open("ab") as output, _in_memory(json.dumps(order)) as file:
            before = _children()
            try:
                with _adopting_orphans():
                    descriptors = [file, output.fileno(), theirs.fileno()]
                    socket.send_fds(self._control, [b"{}"], descriptors, socket.MSG_DONTWAIT)
                    theirs.close()
                    ours.settimeout(FORK_S)
                    said = ours.recv(_PACKET)
            except OSError as error:
                raise TemplateError(f"it has not forked a worker: {error}") from error
            if not said:
                raise TemplateError("it has not forked a worker")
            child = Child(json.loads(said)["pid"])
            self._orphans |= _children() - before - {child.pid}
            started(child.pid)
            with contextlib.suppress(OSError):  # it was killed; its end is seen as any other
                ours.send(b"{}")
        return child

    def close(self) -> None:
        self._control.close()
        self._end()

    def _end(self) -> int | None:
        deadline = time.monotonic() + END_S
        while (code := self._process.poll()) is None and time.monotonic() < deadline:
            self._process.kill()
            time.sleep(0.005)
        return code


def _parsed(command: Sequence[str]) -> PythonCommand:
    python = parse_command(command)
    assert python is not None
    return python


@contextmanager
def _in_memory(text: str) -> Iterator[int]:
    descriptor = os.memfd_create("edl-order", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        yield descriptor
    finally:
        os.close(descriptor)


def _children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended, or an old kernel has no list
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return found


@contextmanager
def _adopting_orphans() -> Iterator[None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "this system lets no process adopt orphans")
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0)


# ------------------------------------------------------------
# Keep one template process for a launcher. It starts only after a worker has trained a step and has
# written which modules it had imported by then, so as not to slow the job's first steps.


FILES = "template*"  # in the directory of logs
NOT_WANTED = "nobody has asked for it"
DEATHS = 3  # after so many in a row, without a worker forked between, no other one is started


class TemplateKeeper:
    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        logs: Path,
        wanted: bool,
    ) -> None:
        self._command, self._cwd, self._environment = command, cwd, environment
        of_run = repr((tuple(command), str(cwd), environment.get("EDL_SECRET")))
        digest = hashlib.sha256(of_run.encode()).hexdigest()[:12]  # logs may be of several runs
        self._imports, self._output = logs / f"template-{digest}.imports", logs / "template.output"
        self._template: Template | None = None
        self._deaths = 0
        # empty: there may be one
        self.why_none = why_none(command, environment.get("PATH")) if wanted else NOT_WANTED
        given = config.take_inherited_template()
        if given is not None:
            self._template = Template.inherited(command, cwd, *given)
            if self.why_none:
                self.close()

    @property
    def imports(self) -> Path | None:
        """The file for a worker to write its imported modules into; None: not needed."""
        known = self.why_none or self._template or self._imports.exists()
        return None if known else self._imports

    @property
    def pid(self) -> int | None:
        return self._template.pid if self._template is not None else None

    @property
    def ready(self) -> bool:
        return self._template is not None and self._template.ready

    def poll(self) -> None:
        """Start the template if there is none, else read a message; none after `DEATHS`."""
        if self.why_none:
            return
        try:
            if self._template is None:
                if self._imports.exists():
                    paths = self._imports, self._output
                    self._template = Template(self._command, self._cwd, self._environment, *paths)
            else:
                self._template.poll()
        except (TemplateError, OSError) as error:
            self._ended(error)

    def fork(
        self, environment: Mapping[str, str], log: Path, started: Callable[[int], None]
    ) -> Child | None:
        """Fork a worker; None: no template is ready or answers, nothing was started: use exec."""
        if self._template is None or not self._template.ready:
            return None
        try:
            child = self._template.fork(environment, log, started)
        except TemplateError as error:
            self._ended(error)
            return None
        self._deaths = 0
        return child

    def disable(self, reason: str) -> None:
        self.close()
        self.why_none = reason

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
            self._template = None

    def remove_imports(self) -> None:
        """Remove the file with the list of imports: it has environment variables of the script."""
        with contextlib.suppress(OSError):
            self._imports.unlink()

    def _ended(self, error: Exception) -> None:
        logger.info("the template has ended: %s", error)
        self.close()
        self._deaths += 1
        if isinstance(error, TemplateRefused) or self._deaths >= DEATHS:
            self.disable(str(error))
