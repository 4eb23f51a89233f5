"""Give each slot to the job where it is worth most, as if no further job came (AFS-L).

:class:`AfsL` is the policy. The rule is that of Apathetic Future Share with known lengths (Hwang
et al., NSDI 2021, section 4). Slots are given one by one. The job that gets a slot is found by
comparing jobs pairwise, the winner so far with the next job, in the order of submission. Of two
jobs without slots the shorter one wins. Otherwise let a be the job that would end first with the
slots that both have now, and b the other. With p their present speeds, and p' their speeds with one
more slot, b wins if

    (p'_b - p_b) / p'_b  >  (p'_a - p_a) / p_a

and a wins if not. So a short job is preferred, unless the slot would be of little use to it: b
keeps what it gains now for a long time, while a will soon leave its slots to other jobs anyway.

The rule and the loop are the authors'. The paper does not say the following, which is edl's own: a
job without slots gets its minimum at once, or none. Such a job counts as longer than a job that has
slots. A job that would not be faster with one more slot is no candidate (the authors give out all
slots). Lengths and speeds are those with the batch that the job has now, on as few nodes as
possible. While there are fewer slots than jobs, the longest jobs wait, with no bound while shorter
jobs arrive. Jobs with slots that may not be preempted keep them, and take no part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from edl.cluster.placing import compact, place_slots
from edl.cluster.state import Allocation, ClusterJob, ClusterState
from edl.text import counted


@dataclass(frozen=True)
class AfsL:
    """The cluster policy `afs_l`: each slot goes to the job where it is worth most (AFS-L)."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        fixed = cluster.fixed
        left = cluster.slots - sum(fixed.values())
        largest = cluster.per_node
        shares = [JobShare(job, largest) for job in cluster.jobs if job.name not in fixed]
        give(shares, left)
        sizes = fixed | {one.job.name: one.slots for one in shares if one.slots}
        reasons = dict.fromkeys(fixed, "keeps its slots: it may not be preempted")
        reasons |= {one.job.name: one.reason() for one in shares}
        return Allocation(place_slots(sizes, cluster), reasons, cluster.state)


@dataclass
class JobShare:
    """The slots that one job has been given so far, and the effect of giving it more."""

    job: ClusterJob  # the job, with its limits and its model of step times
    slots_a_node: int  # the slots of the largest node
    slots: int = 0  # the number of slots that the job has been given so far in this decision
    step_s: float = math.inf  # the seconds of a step with these slots; infinite without slots
    # the seconds of a step with `more` additional slots; infinite if the job may not have so many
    next_s: float = field(init=False)
    # the number of slots that the job is given next: 1, or its minimum if it has none
    more: int = field(init=False)
    most: int = field(init=False)  # the most slots that it may have with its present batch

    def __post_init__(self) -> None:
        self.most = self.job.most_slots(self.job.batch)
        self._look_ahead()

    def take(self) -> None:
        """Add `more` slots to the job's, without a check."""
        self.slots += self.more
        self.step_s = self.next_s
        self._look_ahead()

    def fits(self, left: int) -> bool:
        """Return whether the job may be given its next `more` slots."""
        within = self.slots + self.more <= self.most
        return within and self.more <= left and self.next_s < self.step_s

    @property
    def length_s(self) -> float:
        """The seconds until the job's end if it keeps the `slots` given so far."""
        if not self.slots:
            return math.inf
        return self.job.model.steps_left(self.job.batch) * self.step_s

    @property
    def first_length_s(self) -> float:
        """The seconds until the job's end with `more` slots in addition to those it has."""
        return self.job.model.steps_left(self.job.batch) * self.next_s

    @property
    def gain_of_next(self) -> float:
        """By what the next `more` slots make the job faster, as a fraction of the new speed."""
        return 1 - self.next_s / self.step_s

    @property
    def gain_of_now(self) -> float:
        """By what the next `more` slots make the job faster, as a fraction of its present speed."""
        return self.step_s / self.next_s - 1

    def reason(self) -> str:
        """Return the clause that says why the job has its slots, or why it waits."""
        if not self.slots:
            needs = counted(self.job.min_slots, "slot")
            return f"waits: it needs {needs}, and shorter jobs have all others"
        slots = counted(self.slots, "slot")
        if self.slots >= self.most:
            return f"has {slots}, the most that it may have: {self.length_s:.0f} s are left"
        faster = 100 * self.gain_of_now
        return f"has {slots}: {self.length_s:.0f} s are left, one more is worth {faster:.1f} %"

    def _look_ahead(self) -> None:
        """Compute `more`, the number of slots that the job is given next, and `next_s`."""
        self.more = 1 if self.slots else self.job.min_slots
        wanted = self.slots + self.more
        self.next_s = math.inf
        if wanted <= self.most:
            self.next_s = self.job.model.step_s(compact(wanted, self.slots_a_node), self.job.batch)


def give(shares: Sequence[JobShare], left: int) -> None:
    """Give the `left` free slots to jobs, one job after the other, as `preferred` chooses."""
    while left:
        candidates = [one for one in shares if one.fits(left)]
        if not candidates:
            return
        first = candidates[0]
        for other in candidates[1:]:
            first = preferred(first, other)
        left -= first.more
        first.take()


def preferred(one: JobShare, other: JobShare) -> JobShare:
    """Return which of two jobs gets the next slot, by the AFS-L rule."""
    if not one.slots and not other.slots:
        return other if other.first_length_s < one.first_length_s else one
    # the one that would end first, unless the other's gain, over its new speed, is above its own
    # over its present speed
    a, b = (other, one) if other.length_s < one.length_s else (one, other)
    return b if b.gain_of_next > a.gain_of_now else a
