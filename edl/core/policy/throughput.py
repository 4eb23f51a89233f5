"""Add workers as long as each adds enough throughput, compared with a worker that is there already.

:class:`Throughput` is the size rule. With throughput R_k of k workers, d more workers are worth it
when

    s = ((R_(k+d) - R_k) / d) / (R_k / k)  >  threshold

s is 1 if each new worker brings as much as an old one, and 0 if the new ones bring nothing
(AutoScaling, MLSys 2020, whose threshold is 0.1).
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.plural import verb
from edl.core.policy.hill_climbing import HillClimbing, SizeComparison
from edl.core.policy.observation import Observation
from edl.core.settings import setting


@dataclass(frozen=True)
class Throughput(HillClimbing):
    """The size rule `throughput`, which adds workers while each brings enough throughput."""

    threshold: float = setting(
        0.1, "a worker more must bring this part of what one of the present ones does"
    )

    def compare(self, now: Observation, fewer: int, more: int) -> SizeComparison:
        share = marginal_share(now, fewer, more)
        what = ordinal(more) if more == fewer + 1 else f"{more - fewer} more than {fewer}"
        pays = share > self.threshold
        relation = "more than" if pays else "less than"
        if share == self.threshold:
            relation = "not more than"
        brings = "brings" if more == fewer + 1 else verb(more - fewer, "brings", "bring")
        its = "its" if brings == "brings" else "their"
        why = f"{what} {brings} {share:.2f} of {its} share, {relation} {self.threshold:.2f}"
        return SizeComparison(fewer, more, pays, why)


def marginal_share(now: Observation, fewer: int, more: int) -> float:
    """Return the throughput of each additional worker, relative to that of each old one."""
    base, gain = now.seen[fewer].samples_per_s, now.seen[more].samples_per_s
    each = base / fewer
    return ((gain - base) / (more - fewer)) / each if each > 0 else 0.0


def ordinal(number: int) -> str:
    """Return a phrase for the `number`-th worker of a job: "a 5th worker", "a 21st worker"."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    text = str(number)
    article = "an" if text.startswith("8") or number in (11, 18) else "a"
    return f"{article} {number}{ending} worker"
