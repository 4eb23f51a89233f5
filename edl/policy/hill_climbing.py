"""Find a size by trying: more workers while each change pays, fewer while it does not.

:class:`HillClimbing` is the base of the rules ``throughput`` and ``cost``
(:mod:`edl.policy.goodput`). The search is that of AutoScaling (Or, Zhang, Freedman, MLSys 2020;
autoscaling/schedule_callback.py). More workers *pay* if they bring enough, by a measure that the
rule chooses. The rule compares each measured size with the next larger measured one, from the
smallest on:

1. While the larger size pays in every comparison, a size larger than all measured ones is tried. If
   none is allowed, the largest size is the answer.
2. If it does not pay in one of the first ``passes`` comparisons, a size smaller than all measured
   ones is tried, as long as one is allowed.
3. Else the answer is the smaller size of the first comparison that does not pay, once its larger
   size was measured for ``staying_steps`` steps.

Measurements age: when a size has been kept for ``settled_s``, the search begins again, with the
larger sizes. After each search a size is kept twice as long, up to :data:`LONGEST` times
``settled_s``, because a search costs some changes of the ring, and measurements are noisy.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from itertools import pairwise

from edl.policy.observation import Observation, State, Suggestion
from edl.spec import setting
from edl.text import counted, verb, workers

LONGEST = 8  # times ``settled_s``, that a size stands before the search begins again


@dataclass(frozen=True)
class SizeComparison:
    """A comparison of two measured numbers of workers."""

    fewer: int
    more: int
    pays: bool  # to have `more` workers rather than `fewer`
    why: str


@dataclass(frozen=True)
class HillClimbing:
    """The base of size rules that search for the number of workers by trying."""

    every_steps: int = setting(10, "steps between two decisions", least=1)
    add: int = setting(1, "workers more, or fewer, that are tried at once", least=1)
    passes: int = setting(
        3, "the smallest sizes of which one that does not pay lets a smaller one be tried", least=1
    )
    staying_steps: int = setting(
        100, "steps of the next larger size before it is found not worth it", least=1
    )
    settled_s: float = setting(
        600.0,
        "once a size is found, until those beside it are measured again; twice as long each "
        "time, up to 8 times as long",
    )

    @abstractmethod
    def compare(self, now: Observation, fewer: int, more: int) -> SizeComparison:
        """Return whether `more` workers instead of `fewer` pay, and why; both were measured."""

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        # The state: `np` and `steps` of the last decision, `found_s` and `why` of the size that was
        # found, `since_s` of the present search, and how many `searches` have ended.
        if now.awaits:
            return Suggestion(now.np, "the last change is under way", state)
        kept = {name: state[name] for name in ("since_s", "searches") if name in state}
        found_s = state.get("found_s")
        if found_s is not None and state.get("np") == now.np:
            if now_s - float(found_s) < self.stands_s(int(state.get("searches", 1))):
                return Suggestion(now.np, str(state["why"]), state)
            kept["since_s"] = now_s
        left = self.every_steps - now.steps_since(state.get("np", 0), int(state.get("steps", 0)))
        if left > 0 or now.np not in now.seen:
            why = f"{workers(now.np)}: the next decision in {counted(max(1, left), 'step')}"
            return Suggestion(now.np, why, state)
        np, why, found = self._choice(now, float(kept.get("since_s", 0.0)))
        noted = {**kept, "np": now.np, "steps": now.steps}
        if found and np == now.np:
            searches = int(kept.get("searches", 0)) + 1
            noted |= {"found_s": now_s, "why": why, "searches": searches}
        return Suggestion(np, why, noted)

    def stands_s(self, searches: int) -> float:
        """Return for how many seconds a size is kept that was found by search number `searches`."""
        return self.settled_s * min(LONGEST, 1 << (searches - 1))

    def table(self, now: Observation) -> list[SizeComparison]:
        """Return the comparison of each measured size with the next larger one, in order."""
        return [self.compare(now, fewer, more) for fewer, more in pairwise(sorted(now.seen))]

    def _choice(self, now: Observation, since_s: float) -> tuple[int, str, bool]:
        """Return the next size to have, why, and whether the search has ended."""
        # Measurements from before this search do not count, except for sizes below the smallest one
        # measured since: if the search would end, that size is tried again.
        old = {np for np, one in now.seen.items() if one.at_s < since_s and np != now.np}
        least = min(now.seen.keys() - old)
        counting = {np: one for np, one in now.seen.items() if np < least or np not in old}
        np, why, found = self._search(replace(now, seen=counting))
        smaller = self._below(now, np)
        if found and smaller in old:
            return smaller, f"tries {smaller} again, which was measured long ago; else {why}", False
        return np, why, found

    def _search(self, now: Observation) -> tuple[int, str, bool]:
        verdicts, known = self.table(now), sorted(now.seen)
        if not verdicts:
            np = known[0]
            another = self._above(now, np) or self._below(now, np)
            if another is None:
                return np, f"stays at {np}: the job may have no other number of workers", True
            has = verb(np, "has", "have")
            return another, f"tries {another}: only {np} {has} been measured", False
        failed = next((one for one in verdicts if not one.pays), None)
        if failed is None and (larger := self._above(now, known[-1])) is not None:
            return larger, f"tries {larger}: {verdicts[-1].why}", False
        few = verdicts[: self.passes]
        smaller = self._below(now, known[0])
        if not all(one.pays for one in few) and smaller is not None:
            worst = next(one for one in few if not one.pays)
            return smaller, f"tries {smaller}: {worst.why}", False
        if failed is None:
            doing = "stays at" if now.np == known[-1] else "goes to"
            why = f"{doing} {known[-1]}, the most there may be: {verdicts[-1].why}"
            return known[-1], why, True
        # The smaller size of the first comparison that does not pay, once that is known well.
        steps = now.seen[failed.more].steps
        if steps < self.staying_steps and failed.more <= now.most:
            doing = "stays at" if now.np == failed.more else "goes to"
            why = (
                f"{doing} {failed.more} to know it better: {failed.why}, by "
                f"{counted(steps, 'step')} of {self.staying_steps}"
            )
            return failed.more, why, False
        doing = "stays at" if now.np == failed.fewer else "goes to"
        return failed.fewer, f"{doing} {failed.fewer}: {failed.why}", True

    def _above(self, now: Observation, np: int) -> int | None:
        larger = now.sizes.above(np + self.add)
        if larger is None or larger > now.most:
            larger = now.sizes.below(min(np + self.add, now.most))
        return larger if larger is not None and larger > np else None

    def _below(self, now: Observation, np: int) -> int | None:
        smaller = now.sizes.below(np - self.add)
        if smaller is None:
            smaller = now.sizes.above(now.least)
        return smaller if smaller is not None and smaller < np else None


# ------------------------------------------------------------
# Choose the size that the script itself asks for, by combining the votes of its workers.
#
# `Votes` is the size rule. In ElasticRMI (Middleware 2013) an elastic class returns, every burst
# interval, how many objects more or fewer its pool should have. Here the function that a script
# gives to `on_interval` returns how many workers more or fewer there should be. The job changes its
# size by the sum, the mean or the largest of these numbers.

SUM, MEAN, MAX = "sum", "mean", "max"


@dataclass(frozen=True)
class Votes:
    """The size rule `votes`, which follows what scripts return to `on_interval`."""

    # With `max` workers leave only if all ask for that.
    together: str = setting(
        SUM, "how the workers' wishes become one: sum, mean or max", choices=(SUM, MEAN, MAX)
    )
    every_s: float = setting(60.0, "between two changes")

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        if now.awaits or not now.size_changes:
            why = "the last change is under way" if now.awaits else "no worker wishes anything"
            return Suggestion(now.np, f"stays at {now.np}: {why}", state)
        changed_s = state.get("changed_s")
        if changed_s is not None and now_s - changed_s < self.every_s:
            return Suggestion(now.np, f"stays at {now.np}: the last change was just now", state)
        wishes = now.size_changes
        change = max(wishes) if self.together == MAX else sum(wishes)
        change = round(change / len(wishes)) if self.together == MEAN else change
        count = len(now.size_changes)
        wish = verb(count, "wishes", "wish")
        said = f"the {self.together} of what {counted(count, 'worker')} {wish} is "
        if change == 0:
            notes = {"wish": 0} if changed_s is None else {"wish": 0, "changed_s": changed_s}
            return Suggestion(now.np, f"stays at {now.np}: {said}0", notes)
        np = max(now.least, now.np + change)
        return Suggestion(np, f"goes to {np}: {said}{change:+d}", {"changed_s": now_s})
