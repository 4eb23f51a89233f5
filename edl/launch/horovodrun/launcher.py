"""The horovodrun that this process descends from, on its own machine: its limits, its driver."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl.launch.horovodrun.driver import read_identity


@dataclass(frozen=True)
class ElasticLimits:
    """What horovodrun was asked for. ``max_np`` None: as many as there are slots."""

    np: int
    min_np: int
    max_np: int | None


@dataclass(frozen=True)
class Launcher:
    """The process of horovodrun."""

    pid: int
    started: str  # tells it from another process of that number, here or on another machine
    command: tuple[str, ...]

    def limits(self) -> ElasticLimits | None:
        """-np, --min-np and --max-np, as horovodrun itself reads them; None: it could not."""
        from horovod.runner.launch import parse_args  # a slow import

        words = next(i for i, word in enumerate(self.command) if _is_horovodrun(word)) + 1
        try:
            with _arguments(self.command[words - 1 :]):
                args = parse_args()
        except SystemExit:
            return None
        if args.num_proc is None:
            return None
        return ElasticLimits(args.num_proc, args.min_num_proc or args.num_proc, args.max_num_proc)

    def identity(self) -> dict[str, str] | None:
        """Which job its driver has; None: it has no driver yet, or no job."""
        try:
            connections = psutil.Process(self.pid).net_connections("tcp4")
        except psutil.Error:
            return None
        ports = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
        found = (read_identity("127.0.0.1", port) for port in sorted(ports))
        return next((identity for identity in found if identity is not None), None)


def find_launcher() -> Launcher | None:
    """The horovodrun above this process; None: there is none on this machine."""
    for process in psutil.Process().parents():
        try:
            command, started = tuple(process.cmdline()), _started(process.pid)
        except (psutil.Error, OSError):
            continue
        # Not the shell whose one word holds the whole command of a worker.
        if any(_is_horovodrun(word) for word in command[:3]):
            return Launcher(process.pid, started, command)
    return None


def _started(pid: int) -> str:
    """When a process began: the boot of its machine, and clock ticks since then.

    The wall clock, which psutil.Process.create_time() follows, may be set while the process runs.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().partition("-")[0]
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return f"{boot}-{after_name[19]}"  # proc(5): starttime is field 22, the name field 2


def _is_horovodrun(word: str) -> bool:
    return Path(word).name == "horovodrun"


@contextmanager
def _arguments(words: tuple[str, ...]) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(words)
    try:
        yield
    finally:
        sys.argv = before
