"""Limit what the jobs of a host use, by systemd: each run has a slice, and its agents are in it.

A slice is a group of processes whose memory, processors and tasks Linux limits together. systemd
makes it and keeps it, so it outlives `edl host`. The limits are so much for each slot, so they
change with the slots of the job.

`systemd-run` has to run as root. So nothing that a tenant has written may reach it: neither the
environment of the manifest, with which it could load a library, nor the command. They go to
``run_as``, in a file that only this process has, and that becomes the user of the job first.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edl.core.cluster.slot_limits import SlotLimits
from edl.errors import UsageError
from edl.scheduler.host import run_as
from edl.scheduler.host.job_users import JobUser

logger = logging.getLogger(__name__)

Run = tuple[str, str]
"""The name of a job and the token of one of its runs."""

BOOTED = Path("/run/systemd/system")  # it exists where systemd runs the machine
ASK_S = 10.0  # for systemd to answer
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")  # of the environment of `edl host`


class StartCommand(NamedTuple):
    """A command by which another command runs with the limits of a run's systemd slice."""

    words: Sequence[str]  # the command line
    environment: Mapping[str, str]  # all environment variables of it
    descriptor: int  # a file that it must inherit


class Slices:
    """The systemd slices of the runs on one host."""

    def __init__(self, limits: SlotLimits, mark: str) -> None:
        self._limits = limits
        self._group = f"edl-{_digest(mark)}"
        self._slots: dict[Run, int] = {}  # for which the limits of a run are set
        self._failed: dict[Run, str] = {}  # why they could not be set
        self._has_looked = False

    def limit(self, slots: Mapping[Run, int]) -> None:
        """Let the limits of each run be those of its slots; nothing is done for those that are."""
        for run, count in slots.items():
            if self._slots.get(run) == count:
                continue
            properties = self._limits.properties(count)
            why = _systemctl("set-property", "--runtime", self._name(run), *properties)
            if why:
                self._failed[run] = why
                logger.warning("the limits of job %s cannot be set: %s", run[0], why)
            else:
                self._failed.pop(run, None)
                self._slots[run] = count

    @contextmanager
    def launch(
        self,
        run: Run,
        words: Sequence[str],
        environment: Mapping[str, str],
        user: JobUser | None,
        own: Mapping[str, str],
    ) -> Iterator[StartCommand]:
        """While entered, provide what to start so that a command runs in the slice of a run."""
        if run in self._failed or run not in self._slots:
            why = self._failed.get(run, "they were not asked for")
            raise OSError(errno.EPERM, f"its limits cannot be set: {why}")
        command = run_as.UserCommand(
            tuple(words),
            dict(environment),
            None if user is None else (user.uid, user.gid, user.groups),
        )
        descriptor = os.memfd_create("edl-agent")  # a pipe may be too small for an environment
        try:
            os.write(descriptor, json.dumps(command).encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            scope = f"--slice={self._name(run)}", f"--description=edl agent of job {run[0]}"
            before = ("systemd-run", "--scope", "--quiet", "--collect", *scope, "--")
            stage = (sys.executable, "-I", str(run_as.__file__), str(descriptor))
            passed = {name: own[name] for name in _PASSED if name in own}
            yield StartCommand((*before, *stage), passed, descriptor)
        finally:
            os.close(descriptor)

    def keep_only(self, runs: Collection[Run]) -> None:
        """Remove this host's slices of other runs than `runs`, and kill what lives in them."""
        if not self._has_looked:  # an earlier `edl host` may have left some
            self._has_looked = True
            known = {self._name(run) for run in (*runs, *self._slots)}
            for name in _slices(f"{self._group}-*.slice"):
                if name not in known:
                    _remove(name)
        for run in [run for run in self._slots if run not in runs]:
            del self._slots[run]
            _remove(self._name(run))
        self._failed = {run: why for run, why in self._failed.items() if run in runs}

    def _name(self, run: Run) -> str:
        return f"{self._group}-{_digest('/'.join(run))}.slice"


def check_slices() -> None:
    """Check that this process can limit the runs of jobs by systemd slices."""
    tools = [name for name in ("systemd-run", "systemctl") if shutil.which(name) is None]
    if os.geteuid() != 0:
        why = "`edl host` to run as root"
    elif tools or not BOOTED.is_dir():
        why = "a machine that systemd has started"
    else:
        return
    raise UsageError(
        f"--memory-per-slot, --cpus-per-slot and --tasks-per-slot need {why}; leave them out, and "
        "start `edl host` in a container or a unit with limits"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove(name: str) -> None:
    """Kill all processes in the slice called `name`, and remove it and its limits."""
    for verb in ("stop", "revert"):
        if why := _systemctl(verb, name):
            logger.info("systemctl %s %s: %s", verb, name, why)


def _slices(pattern: str) -> list[str]:
    words = ("list-units", "--all", "--type=slice", "--plain", "--no-legend", pattern)
    found = _run(("systemctl", *words))
    lines = [] if isinstance(found, str) else found.stdout.splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _systemctl(*words: str) -> str:
    """Run systemctl; return why it has failed, "" if it has not."""
    found = _run(("systemctl", *words))
    if isinstance(found, str):
        return found
    return "" if found.returncode == 0 else found.stderr.strip() or f"code {found.returncode}"


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str] | str:
    """Run a command for a limited time; return how it has ended, or why it did not run."""
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} did not answer within {ASK_S:g} s"
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
