"""Find a size by trying: more workers while each change pays, fewer while it does not.

:class:`HillClimbing` is the base of the rules ``throughput`` (:class:`Throughput`) and ``cost``
(:class:`Cost`). The search is that of AutoScaling (Or, Zhang, Freedman, MLSys 2020;
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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edl.policy.observation import Observation, State, Suggestion
from edl.spec import setting
from edl.text import counted, span, verb, workers

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
# Choose as many workers as are worth their price: the size rule `Cost`.
#
# With R_k the throughput of k workers in samples a second, the time T and the cost C of the whole
# training are
#
#     T_k = elapsed + left / R_k        C_k = price * (worker time so far + k * left / R_k)
#
# where `elapsed` is the time since training began, `left` the number of samples still to train, and
# the worker time so far is the sum, over all workers, of the time that each has spent in the job. d
# more workers than k pay when the utility U of the time grows by more than the cost:
#
#     U(T_(k+d)) - U(T_k)  >  C_(k+d) - C_k        (AutoScaling, MLSys 2020)
#
# U is a curve that falls with the time, in the currency of the cost. Instead of a utility, a job
# can have a deadline and a highest cost: then the rule chooses as few workers as meet the deadline,
# within the highest cost.

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


# ------------------------------------------------------------
# Add workers as long as each adds enough throughput, compared with a worker that is there already.
#
# `Throughput` is the size rule. With throughput R_k of k workers, d more workers are worth it when
#
#     s = ((R_(k+d) - R_k) / d) / (R_k / k)  >  threshold
#
# s is 1 if each new worker brings as much as an old one, and 0 if the new ones bring nothing
# (AutoScaling, MLSys 2020, whose threshold is 0.1).


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
