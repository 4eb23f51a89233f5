"""Find the process of horovodrun that started this process, and read its options and its job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from edl.host.horovodrun.driver import read_identity
from edl.host.horovodrun.last_answer import find_horovodrun, is_horovodrun

DISCOVERY_S = 30.0  # for a host discovery script


@dataclass(frozen=True)
class ElasticLimits:
    np: int  # to start with
    min_np: int  # `np` if horovodrun was given none
    max_np: int | None  # None: as many as there are slots
    reset_limit: int | None = None  # of the slots' assignment; None: no limit
    discovery: str = ""  # the command line of the host discovery script
    slots: int = 1  # of a host for which the script names no number


@dataclass(frozen=True)
class Launcher:
    """A process of horovodrun that is an ancestor of this process, as `find_launcher` saw it."""

    pid: int
    started: str  # tells it from another process of that number, here or on another machine
    command: tuple[str, ...]

    def limits(self) -> ElasticLimits | None:
        """Return the options of horovodrun, by Horovod's own parser; None: they cannot be read."""
        from horovod.runner.launch import parse_args  # a slow import

        words = next(i for i, word in enumerate(self.command) if is_horovodrun(word)) + 1
        try:
            with _arguments(self.command[words - 1 :]):
                args = parse_args()
        except SystemExit:
            return None
        if args.num_proc is None:
            return None
        return ElasticLimits(
            args.num_proc,
            args.min_num_proc or args.num_proc,
            args.max_num_proc,
            args.reset_limit,
            args.host_discovery_script or "",
            args.slots or 1,
        )

    def may_limit_resets(self) -> bool:
        """Return whether horovodrun may have been given --reset-limit, also shortened to --res."""
        return any(word.startswith("--res") for word in self.command)

    def identity(self) -> dict[str, str] | None:
        try:
            connections = psutil.Process(self.pid).net_connections("tcp4")
        except psutil.Error:
            return None
        ports = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
        found = (read_identity("127.0.0.1", port) for port in sorted(ports))
        return next((identity for identity in found if identity is not None), None)


def discovered(limits: ElasticLimits) -> dict[str, int] | None:
    """Run the host discovery script once, as the driver does; return slots by host, or None."""
    try:
        done = subprocess.run(
            limits.discovery,
            shell=True,  # as Horovod does: it is the user's command line
            capture_output=True,
            text=True,
            timeout=DISCOVERY_S,
            check=True,
        )
        found = {}
        for line in done.stdout.split():
            host, _, slots = line.partition(":")
            found[host] = int(slots or limits.slots)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found


def find_launcher() -> Launcher | None:
    return Launcher(*found) if (found := find_horovodrun()) is not None else None


@contextmanager
def _arguments(words: tuple[str, ...]) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(words)
    try:
        yield
    finally:
        sys.argv = before
