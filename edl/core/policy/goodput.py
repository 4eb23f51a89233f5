"""Choose the size with the largest goodput: throughput times statistical efficiency.

:class:`Goodput` is the rule, that of Pollux (OSDI 2021). The throughput of sizes that the job never
had comes from a model of the step time (:mod:`edl.core.policy.step_time`). The statistical
efficiency is how much a sample is worth in a larger batch. It follows from the gradient noise scale
(:mod:`edl.step.noise`), which a job measures while it has this rule; until it is known
the efficiency is 1.

The size changes only if goodput grows by at least 5 % (``least_gain``), and if the rest of the
training gets shorter by more time than the change itself takes. If no size gains so much, the size
falls to the smallest one whose goodput is at most 1 % lower. No size above twice the largest
measured one is chosen, because the model is not reliable there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.core.policy.batch import best_global_batch
from edl.core.policy.cost import span
from edl.core.policy.observation import Observation, State, Suggestion
from edl.core.settings import setting

ALIKE = 0.01  # a throughput that is so much smaller is the same: no model is that exact
BEYOND = 2  # times the largest size that was measured


@dataclass(frozen=True)
class Goodput:
    """The size rule `goodput`, which chooses the number of workers with the largest goodput."""

    least_gain: float = setting(0.05, "of goodput: for less nothing is changed", least=0.0)
    every_s: float = setting(30.0, "between two decisions")

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        if now.awaits:
            return Suggestion(now.np, f"stays at {now.np}: the last change is under way", state)
        if now.model is None:
            return Suggestion(now.np, f"stays at {now.np}: its steps are yet to be measured", state)
        asked_s = state.get("asked_s")
        if asked_s is not None and now_s - asked_s < self.every_s and state.get("np") == now.np:
            return Suggestion(now.np, str(state["why"]), state)
        np, why = self._choice(now, self.table(now))
        stays = why if np == now.np else f"stays at {now.np}: {np} were asked for just now"
        return Suggestion(np, why, {"asked_s": now_s, "np": now.np, "why": stays})

    def table(self, now: Observation) -> dict[int, float]:
        """Return the goodput of each size that the rule may choose, by number of workers."""
        if now.model is None or now.np == 0:
            return {}
        if now.batching is not None:
            return {np: best_global_batch(now, np)[1] for np in self._sizes(now)}
        worth = {np: now.noise.efficiency(np * now.batch or 1.0) for np in self._sizes(now)}
        return {np: now.model.throughput(np) * each for np, each in worth.items()}

    def _sizes(self, now: Observation) -> list[int]:
        most = min(now.most, BEYOND * max([now.np, *now.seen]))
        sizes = [np for np in range(now.least, most + 1) if now.sizes.allows(np)]
        return sorted({*sizes, now.np})

    def _choice(self, now: Observation, table: Mapping[int, float]) -> tuple[int, str]:
        """Return the number of workers to have, and why, given the goodput of each in `table`."""
        mine = table[now.np]
        best = max(table, key=lambda np: (table[np], -np))
        gain = table[best] / mine - 1.0 if mine > 0 else float("inf")
        about = f"{best} would train {gain:+.1%} of what {now.np} do"
        if (scale := now.noise.samples) is not None:
            about = (
                f"{best} would make {gain:+.1%} of the progress of {now.np}, by a noise scale of "
                f"{scale:,.0f} samples"
            )
        as_good = [np for np in table if np < now.np and table[np] >= (1.0 - ALIKE) * mine]
        if gain < self.least_gain:
            if as_good:
                fewer = min(as_good)
                return fewer, f"goes to {fewer}: it trains as much as {now.np}"
            return now.np, f"stays at {now.np}: {about}, less than {self.least_gain:.0%}"
        if now.left is not None:
            saved_s = now.left / mine - now.left / table[best] if mine > 0 else float("inf")
            if saved_s <= now.change_s:
                return now.np, (
                    f"stays at {now.np}: {about}, which saves {span(saved_s)} until the end, and "
                    f"the change costs {span(now.change_s)}"
                )
        return best, f"goes to {best}: {about}"
