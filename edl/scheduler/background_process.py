"""Keep a process beside a controller: `edl host` of this machine, or the HTTP API."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from edl.launch.parent import die_with_parent

GPUS = Path("/proc/driver/nvidia/gpus")  # a directory for each GPU, where there is NVIDIA's driver
STABLE_S = 60.0  # a process that lived for so long is started again at once
FIRST_PAUSE_S = 1.0  # between its end and its next start
MOST_PAUSE_S = 30.0
LEAVE_S = 60.0  # for the host's jobs to leave it, before it is killed


class BackgroundProcess:
    """A process that is started again when it dies."""

    def __init__(self, words: Sequence[str], what: str, say: Callable[[str], None]) -> None:
        self._command = [sys.executable, "-m", "edl.cli.main", *words]
        self._what = what
        self._say = say
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()  # of the process
        self._thread = threading.Thread(
            target=self._keep, name="edl-background-process", daemon=True
        )

    def start(self) -> None:
        """Start the thread that starts the process again whenever it ends, and return at once."""
        self._thread.start()

    def end(self, within_s: float = LEAVE_S) -> None:
        """Let the process end; kill it if that takes longer than `within_s` seconds."""
        self._ending.set()
        with self._changing:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(within_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self._thread.join(within_s)

    def kill(self) -> None:
        """Send a further SIGTERM to the process; `edl host` then kills all that lives there."""
        self._ending.set()
        with self._changing:
            if self._process is not None:
                self._process.terminate()

    def _keep(self) -> None:
        """Start the process, and again whenever it ends, until `end`; runs in the thread."""
        pause_s = FIRST_PAUSE_S
        while not self._ending.is_set():
            began_s = time.monotonic()
            with self._changing:
                if self._ending.is_set():
                    return
                # Another `edl host` adopts what it has started, but cannot come while it lives; nor
                # can another API listen.
                self._process, end = self._started()
            if self._process is not None:
                end = f"has ended with {self._process.wait()}"
            if self._ending.is_set():
                return
            if time.monotonic() - began_s >= STABLE_S:
                pause_s = FIRST_PAUSE_S
            self._say(f"{self._what} {end}; it is started again in {pause_s:g} s")
            self._ending.wait(pause_s)
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)

    def _started(self) -> tuple[subprocess.Popen[bytes] | None, str]:
        """Return the process, started just now; or None, and why it cannot be started."""
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return None, f"cannot be started: {error}"
        return process, ""


def slots_here(visible: str | None) -> int | None:
    """Return how many slots this machine offers by default; None: as `edl host` does by itself."""
    if visible:
        return None
    gpus = len(list(GPUS.iterdir())) if GPUS.is_dir() else 0
    return gpus or len(os.sched_getaffinity(0))
