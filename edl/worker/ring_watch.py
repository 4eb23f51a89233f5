"""Summarise how fast the workers of a ring train, by their step records.

The job's policy, `edl policy explain` and the dashboard use the summary. By its speed each worker
sets its share: the part of a full batch that it trains in a step, as its step record says. The
leader also replaces workers that are too slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edl.core.policy.observation import State
from edl.core.policy.ring_report import NO_REPORT, RingReport
from edl.core.policy.stragglers import NO_MITIGATION, Times
from edl.core.records import Generation
from edl.core.step.step_record import StepRecords
from edl.worker.loader_progress import LoaderProgress
from edl.worker.shared_state import SharedState
from edl.worker.switching import Switching

EVERY = 10  # steps between two reports
COLUMNS = ("compute_us", "data_us", "reduce_us")


class RingWatch:
    """A summary of the step times of the workers in one ring, for the job's policy."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        self._state: State = {}
        self._generation = 0
        self._before: npt.NDArray[np.int64] | None = None  # samples by rank in the step before
        self._rows: list[npt.NDArray[np.int64]] = []

    def look(
        self,
        records: StepRecords,
        switching: Switching,
        progress: LoaderProgress,
    ) -> None:
        """Add a complete step; every tenth step, report on the ring and set this worker's share."""
        sampler, batching = progress.sampler, progress.source.batching
        policy, generation = self._shared.policy, switching.generation
        if generation is None:
            self._shared.ring, self._generation = NO_REPORT, 0
            sampler.share(1.0)
            return
        if generation.number != self._generation:
            self._restart(generation)
        times = self._add(records, generation)
        if policy is None and not batching.is_chosen:
            known = self._shared.ring.times if times is None else tuple(times)
            self._shared.ring = RingReport(
                times=known,
                batching=batching,
                step_batches=progress.step_batches,
                generation=generation.number,
            )
            sampler.share(1.0)
            return
        if times is None:
            if self._shared.ring.batching != batching:  # a policy's choice needs it
                self._shared.ring = replace(self._shared.ring, batching=batching)
            return
        care = NO_MITIGATION
        if policy is not None and policy.stragglers is not None:
            care = policy.stragglers(times, self._state)
            self._state = care.state
            if not sampler.takes_shares:
                care = care._replace(shares={})
        wishes = tuple(records.values("size_change"))
        self._shared.ring = RingReport(
            care,
            tuple(times),
            wishes,
            noise=progress.noise.scale,
            batching=batching,
            step_batches=progress.step_batches,
            generation=generation.number,
        )
        sampler.share(care.shares.get(switching.worker, 1.0))

    def _restart(self, generation: Generation) -> None:
        """Begin to measure the ring of `generation`, without the step times measured before."""
        members = map(str, generation.worker_ids)
        self._state = {name: self._state[name] for name in members if name in self._state}
        self._generation, self._before = generation.number, None
        self._rows.clear()

    def _add(self, records: StepRecords, generation: Generation) -> list[Times] | None:
        """Add the step records of a step; every tenth time, return the workers' mean times."""
        before, self._before = self._before, records.column("samples").copy()
        if before is None:  # a record tells of the times of the step before
            return None
        self._rows.append(np.stack([before, *(records.column(name) for name in COLUMNS)]))
        if len(self._rows) < EVERY:
            return None
        rows = np.stack(self._rows)
        self._rows.clear()
        return _times(rows, records.values("worker"), generation)


def _times(
    rows: npt.NDArray[np.int64], workers: Sequence[int], generation: Generation
) -> list[Times]:
    """Return the mean times (in seconds) and samples of each worker per step, in rank order."""
    hosts: Mapping[int, str] = {member.id: member.host for member in generation.members}
    # `rows`: (steps, 4, workers): samples, then `COLUMNS` in microseconds. A small batch at the end
    # of an epoch says nothing about the speed.
    samples = rows[:, 0]
    usual = (samples > 0) & (2 * samples > samples.max(axis=0))
    steps = usual.sum(axis=0)
    means = (rows * usual[:, None]).sum(axis=0) / np.maximum(steps, 1)
    found = zip(workers, steps.tolist(), *means.tolist(), strict=True)
    return [
        Times(w, hosts.get(w, ""), count, compute / 1e6, data / 1e6, reduce / 1e6, steps)
        for w, steps, count, compute, data, reduce in found
    ]
