"""The CPU time of one worker's Python for everybody's step records, each step: the median."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.page import Section
from edl.step.ledger import LeasePolicy, Ledger, complete_step, grant, start_epoch
from edl.step.record import (
    Slowest,
    StepRecord,
    StepRecords,
    agreed_generation,
    check_records,
    counts,
    global_samples,
    samples_for,
    stopping,
    wanting_to_stop,
)
from edl.step.state_check import split_of
from edl.step.weighting import Share, weigh

BATCH = 32
POLICY = LeasePolicy(BATCH)
REPEATED = 40
SIZES = (16, 64, 256, 1024)


@dataclass(frozen=True)
class StepRecordCost:
    """Medians, in seconds of CPU time. ``asking_s``: of a step in which all ask for new leases."""

    workers: int
    usual_s: float
    asking_s: float


def measure(say: Callable[[str], None]) -> list[StepRecordCost]:
    """At each size."""
    found = [step_records(workers) for workers in SIZES]
    for one in found:
        say(f"step records of {one.workers}: {1e3 * one.usual_s:.2f} ms of Python")
    return found


def section(found: Sequence[StepRecordCost]) -> Section:
    """Return the section on step records, with a row for each number of workers."""
    rows = [
        [f"{one.workers} workers", f"{1e3 * one.usual_s:.2f}", f"{1e3 * one.asking_s:.2f}"]
        for one in found
    ]
    head = ["", "a step, ms", "a step in which all ask for new leases, ms"]
    notes = ["A worker asks for a new lease when one is used up: every eight batches, usually."]
    return Section("Step records", " ".join((__doc__ or "").split()), head, rows, notes)


def step_records(workers: int) -> StepRecordCost:
    """Each worker has two batches in its leases, of an epoch of 10^8 samples."""
    needs = [(worker, 2 * BATCH) for worker in range(workers)]
    ledger = grant(start_epoch(10**8, 0), needs, POLICY)
    return StepRecordCost(workers, _median(ledger, 0), _median(ledger, 2 * BATCH))


def _median(ledger: Ledger, wanted: int) -> float:
    rows = [
        StepRecord(1, 5, worker, 0, BATCH, spans[0][0], wanted, 1, ledger.digest())
        for worker, spans in ledger.leases
    ]
    records, slowest = StepRecords.of(rows), Slowest()
    return median(_seconds(lambda: _look(records, ledger, slowest)) for _ in range(REPEATED))


def _look(records: StepRecords, ledger: Ledger, slowest: Slowest) -> None:
    """Do what :mod:`edl.worker.loader_steps` and the reduction do with the records of a step."""
    check_records(records)
    split_of(records)
    counts(records)
    weigh(samples_for(records, 0), records.column("batches"), Share(BATCH), BATCH)
    after = complete_step(ledger, records, POLICY)
    global_samples(records)
    stopping(wanting_to_stop(records))
    slowest.look(records)
    agreed_generation(records)
    after.digest()
    after.held_samples(0)


def _seconds(work: Callable[[], None]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began
