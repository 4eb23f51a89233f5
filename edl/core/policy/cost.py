"""Choose as many workers as are worth their price: the size rule :class:`Cost`.

With R_k the throughput of k workers in samples a second, the time T and the cost C of the whole
training are

    T_k = elapsed + left / R_k        C_k = price * (worker time so far + k * left / R_k)

where ``elapsed`` is the time since training began, ``left`` the number of samples still to train,
and the worker time so far is the sum, over all workers, of the time that each has spent in the job.
d more workers than k pay when the utility U of the time grows by more than the cost:

    U(T_(k+d)) - U(T_k)  >  C_(k+d) - C_k        (AutoScaling, MLSys 2020)

U is a curve that falls with the time, in the currency of the cost. Instead of a utility, a job can
have a deadline and a highest cost: then the rule chooses as few workers as meet the deadline,
within the highest cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from edl.core.policy.hill_climbing import HillClimbing, SizeComparison
from edl.core.policy.observation import Observation, State, Suggestion
from edl.core.settings import setting

HOUR_S = 3600.0
UNKNOWN_END = (
    "nobody knows how much is left to train: only edl's loaders tell, with the number of epochs"
)


@dataclass(frozen=True)
class Cost(HillClimbing):
    """The size rule `cost`: it adds workers while they are worth their price, in any currency."""

    price: float = setting(0.0, "of a worker for an hour", least=0.0)
    deadline_s: float | None = setting(None, "when the training shall have ended")
    max_cost: float | None = setting(None, "what it may cost altogether", least=0.0)
    utility: tuple[tuple[float, float], ...] = setting(
        (), "what it is worth by when it ends: (seconds, value), straight lines between"
    )

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        if now.left is None:
            return Suggestion(now.np, f"stays at {now.np}: {UNKNOWN_END}", state)
        return super().__call__(now, state, now_s)

    def compare(self, now: Observation, fewer: int, more: int) -> SizeComparison:
        """Return a comparison that says whether `more` workers instead of `fewer` pay, and why."""
        if now.left is None:
            return SizeComparison(fewer, more, False, UNKNOWN_END)
        ends, costs = self.forecast(now, more)
        ended, cost = self.forecast(now, fewer)
        with_more = f"with {more} it ends after {span(ends)} for {costs:.2f}"
        beside = f"with {fewer} after {span(ended)} for {cost:.2f}"
        if self.utility:
            gain = worth(self.utility, ends) - worth(self.utility, ended)
            pays = gain > costs - cost
            return SizeComparison(
                fewer, more, pays, f"{with_more}, {beside}: {gain:.2f} more worth it"
            )
        # Without a utility they pay if they end earlier for at most `max_cost`, and fewer workers
        # would be too late.
        late = self.deadline_s is None or ended > self.deadline_s
        affordable = self.max_cost is None or costs <= self.max_cost
        if not late:
            why = f"{beside}, before its deadline"
        elif not affordable:
            why = f"{with_more}, more than {self.max_cost:.2f}"
        else:
            why = f"{with_more}, {beside}"
        return SizeComparison(fewer, more, late and affordable and ends < ended, why)

    def forecast(self, now: Observation, np: int) -> tuple[float, float]:
        """Return when the training ends, and its whole cost, if `np` workers train from now on."""
        assert now.left is not None
        rate = now.seen[np].samples_per_s
        rest_s = now.left / rate if rate > 0 else float("inf")
        return now.elapsed_s + rest_s, self.price / HOUR_S * (now.worker_s + np * rest_s)


def worth(curve: Sequence[tuple[float, float]], at_s: float) -> float:
    """Return the value of a utility curve at the time `at_s`; its last line goes on."""
    points = sorted(curve)
    if at_s <= points[0][0] or len(points) == 1:
        return points[0][1]
    for (start, high), (end, low) in pairwise(points):
        if at_s <= end or (end, low) == points[-1]:
            return high + (low - high) * (at_s - start) / (end - start)
    raise AssertionError("the last line has no end")


def span(seconds: float) -> str:
    """Return `seconds` for people: "45 s", from 120 s on "12 min", from 2 h on "2.5 h"."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * HOUR_S else f"{seconds / HOUR_S:.1f} h"
