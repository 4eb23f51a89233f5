"""AFS-L: each slot goes where it is worth most, as long as nobody knows what comes later.

The rule is that of Apathetic Future Share with known lengths (Hwang et al., NSDI 2021, section 4).
Slots are given one by one. The candidate for each is found by comparing jobs pairwise, the winner
so far with the next, in the order of submission. Of two without slots the shorter one wins. Else,
let a be the one that would end first with what each has now, b the other, p their speeds now and
p' those with one slot more: b wins if

    (p'_b - p_b) / p'_b  >  (p'_a - p_a) / p_a

else a does. So a short job is preferred, but not if the slot would be of little use to it: what b
gains now it has for long, while a will soon leave its slots to others anyway.

Theirs are the rule and the loop. They were silent on the following, which is ours: a job without
slots gets its minimum at once, or none; it counts as longer than one that has some; a job that
would not be faster with one more is no candidate (they give out all slots); lengths and speeds are
those of the batch that the user requested, on as few nodes as can be. While there are fewer slots
than jobs, the longest jobs wait, with no bound while shorter ones arrive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from edl.core.cluster.placing import compact, place
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.plural import counted


@dataclass(frozen=True)
class AfsL:
    """Policy ``afs_l``."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        """See :class:`edl.core.cluster.state.Policy`."""
        fixed = cluster.fixed
        left = cluster.slots - sum(fixed.values())
        largest = cluster.per_node
        shares = [JobShare(job, largest) for job in cluster.jobs if job.name not in fixed]
        give(shares, left)
        sizes = fixed | {one.job.name: one.slots for one in shares if one.slots}
        reasons = dict.fromkeys(fixed, "keeps its slots: it may not be preempted")
        reasons |= {one.job.name: one.reason() for one in shares}
        return Allocation(place(sizes, cluster), reasons, cluster.state)


@dataclass
class JobShare:
    """What one job has so far, and what one slot more would be to it.

    Attributes:
        slots_a_node: of the largest node.
        step_s: of a step with these slots; infinite without any.
        next_s: of a step with ``more`` slots in addition.
        most: slots that it may have.
    """

    job: ClusterJob
    slots_a_node: int
    slots: int = 0
    step_s: float = math.inf
    next_s: float = field(init=False)
    more: int = field(init=False)
    most: int = field(init=False)

    def __post_init__(self) -> None:
        self.most = self.job.most_slots(self.job.batch)
        self._look_ahead()

    def take(self) -> None:
        """Have so many more."""
        self.slots += self.more
        self.step_s = self.next_s
        self._look_ahead()

    def fits(self, left: int) -> bool:
        """Whether it may have more, there is as much, and it would be faster."""
        within = self.slots + self.more <= self.most
        return within and self.more <= left and self.next_s < self.step_s

    @property
    def length_s(self) -> float:
        """Seconds until its end with what it has; infinite without slots."""
        if not self.slots:
            return math.inf
        return self.job.model.steps_left(self.job.batch) * self.step_s

    @property
    def first_length_s(self) -> float:
        """Seconds until its end with what it would be given next."""
        return self.job.model.steps_left(self.job.batch) * self.next_s

    @property
    def gain_of_next(self) -> float:
        """(p' - p) / p': the gain as a part of the speed that it would have."""
        return 1 - self.next_s / self.step_s

    @property
    def gain_of_now(self) -> float:
        """(p' - p) / p: the gain as a part of the speed that it has."""
        return self.step_s / self.next_s - 1

    def reason(self) -> str:
        """A sentence."""
        if not self.slots:
            needs = counted(self.job.min_slots, "slot")
            return f"waits: it needs {needs}, and shorter jobs have all others"
        slots = counted(self.slots, "slot")
        if self.slots >= self.most:
            return f"has {slots}, the most that it may have: {self.length_s:.0f} s are left"
        faster = 100 * self.gain_of_now
        return f"has {slots}: {self.length_s:.0f} s are left, one more is worth {faster:.1f} %"

    def _look_ahead(self) -> None:
        self.more = 1 if self.slots else self.job.min_slots
        wanted = self.slots + self.more
        self.next_s = math.inf
        if wanted <= self.most:
            self.next_s = self.job.model.step_s(compact(wanted, self.slots_a_node), self.job.batch)


def give(shares: Sequence[JobShare], left: int) -> None:
    """Give out so many slots."""
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
    """Which of two candidates gets the next slot; the former where they are equal."""
    if not one.slots and not other.slots:
        return other if other.first_length_s < one.first_length_s else one
    a, b = (other, one) if other.length_s < one.length_s else (one, other)
    return b if b.gain_of_next > a.gain_of_now else a
