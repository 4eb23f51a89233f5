"""Find a size by trying: up while each change pays, down while it does not.

AutoScaling's walk (Or, Zhang, Freedman, MLSys 2020; autoscaling/schedule_callback.py): of all sizes
that were measured, each next larger one either *pays* or does not. While all do, a larger one is
tried; while none of the smallest few does, a smaller one; else the answer is the last size that is
worth its workers, once the next one is known well enough to say so. What pays is the rule's:
throughput (:mod:`edl.core.policy.throughput`) or cost (:mod:`edl.core.policy.cost`).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from itertools import pairwise

from edl.core.plural import counted, workers
from edl.core.policy.observation import Observation, State, Suggestion
from edl.core.settings import setting


@dataclass(frozen=True)
class Verdict:
    """Whether ``more`` workers in the place of ``fewer`` pay, and the clause that says it."""

    fewer: int
    more: int
    pays: bool
    why: str


@dataclass(frozen=True)
class Climbing:
    """The walk; a subclass says what pays."""

    every_steps: int = setting(10, "steps between two decisions", least=1)
    add: int = setting(1, "workers more, or fewer, that are tried at once", least=1)
    passes: int = setting(
        3, "the smallest sizes of which one that does not pay lets a smaller one be tried", least=1
    )
    staying_steps: int = setting(
        100, "steps of the next larger size before it is found not worth it", least=1
    )
    settled_s: float = setting(600.0, "once a size is found, until others are tried again")

    @abstractmethod
    def verdict(self, now: Observation, fewer: int, more: int) -> Verdict:
        """Whether ``more`` workers pay; both sizes were measured."""

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """See :class:`edl.core.policy.observation.Rule`.

        Notes the step of its last decision, and when it found the size.
        """
        asked_at = int(state.get("steps", 0)) if state.get("np") == now.np else 0
        if now.awaits:
            return Suggestion(now.np, "the last change is under way", state)
        found_s = state.get("found_s")
        if found_s is not None and now_s - found_s < self.settled_s and state.get("np") == now.np:
            return Suggestion(now.np, str(state["why"]), state)
        if now.steps < asked_at + self.every_steps or now.np not in now.seen:
            left = asked_at + self.every_steps - now.steps
            why = f"{workers(now.np)}: the next decision in {counted(max(1, left), 'step')}"
            return Suggestion(now.np, why, state)
        np, why, found = self._choice(now)
        if found and np == now.np:
            return Suggestion(np, why, {"np": np, "steps": now.steps, "found_s": now_s, "why": why})
        return Suggestion(np, why, {"np": now.np, "steps": now.steps})

    def table(self, now: Observation) -> list[Verdict]:
        """What it decides from: each size that was measured, and the next larger one."""
        return [self.verdict(now, fewer, more) for fewer, more in pairwise(sorted(now.seen))]

    def _choice(self, now: Observation) -> tuple[int, str, bool]:
        """The size, why, and whether it is found: nothing is left to be tried."""
        verdicts, known = self.table(now), sorted(now.seen)
        if not verdicts:
            return self._first(now, known[0])
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
        return self._settled(now, failed)

    def _first(self, now: Observation, np: int) -> tuple[int, str, bool]:
        """Only one size is known."""
        another = self._above(now, np) or self._below(now, np)
        if another is None:
            return np, f"stays at {np}: the job may have no other number of workers", True
        return another, f"tries {another}: only {np} {_have(np)} been measured", False

    def _settled(self, now: Observation, failed: Verdict) -> tuple[int, str, bool]:
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
        """The size to try above ``np``; None: there is none, or no room for it."""
        larger = now.sizes.above(np + self.add)
        if larger is None or larger > now.most:
            larger = now.sizes.below(min(np + self.add, now.most))
        return larger if larger is not None and larger > np else None

    def _below(self, now: Observation, np: int) -> int | None:
        smaller = now.sizes.below(np - self.add)
        if smaller is None:
            smaller = now.sizes.above(now.least)
        return smaller if smaller is not None and smaller < np else None


def _have(count: int) -> str:
    return "has" if count == 1 else "have"
