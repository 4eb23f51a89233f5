"""Decide whether a newcomer's model can take over the state of the job, before the newcomer joins.

The entry point is :func:`why_unfit`, which the newcomer calls.

If a newcomer ended with an error after it has joined, the other workers would have to repair the
ring, and again for each worker that is started in its place.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.core.job.fits import NO_FITS, ScriptFits
from edl.core.plural import counted
from edl.core.record import Record
from edl.errors import some

Signature = Mapping[str, str]  # the shape of each tensor of a model that workers share, by name


@dataclass(frozen=True)
class Arithmetic(Record):
    """What the last bits of a worker's results depend on: logical workers need the same ones."""

    threads: int = 0  # that compute an operation; 0: it does not matter
    instructions: str = ""  # that the libraries use on this processor; empty: they do not matter

    def __str__(self) -> str:
        return f"{counted(self.threads, 'thread')}, {self.instructions}"

    @property
    def checksum(self) -> int:
        """The CRC-32 of `instructions`, by which workers compare them."""
        return zlib.crc32(self.instructions.encode())

    def why_unlike(self, job: Arithmetic) -> str:
        """Return why a newcomer with this arithmetic cannot join the job; empty if it can."""
        if self.threads and job.threads and self.threads != job.threads:
            return OTHER_THREADS.format(mine=self.threads, job=job.threads)
        if self.instructions and job.instructions and self.instructions != job.instructions:
            mine, pins = self.instructions, self._pins
            return OTHER_INSTRUCTIONS.format(mine=mine, job=job.instructions, pins=pins)
        return ""

    @property
    def why_instructions_differ(self) -> str:
        """The error message for workers of a job that compute by different instructions."""
        return INSTRUCTIONS_DIFFER.format(mine=self.instructions, pins=self._pins)

    @property
    def _pins(self) -> str:
        """The variables that set the instructions of the libraries in `instructions`, as text."""
        pins = [pin for library, pin in PINS.items() if f"{library} " in self.instructions]
        pins = pins or [*PINS.values()]
        return " and ".join([", ".join(pins[:-1]), pins[-1]] if len(pins) > 1 else pins)


@dataclass(frozen=True)
class ScriptOfJob:
    """A script, as a worker in the ring describes it to a newcomer that is about to join."""

    signature: Signature = field(default_factory=dict)  # empty: it has no model yet
    fits: ScriptFits = NO_FITS
    # The epoch of an unchanged Horovod script, by its own number; None: it is none, or not there.
    epoch: int | None = None
    arithmetic: Arithmetic = Arithmetic()


OTHER_THREADS = (
    "it computes with {mine} threads and the job's workers with {job}, by which the last bits of a "
    "result may differ; set OMP_NUM_THREADS, the same on all hosts, or start the job without "
    "--logical"
)
OTHER_INSTRUCTIONS = (
    "its processor computes by other instructions ({mine}) than those of the job's workers "
    "({job}), by which the last bits of a result may differ; set {pins} on all hosts, or start the "
    "job without --logical"
)
INSTRUCTIONS_DIFFER = (
    "the workers' processors compute by different instructions (here: {mine}), by which the last "
    "bits of a result may differ; set {pins} on all hosts, or leave out --logical"
)
PINS = {  # what sets the instructions of each library
    "ATen": "ATEN_CPU_CAPABILITY=avx2",
    "oneDNN": "ONEDNN_MAX_CPU_ISA=AVX2",
    "MKL": "MKL_CBWR=AVX2",
}
BUILT_BEFORE = (
    "build all modules before the loop over the epochs, those that are trained later, too: a "
    "newcomer begins in the job's epoch, and has not run what a script does in epochs before"
)
ALIKE_IN_FITS = (
    "all workers must freeze, unfreeze and compile the model alike before a fit, whatever the "
    "numbers that they see"
)


def why_unfit(mine: Signature, theirs: Signature, advice: str = BUILT_BEFORE) -> str:
    """Return why a newcomer's model does not fit the job's; empty if it does, or is not known."""
    if not mine or not theirs or mine == theirs:
        return ""
    if lacking := sorted(theirs.keys() - mine.keys()):
        return f"the job's model has {some(lacking)}, and this newcomer's has not; {advice}"
    if odd := sorted(mine.keys() - theirs.keys()):
        return f"this newcomer's model has {some(odd)}, and the job's has not; {advice}"
    differing = [
        f"{name} has shape {mine[name]} in this newcomer's model and {theirs[name]} in the job's"
        for name in sorted(mine)
        if mine[name] != theirs[name]
    ]
    return f"{some(differing)}; all workers must build the same model"
