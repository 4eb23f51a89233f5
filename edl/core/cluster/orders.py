"""Define what a plan of a cluster asks the runs of jobs to do.

**How an order is carried out.** After the plan's records are written, and under the fence of the
same term; one after another, each to its end (done, refused, or the session is lost) before the
cluster is read again. An order that is lost is in the next plan again, and an order that is carried
out twice changes nothing the second time.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster.view import Devices


@dataclass(frozen=True)
class CreateRun:
    """Create the run of a job, if the job's node has not got it yet."""

    job: str  # the name of the job
    run: str  # the token of the run
    # host -> the devices that the run may use there; their number is that of the workers
    devices: Devices
    # the global batch that the policy has chosen, in samples; None: the script chooses it
    batch: int | None = None


@dataclass(frozen=True)
class PlaceRun:
    """Let a run use other devices, by one compare-and-set of its desired and assigned workers."""

    job: str  # the name of the job
    run: str  # the token of the run
    # host -> the devices that the run may use there. A host on which it may use none, and has or
    # had an agent, is in it with no devices.
    devices: Devices
    # the version of the run's record `assigned` that was read; with another one the order is
    # refused
    version: int
    # the global batch that the policy has chosen, in samples; None: the script chooses it
    batch: int | None = None
    reason: str = ""  # why, in a sentence, for the run's record


@dataclass(frozen=True)
class StopRun:
    """Stop a run, if it is not over."""

    job: str  # the name of the job
    run: str  # the token of the run; a run of another token is left alone
    # whether the run saves a checkpoint and ends by itself. If not, its record says at once that it
    # is over, so that no process can join it any more.
    checkpoint: bool
    reason: str = ""  # why, in a sentence, for the run's record


Order = CreateRun | PlaceRun | StopRun
