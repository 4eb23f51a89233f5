"""Borrow hosts from Slurm: a lease is a batch job of one whole node, which runs `edl host`.

Slurm's own commands are called, as the user of the controller. The name of the batch job has the
name of the lease, and only that is looked for: nothing is kept here. ``--dependency=singleton``
lets no two batch jobs of one lease run at the same time, should one be submitted twice. The comment
of the batch job says which nodes it was told to avoid.

The host has the name of Slurm's node. So an `edl host` of a later lease on that node finds what an
earlier one has left, and ends it before it offers its slots.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl.cluster.fleet.fleet import FleetUnreachable, HostCommand, LeaseRefused
from edl.cluster.records import HostLease, LeaseState, Shape
from edl.errors import UsageError

logger = logging.getLogger(__name__)
PROGRAMS = ("sbatch", "squeue", "scancel", "scontrol", "sinfo")
UPDATE_REST_S = 60.0  # after sinfo has failed, or scontrol, before they are used for an update
CALL_S = 20.0  # for a command of Slurm, which itself tries for some seconds
LOG_BYTES = 4096
# The notice of a preemption goes to the tasks of a batch job, not to its script (GraceTime in the
# manual of slurm.conf), so `edl host` is a task. It has the variables that the script exports.
SRUN = "srun --export=ALL --ntasks=1 --input=none --cpu-bind=none --mpi=none --quiet"
_WAITS = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"}
_WAITS |= {"RESV_DEL_HOLD", "SPECIAL_EXIT"}
# While a job completes, processes of it may live.
_RUNS = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_ENDED = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"}
_ENDED |= {"OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"}
_STATES = {
    **dict.fromkeys(_WAITS, LeaseState.ASKED),
    **dict.fromkeys(_RUNS, LeaseState.RUNNING),
    **dict.fromkeys(_ENDED, LeaseState.ENDED),
}
_ORDER = (
    LeaseState.ENDED,
    LeaseState.HELD,
    LeaseState.ASKED,
    LeaseState.UNKNOWN,
    LeaseState.RUNNING,
)
# Why Slurm holds a batch job after a start that has failed, as where a node's prolog fails. Other
# reasons to hold one are those of an administrator.
_HELD = {"launch failed requeued held", "JobHoldMaxRequeue"}
_AVOIDS = "edl avoids:"  # the beginning of the comment of a batch job
# What Slurm's commands say when slurmctld does not answer, or has only just started.
_AWAY = (
    "Unable to contact slurm controller",
    "Unable to connect",
    "Socket timed out",
    "Connection refused",
    "Connection reset",
    "Zero Bytes were transmitted",
    "Transport endpoint",
    "in standby mode",
)


@dataclass(frozen=True)
class _Batch:
    number: str
    lease: HostLease


class SlurmFleet:
    name = "slurm"

    def __init__(
        self,
        command: HostCommand,
        prefix: str,
        logs: Path,
        partition: str | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._command = command
        self._prefix = prefix
        self._logs = logs
        # never taken, whatever else a lease avoids
        self._excluded, rest = excluded_nodes(options)
        self._options = [*([f"--partition={partition}"] if partition else []), *rest]
        self._rests_until_s = -math.inf  # by the monotonic clock, before the next update

    def leases(self) -> Mapping[str, HostLease]:
        return {name: batches[-1].lease for name, batches in self._batches().items()}

    def ask(self, lease: str, shape: Shape) -> None:
        batches = self._batches().get(lease, [])
        if any(one.lease.state is not LeaseState.ENDED for one in batches):
            for one in batches:
                if one.lease.state is LeaseState.ASKED:
                    self._update(one.number, shape.avoid)
            return
        self._logs.mkdir(parents=True, exist_ok=True)
        words = ["--parsable", "--nodes=1", "--ntasks=1", "--exclusive", "--requeue"]
        words += ["--open-mode=append", "--dependency=singleton", "--export=NIL", "--chdir=/"]
        words += [f"--job-name={self._prefix}{lease}", f"--output={self._log_of(lease)}"]
        words += [f"--comment={_AVOIDS}{','.join(shape.avoid)}"]
        nodes = self._to_exclude(shape.avoid)
        words += [f"--exclude={nodes}"] if nodes else []
        script = self._command.script(lease, shape, '"$SLURMD_NODENAME"', SRUN)
        try:
            self._call("sbatch", *words, *self._options, script=script)
        except _Failed as error:
            but = f", without {nodes}" if nodes else ""
            raise LeaseRefused(f"sbatch{but}: {error}") from error

    def give_back(self, lease: str, within_s: float) -> None:
        for one in self._batches().get(lease, []):
            if one.lease.state is LeaseState.ENDED:
                continue
            waits = one.lease.state in (LeaseState.ASKED, LeaseState.HELD)
            politely = ["--signal=TERM"] if within_s > 0 and not waits else []
            with contextlib.suppress(_Failed):  # it has ended meanwhile
                self._call("scancel", *politely, one.number)

    def log(self, lease: str) -> str:
        try:
            with self._log_of(lease).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def _update(self, number: str, avoid: Sequence[str]) -> None:
        """Let the batch job `number` avoid nodes, if Slurm can do without them."""
        if time.monotonic() < self._rests_until_s:
            return
        words = ("scontrol", "update", f"JobId={number}", f"Comment={_AVOIDS}{','.join(avoid)}")
        try:
            nodes = self._to_exclude(avoid)
            # If Slurm cannot do without them, only the comment is set: it is not told again.
            for more in ((f"ExcNodeList={nodes}",), ()):
                with contextlib.suppress(_Failed):  # also if it has begun meanwhile
                    self._call(*words, *more)
                    return
        except FleetUnreachable as error:
            self._rests_until_s = time.monotonic() + UPDATE_REST_S
            logger.info("batch job %s is not told which nodes to avoid: %s", number, error)

    def _to_exclude(self, avoid: Sequence[str]) -> str:
        known: set[str] = set()
        try:
            if avoid:
                known = set(self._call("sinfo", "--noheader", "--Node", "--format=%N").split())
        except _Failed as error:
            raise FleetUnreachable(f"sinfo: {error}") from error
        nodes = ",".join(name for name in avoid if name in known)
        return ",".join(filter(None, (self._excluded, nodes)))

    def _log_of(self, lease: str) -> Path:
        return self._logs / f"{lease}.log"

    def _batches(self) -> dict[str, list[_Batch]]:
        """Return the batch jobs by lease, so that the last one is that which counts."""
        words = ["--noheader", "--me", "--states=all", "--format=%A|%j|%T|%N|%r|%k"]
        try:
            text = self._call("squeue", *words)
        except _Failed as error:
            raise FleetUnreachable(f"squeue: {error}") from error
        return parsed(text, self._prefix)

    def _call(self, *words: str, script: str | None = None) -> str:
        try:
            done = subprocess.run(
                words,
                input=script or "",
                capture_output=True,
                text=True,
                timeout=CALL_S,
                start_new_session=True,  # Ctrl-C is for the controller
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FleetUnreachable(f"{words[0]}: {error}") from error
        if done.returncode == 0:
            return done.stdout
        lines = done.stderr.strip().splitlines() or [f"it has ended with {done.returncode}"]
        if any(text in done.stderr for text in _AWAY):
            raise FleetUnreachable(lines[-1])
        raise _Failed(lines[-1].removeprefix(f"{words[0]}: error: "))


def excluded_nodes(options: Sequence[str]) -> tuple[str, list[str]]:
    nodes: list[str] = []
    others: list[str] = []
    left = iter(options)
    for option in left:
        name, is_long, value = option.partition("=")
        if option in ("--exclude", "-x"):
            value = next(left, "")
        elif option.startswith("-x"):
            value = option.removeprefix("-x")
        elif not (is_long and name == "--exclude"):
            others.append(option)
            continue
        if not value or "/" in value:
            raise UsageError(
                f"--fleet-option={option} names {'a file' if value else 'no node'}; give the names "
                "of nodes: --fleet-option=--exclude=NODE,NODE"
            )
        nodes.append(value)
    return ",".join(nodes), others


class _Failed(Exception):
    """A command of Slurm has ended with an error; the text is its last line."""


def parsed(text: str, prefix: str) -> dict[str, list[_Batch]]:
    """Return squeue's batch jobs by lease; of each the one that counts is last."""
    found: dict[str, list[_Batch]] = {}
    for line in text.splitlines():
        number, name, state, node, why, comment = (*line.split("|", 5), *[""] * 5)[:6]
        if not name.startswith(prefix):
            continue
        kind = _STATES.get(state, LeaseState.UNKNOWN)
        said = why if kind is LeaseState.ASKED and why != "None" else state.lower()
        if kind is LeaseState.ASKED and why.replace("_", " ") in _HELD:
            kind = LeaseState.HELD
        if kind is LeaseState.UNKNOWN:
            said = f"Slurm calls the state of batch job {number} {state!r}, which edl does not know"
        avoided = None  # the comment is a user's
        if comment.startswith(_AVOIDS):
            avoided = tuple(filter(None, comment.removeprefix(_AVOIDS).strip().split(",")))
        lease = HostLease(kind, node, said, avoided)
        found.setdefault(name.removeprefix(prefix), []).append(_Batch(number, lease))
    for batches in found.values():
        batches.sort(key=lambda one: (_ORDER.index(one.lease.state), int(one.number)))
    return found
