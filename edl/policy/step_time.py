"""Model the time of a training step by workers, hosts and local batch.

The model is Pollux' (OSDI 2021, section 3.2, and ``adaptdl/goodput.py``). With K workers on N hosts
and m samples of each worker in a step (the local batch):

    T_compute = alpha_c + beta_c m
    T_reduce  = 0                            if K = 1
                alpha_r + beta_r (K - 2)     if K > 1 and N = 1
                alpha_n + beta_n (K - 2)     if K > 1 and N > 1
    T_step    = (T_compute^gamma + T_reduce^gamma)^(1 / gamma)

:class:`StepTime` holds the seven parameters. :func:`edl.policy.step_time_fit.fit` finds them
from measured steps (:class:`StepTimeSample`).

Importing this module imports no NumPy, since every `edl` command reads records with these classes:
only the methods for many steps at once do, when they are called.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl.record import Record

if TYPE_CHECKING:
    from edl.policy.step_time_formula import Vector

TINY = 1e-8  # the least value of a parameter, in seconds; also the value of one that costs nothing


@dataclass(frozen=True)
class StepTimeSample:
    """A measured step time, of one step or as a mean of many."""

    workers: int
    hosts: int
    batch: float  # samples of each worker in the step, on average; above 0
    step_s: float  # above 0
    compute_s: float | None = None  # without the reduction, above 0; None: not measured


@dataclass(frozen=True)
class StepTime(Record):
    compute_s: float = TINY  # alpha_c, which does not depend on the batch
    each_sample_s: float = TINY  # beta_c
    reduce_s: float = TINY  # alpha_r, between two workers on one host
    each_worker_s: float = TINY  # beta_r, of each further worker on that host
    far_reduce_s: float = TINY  # alpha_n, between two workers on two hosts
    each_far_worker_s: float = TINY  # beta_n, of each further worker on any host
    overlap: float = 1.0  # gamma, from 1 (one after the other) to 10 (both at the same time)

    @property
    def fitted(self) -> int:
        """The number of parameters that measurements have set; the others cost nothing."""
        return sum(value > TINY for value in self._parameters()[:-1]) + (self.overlap != 1.0)

    def step_s(self, workers: int, hosts: int, batch: float) -> float:
        """Return the predicted time of a step; arrays would take thirty times as long."""
        compute_s, reduce_s = self.compute_s + self.each_sample_s * batch, 0.0
        if workers > 1 and hosts > 1:
            reduce_s = self.far_reduce_s + self.each_far_worker_s * (workers - 2)
        elif workers > 1:
            reduce_s = self.reduce_s + self.each_worker_s * (workers - 2)
        longest_s, gamma = max(compute_s, reduce_s), self.overlap
        powers = (compute_s / longest_s) ** gamma + (reduce_s / longest_s) ** gamma
        return float(longest_s * powers ** (1.0 / gamma))

    def steps_s(self, workers: Vector, hosts: Vector, batch: Vector) -> Vector:
        """Return the predicted times of many steps in seconds, as an array."""
        from edl.policy.step_time_formula import steps_s

        return steps_s(self._parameters(), workers, hosts, batch)

    def throughput(self, workers: int, hosts: int, batch: float) -> float:
        """Return the predicted throughput of all workers together, in samples a second."""
        return self.throughputs(workers, hosts, [batch])[0]

    def throughputs(self, workers: int, hosts: int, batches: Sequence[float]) -> list[float]:
        from edl.policy.step_time_formula import throughputs

        return throughputs(self._parameters(), workers, hosts, batches)

    def _parameters(self) -> tuple[float, ...]:
        parts = (self.compute_s, self.each_sample_s, self.reduce_s, self.each_worker_s)
        return (*parts, self.far_reduce_s, self.each_far_worker_s, self.overlap)
