"""Decide whether a newcomer's model can take over the state of the job, before the newcomer joins.

If it ended with an error after it has joined, the others would have to repair the ring, and again
for each worker that is started in its place.
"""

from __future__ import annotations

import numbers
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edl.errors import EdlError, some
from edl.job.stall import FOR_COLLECTIVE, FOR_GRADIENTS, FOR_NUMBERS
from edl.record import Record
from edl.text import counted

UNSERVED_S = 3.0  # a collective of the script that waits so long lacks who has returned


def waits_for_ended(
    report: Mapping[str, Any], generation: int, step: int, exchanges: int, updates: int = 0
) -> str:
    """Return what a worker waits for from another one, whose script has ended; empty: nothing."""
    # `report` is its `/health` page; the numbers are of what the ended one has completed. In the
    # last step or exchange of these a worker waits for nobody, but needs the processor.
    doing, ring = report.get("activity", {}).get("doing"), report.get("ring", {})
    if ring.get("generation") != generation:
        return ""
    if doing == FOR_GRADIENTS and not updates and report.get("step", 0) >= step:
        return FOR_GRADIENTS
    if doing == FOR_NUMBERS and ring.get("exchanges", 0) > exchanges:
        return FOR_NUMBERS
    # Of an elastic script: whoever has returned has completed all of its own collectives.
    if doing in (FOR_GRADIENTS, FOR_COLLECTIVE) and ring.get("updates", 0) >= updates > 0:
        return FOR_COLLECTIVE
    return ""


# ------------------------------------------------------------
# What workers send to each other before the training. Exchanges are numbered from 0, and kept as
# JSON: `{"exchanges": [...]}`, each `{"sent": {worker id: payload}}` as long as a worker is
# missing, and after that `{"answer": [payloads in rank order]}`.


def with_payload(
    values: Mapping[str, Any], number: int, worker: int, payload: str, members: Sequence[int]
) -> dict[str, Any]:
    exchanges = [*values.get("exchanges", [])]
    exchanges += [{"sent": {}}] * (number + 1 - len(exchanges))
    # An answer stays as it is, so that all workers get the same one.
    if "answer" not in exchanges[number]:
        sent = {**exchanges[number]["sent"], str(worker): payload}
        missing = [member for member in members if str(member) not in sent]
        one = {"sent": sent} if missing else {"answer": [sent[str(member)] for member in members]}
        exchanges[number] = one
    return {**values, "exchanges": exchanges}


def answer_of(values: Mapping[str, Any], number: int) -> list[str] | None:
    exchanges = values.get("exchanges", [])
    if number >= len(exchanges):
        return None
    answer: list[str] | None = exchanges[number].get("answer")
    return answer


# ------------------------------------------------------------
# A *fit* is one call of Keras' `fit`. A job goes through the fits of its script one after the
# other, over the epochs of one data set. A newcomer, or a job that is resumed, skips those that are
# done: its state comes from the present fit, whose model and optimizer may be others.


@dataclass(frozen=True)
class DoneFit:
    until: int  # how many epochs the job had trained then, over all fits
    epochs: Sequence[int] = ()  # as in Keras' `History.epoch`
    # As in Keras' `History.history`: the metrics by name, as JSON values.
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class ScriptFits:
    done: tuple[DoneFit, ...] = ()
    begun: int = 0  # the finished ones included


NO_FITS = ScriptFits()


class FitIsDone(EdlError):
    """Raised inside a call of Keras' `fit` that the job has done already, so that it is skipped."""

    def __init__(self, done: Sequence[DoneFit]) -> None:
        super().__init__(f"the job has done {counted(len(done), 'fit')}")
        self.done = tuple(done)


def fits_of(said: Any) -> tuple[DoneFit, ...]:
    return tuple(DoneFit(**each) for each in said)


def as_json(fits: Sequence[DoneFit]) -> list[dict[str, Any]]:
    """Return one JSON object for each finished fit, in order, for newcomers and for checkpoints."""
    return [vars(each) for each in fits]


def json_value(value: Any) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    if isinstance(value, list | tuple):
        return [json_value(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): json_value(one) for name, one in value.items()}
    return str(value)


def ended_before(worker: int, passed: int, begun: int) -> str:
    return (
        f"w{worker} cannot join: its script ended after {counted(passed, 'fit')}, and the job is "
        f"in fit {begun}; all workers must call fit as often, whatever the numbers that they see"
    )


def resumed_too_short(passed: int, saved: int) -> str:
    return (
        f"the checkpoint is of fit {saved + 1}, and the script ended after "
        f"{counted(passed, 'fit')}; resume with the script that has made it, or begin in another "
        "directory"
    )


def passed_too_far(worker: int, passed: int, saved: int) -> str:
    return (
        f"the checkpoint is of fit {saved + 1}, and w{worker} has passed over "
        f"{counted(passed, 'fit')}; start the job again with `edl run --resume`"
    )


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
        return zlib.crc32(self.instructions.encode())

    def why_unlike(self, job: Arithmetic) -> str:
        """Return why a newcomer with this arithmetic cannot join the job; empty if it can."""
        if self.threads and job.threads and self.threads != job.threads:
            return (
                f"it computes with {self.threads} threads and the job's workers with "
                f"{job.threads}, by which the last bits of a result may differ; set "
                "OMP_NUM_THREADS, the same on all hosts, or start the job without --logical"
            )
        if self.instructions and job.instructions and self.instructions != job.instructions:
            return (
                f"its processor computes by other instructions ({self.instructions}) than those of "
                f"the job's workers ({job.instructions}), by which the last bits of a result may "
                f"differ; set {self._pins} on all hosts, or start the job without --logical"
            )
        return ""

    @property
    def why_instructions_differ(self) -> str:
        return (
            "the workers' processors compute by different instructions (here: "
            f"{self.instructions}), by which the last bits of a result may differ; set "
            f"{self._pins} on all hosts, or leave out --logical"
        )

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
    protocol: int | None = None  # of its step records; 0: an edl that does not say; None: not known

    @property
    def is_described(self) -> bool:
        """Whether the script has come to something that a newcomer must match."""
        return replace(self, protocol=None) != ScriptOfJob()


OTHER_PROTOCOL = (
    "the job trains with another version of edl than this host's ({version}), and their workers "
    "cannot share a ring; install the job's version here, or stop the job and start it again with "
    "--resume"
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
