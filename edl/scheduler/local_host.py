"""Keep an `edl host` of this machine beside a controller, as `edl cluster start --local` does."""

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
MOST_PAUSE_S = 30.0  # between its end and its next start
LEAVE_S = 60.0  # for the host's jobs to leave it, before it is killed


class LocalHost:
    """A process `edl host`, which is started again when it dies.

    Args:
        options: The options of `edl host`.
        say: Shows a sentence to whoever has started this process.
        command: The command that the options are added to.
    """

    def __init__(
        self,
        options: Sequence[str],
        say: Callable[[str], None],
        command: Sequence[str] = (sys.executable, "-m", "edl.cli.main", "host"),
    ) -> None:
        self._command = [*command, *options]
        self._say = say
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._changing = threading.Lock()  # of the process
        self._thread = threading.Thread(target=self._keep, name="edl-local-host", daemon=True)

    def start(self) -> None:
        """Start the thread that starts the process again whenever it ends, and return at once."""
        self._thread.start()

    def end(self, within_s: float = LEAVE_S) -> None:
        """Let the host leave the cluster; kill its process if that takes longer than ``within_s``.

        Its jobs train on elsewhere, or are halted and wait for slots.
        """
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
        """Send a second signal to the process, which then kills all that lives on the host."""
        self._ending.set()
        with self._changing:
            if self._process is not None:
                self._process.terminate()

    def _keep(self) -> None:
        """Start the process, and again whenever it ends, until :meth:`end`; runs in the thread.

        The pause before a start is 1 s, and doubles up to ``MOST_PAUSE_S`` s while the process ends
        soon after its start. Each end is shown to the user.
        """
        pause_s = 1.0
        while not self._ending.is_set():
            began_s = time.monotonic()
            with self._changing:
                if self._ending.is_set():
                    return
                # Another `edl host` adopts what it has started, but cannot come while it lives.
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            code = self._process.wait()
            if self._ending.is_set():
                return
            if time.monotonic() - began_s >= STABLE_S:
                pause_s = 1.0
            self._say(f"edl host has ended with {code}; it is started again in {pause_s:g} s")
            self._ending.wait(pause_s)
            pause_s = min(MOST_PAUSE_S, 2 * pause_s)


def slots_here(visible: str | None) -> int | None:
    """Return how many slots this machine offers by default; None: as `edl host` does by itself.

    It is one slot for each GPU, or else one for each processor that this process may use.

    Args:
        visible: The value of CUDA_VISIBLE_DEVICES; None or empty: it is not set.
    """
    if visible:
        return None
    gpus = len(list(GPUS.iterdir())) if GPUS.is_dir() else 0
    return gpus or len(os.sched_getaffinity(0))
