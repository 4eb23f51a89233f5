"""The jobs that stand-ins train: a thousand at once, and the submissions of a day."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from edl.cluster.manifest import BatchRange, JobManifest, PolicyHints

BATCH = 32  # samples of a worker in a step
HOSTS, SLOTS = 200, 8
SIZES = {1: 0.5, 2: 0.25, 4: 0.2, 8: 0.05}  # workers that a job of a day asks for -> its share
LOAD = 0.8  # the part of all slots that the jobs of a day keep busy, if each had what it asks for
SIGMA = 1.0  # of the logarithm of a duration
LONGEST = 4.0  # times the mean duration
NIGHT, DAY = 0.5, 1.5  # times the mean rate of arrivals, at the emptiest and the busiest hour
STEPS_S = 4.0  # steps a second of one worker alone


@dataclass(frozen=True)
class StandInJob:
    """A job, and how fast it trains.

    Attributes:
        manifest: what is submitted.
        samples: how many samples it trains.
        alone_per_s: samples a second of one worker.
        between_workers: by how much a step is longer with each further worker, as a part of a
            step.
        between_hosts: the same for each further host.
    """

    manifest: JobManifest
    samples: float
    alone_per_s: float
    between_workers: float
    between_hosts: float

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.manifest.name

    def samples_per_s(self, workers: int, hosts: int) -> float:
        """Return the throughput of so many workers on so many hosts, in samples a second."""
        longer = self.between_workers * (workers - 1) + self.between_hosts * (hosts - 1)
        return self.alone_per_s * workers / (1.0 + longer)


@dataclass(frozen=True)
class Submission:
    """A job of the day, and when it is submitted: seconds after the beginning of the day."""

    at_s: float
    job: StandInJob


def thousand(count: int, seed: int, samples: float = 1e9) -> Iterator[StandInJob]:
    """Yield jobs that ask for one worker and take up to four; they train until they are deleted.

    Args:
        count: how many.
        seed: of their speeds.
        samples: how many samples each trains.
    """
    chance = random.Random(seed)
    for number in range(count):
        yield _job(chance, f"steady-{number}", 1, 1, 4, samples)


def small(name: str, seconds: float) -> StandInJob:
    """Return a job of one worker that trains for so long."""
    return _job(random.Random(name), name, 1, 1, 1, seconds * STEPS_S * BATCH)


def day(count: int, seed: int, length_s: float) -> list[Submission]:
    """Return the submissions of a day, the earliest first.

    Jobs arrive at random, most of them around noon. Durations are log-normal; their mean is such
    that all jobs together keep ``LOAD`` of the slots busy.

    Args:
        count: how many jobs.
        seed: of their times, sizes, durations and speeds.
        length_s: how long the day lasts, in seconds.
    """
    chance = random.Random(seed)
    mean_np = sum(size * share for size, share in SIZES.items())
    mean_s = LOAD * HOSTS * SLOTS * length_s / (count * mean_np)
    found = []
    for number, at_s in enumerate(_arrivals(chance, count, length_s)):
        [np] = chance.choices(list(SIZES), list(SIZES.values()))
        drawn_s = mean_s * chance.lognormvariate(-(SIGMA**2) / 2, SIGMA)
        lasts_s = min(drawn_s, LONGEST * mean_s)
        job = _job(chance, f"day-{number}", np, max(1, np // 2), 2 * np, 0.0, lasts_s)
        found.append(Submission(at_s, job))
    return found


def _arrivals(chance: random.Random, count: int, length_s: float) -> list[float]:
    """Return ``count`` times between 0 and ``length_s``, sorted, with more of them at noon."""
    found: list[float] = []
    while len(found) < count:
        at = chance.random()
        rate = (NIGHT + DAY) / 2 - (DAY - NIGHT) / 2 * math.cos(2 * math.pi * at)
        if chance.random() * DAY < rate:
            found.append(at * length_s)
    return sorted(found)


def _job(
    chance: random.Random,
    name: str,
    np: int,
    least: int,
    most: int,
    samples: float,
    lasts_s: float | None = None,
) -> StandInJob:
    """Return a job of a speed that is drawn.

    Args:
        chance: draws it.
        name: its name.
        np: how many workers it asks for.
        least: its fewest workers.
        most: its most workers.
        samples: how many samples it trains.
        lasts_s: in place of ``samples``: how long it trains with ``np`` workers, in seconds.
    """
    alone_per_s = BATCH * STEPS_S * chance.uniform(0.5, 2.0)
    between_workers, between_hosts = chance.uniform(0.02, 0.12), chance.uniform(0.01, 0.05)
    job = StandInJob(
        JobManifest(
            name,
            ("python", "train.py"),
            least,
            most,
            np,
            batch=BatchRange(BATCH, 64 * BATCH, True) if chance.random() < 1 / 3 else None,
            hints=PolicyHints(duration_s=lasts_s),
        ),
        samples,
        alone_per_s,
        between_workers,
        between_hosts,
    )
    if lasts_s is None:
        return job
    rate = job.samples_per_s(np, 1)
    return StandInJob(job.manifest, lasts_s * rate, alone_per_s, between_workers, between_hosts)
