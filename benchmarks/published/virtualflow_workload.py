"""Make VirtualFlow's 20 jobs, which ran on 8 slots of one node: :func:`virtualflow_jobs`.

``data/virtualflow/NOTICE`` says where they come from. A job's work is the time that it took with
all its slots, without its start. With fewer slots its virtual nodes take turns. The slowdown
follows Amdahl's law; it was fitted for each kind of job to the authors' run with weighted fair
shares. A start took 64 to 105 s there, 80 s in the mean; a resize stopped a job for 0.1 to 1.2 s.

Two things are not simulated: new workers boot for 60 to 90 s, beside the job, until they join, and
slots are kept for 10 s after their job has ended.
"""

from __future__ import annotations

import csv
from importlib.resources import files

from edl.simulator.costs import ResizeCost
from edl.simulator.workload import SubmittedJob, TimedWork

NODES, SLOTS = 1, 8
START_S = 80.0
RESIZE = ResizeCost(start=START_S, restart=START_S, join=0.5, leave=0.5, migrate=0.5)
# The fraction of the work of each kind that more slots share (Amdahl's law). It was fitted by least
# squares to the logarithm of the work that jobs of the kind did in the run by weighted fair shares,
# by the sizes that they had and for how long. BERT gains little by more slots.
PARALLEL = {
    "resnet-imagenet": 0.93,
    "resnet-cifar10": 0.93,  # one job, with one slot
    "transformer": 0.90,
    "bert-cola": 0.30,
    "bert-sst2": 0.30,
}


def virtualflow_jobs() -> list[SubmittedJob]:
    """Return VirtualFlow's 20 jobs, in the order of submission."""
    made = []
    for row in virtualflow_rows():
        slots = int(row["slots"])
        duration_s = float(row["took_s"]) - float(row["startup_s"] or START_S)
        work = TimedWork(duration_s, slots, PARALLEL[row["kind"]])
        made.append(
            SubmittedJob(
                name=row["name"],
                arrival_s=float(row["time_s"]),
                work=work,
                requested_slots=slots,
                min_slots=1,
                max_slots=slots,
                kind=row["kind"],
                weight=float(row["weight"]),
            )
        )
    return made


def virtualflow_rows() -> list[dict[str, str]]:
    """Return the rows of the published table, one a job: the text of each cell by its column."""
    text = (files("benchmarks.published") / "data" / "virtualflow" / "jobs.csv").read_text()
    return list(csv.DictReader(text.splitlines()))
