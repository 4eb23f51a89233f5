"""Find the process of horovodrun that started this process, and read its options and its job.

The main entry is :func:`find_launcher`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from edl.launch.horovodrun.driver import read_identity
from edl.launch.horovodrun.last_answer import find_horovodrun, is_horovodrun

DISCOVERY_S = 30.0  # for a host discovery script


@dataclass(frozen=True)
class ElasticLimits:
    """The options of horovodrun that limit the number of workers and say which hosts there are.

    Attributes:
        np: the number of workers to start with.
        min_np: the least number of workers; ``np`` if horovodrun was given none.
        max_np: the largest number of workers; None for as many as there are slots.
        reset_limit: how often the driver may assign the slots again; None for no limit.
        discovery: the command line of the host discovery script; empty if there is none.
        slots: the number of slots of a host for which the script prints no number.
    """

    np: int
    min_np: int
    max_np: int | None
    reset_limit: int | None = None
    discovery: str = ""  # the command line of the host discovery script
    slots: int = 1  # of a host for which the script names no number


@dataclass(frozen=True)
class Launcher:
    """A process of horovodrun that is an ancestor of this process, as :func:`find_launcher` saw it.

    Attributes:
        pid: the process id.
        started: an id of its start, which differs from that of any other process with that pid,
            also on another machine.
        command: the words of its command line.
    """

    pid: int
    started: str  # tells it from another process of that number, here or on another machine
    command: tuple[str, ...]

    def limits(self) -> ElasticLimits | None:
        """Return the options of horovodrun, parsed from its command line by Horovod's own parser.

        Nothing is asked of the process itself. The result is None if the command line cannot be
        parsed or has no number of workers (-np).
        """
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
        """Return whether horovodrun may have been given --reset-limit, also shortened to --res.

        That option limits how often the driver assigns its slots again. Any word of the command
        line that begins with --res makes the answer True, also one of the training script.
        """
        return any(word.startswith("--res") for word in self.command)

    def identity(self) -> dict[str, str] | None:
        """Ask this horovodrun's driver which job it runs, and return the job's identity.

        The driver is looked for at all TCP ports at which the process listens; each may take 2 s.

        Returns:
            The name, the secret and the ZooKeeper servers of the job, under the keys ``job``,
            ``secret`` and ``zookeeper``; None if there is no driver yet, or the driver has no job
            yet.
        """
        try:
            connections = psutil.Process(self.pid).net_connections("tcp4")
        except psutil.Error:
            return None
        ports = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
        found = (read_identity("127.0.0.1", port) for port in sorted(ports))
        return next((identity for identity in found if identity is not None), None)


def discovered(limits: ElasticLimits) -> dict[str, int] | None:
    """Run the host discovery script once, as the driver does once a second; return slots by host.

    ``limits`` has the script's command line, and the slots of a host for which it prints no number.
    The result is None if the script fails, prints something else than hosts, or takes longer than
    30 s (``DISCOVERY_S``).
    """
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
    """Return the horovodrun process that is the nearest such ancestor of this process.

    The result is None if no ancestor on this machine is one: horovodrun was not used, or runs on
    another machine.
    """
    return Launcher(*found) if (found := find_horovodrun()) is not None else None


@contextmanager
def _arguments(words: tuple[str, ...]) -> Iterator[None]:
    """Return a context manager; while it is entered, ``sys.argv`` of this process is ``words``.

    The first word is the name of the program. On leaving, the former list is restored.
    """
    before = sys.argv
    sys.argv = list(words)
    try:
        yield
    finally:
        sys.argv = before
