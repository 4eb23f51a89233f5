"""The size with the largest goodput: throughput times statistical efficiency (Pollux, OSDI 2021).

The throughput of sizes that were never tried comes from a model of the step time
(:mod:`edl.core.policy.step_time`); how much a sample is worth in a batch of that size, from its
statistical efficiency, which is 1 as long as nobody estimates it. A change is worth it for 5 %
more, and only if what is left to train repays what the change costs. Nothing is tried that is more
than twice the largest size that was measured, for the model knows nothing there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl.core.policy.cost import span
from edl.core.policy.observation import Observation, State, Suggestion
from edl.core.settings import setting

BEYOND = 2  # times the largest size that was measured


@dataclass(frozen=True)
class Goodput:
    """Rule ``goodput``. Times in seconds."""

    least_gain: float = setting(0.05, "of goodput: for less nothing is changed", least=0.0)
    every_s: float = setting(30.0, "between two decisions")

    def __call__(
        self,
        now: Observation,
        state: State,
        now_s: float,
        throughput: Callable[[int], float],
        efficiency: Callable[[int], float] = lambda np: 1.0,
        change_s: float = 1.0,
    ) -> Suggestion:
        """What is wanted.

        Args:
            throughput: samples a second with so many workers, as the model has it.
            efficiency: what a sample is worth there, from 0 to 1.
            change_s: what a change costs: seconds without a step.
        """
        if now.awaits:
            return Suggestion(now.np, "the last change is under way", state)
        asked_s = state.get("asked_s")
        if asked_s is not None and now_s - asked_s < self.every_s:
            return Suggestion(now.np, str(state["why"]), state)
        goodput = {np: throughput(np) * efficiency(np) for np in self._sizes(now)}
        np, why = self._choice(now, goodput, change_s)
        return Suggestion(np, why, {"asked_s": now_s, "why": why})

    def _sizes(self, now: Observation) -> list[int]:
        most = min(now.most, BEYOND * max([now.np, *now.seen]))
        sizes = [np for np in range(now.least, most + 1) if now.sizes.allows(np)]
        return sorted({*sizes, now.np})

    def _choice(
        self, now: Observation, goodput: Mapping[int, float], change_s: float
    ) -> tuple[int, str]:
        mine = goodput[now.np]
        best = max(goodput, key=lambda np: (goodput[np], -np))
        gain = goodput[best] / mine - 1.0 if mine > 0 else float("inf")
        about = f"{best} would train {gain:+.1%} of what {now.np} do"
        as_good = [np for np in goodput if np < now.np and goodput[np] >= mine]
        if gain < self.least_gain:
            if as_good:
                fewer = min(as_good)
                return fewer, f"goes to {fewer}: it trains no less than {now.np}"
            return now.np, f"stays at {now.np}: {about}, less than {self.least_gain:.0%}"
        if now.left is not None:
            saved_s = now.left / mine - now.left / goodput[best] if mine > 0 else float("inf")
            if saved_s <= change_s:
                return now.np, (
                    f"stays at {now.np}: {about}, which saves {span(saved_s)} until the end, and "
                    f"the change costs {span(change_s)}"
                )
        return best, f"goes to {best}: {about}"
