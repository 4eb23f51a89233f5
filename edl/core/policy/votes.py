"""The size that the script itself asks for: its workers' wishes, taken together.

ElasticRMI (Middleware 2013) lets an elastic class return how many objects more or fewer its pool
should have, every burst interval. Here each worker's script may return how many workers more or
fewer there should be, and the job adds the wishes up, takes the mean, or the largest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edl.core.plural import counted, workers
from edl.core.policy.observation import Observation, State, Suggestion
from edl.core.settings import setting

SUM, MEAN, MAX = "sum", "mean", "max"


@dataclass(frozen=True)
class Votes:
    """Rule of :func:`edl.on_interval`; ``every_s`` at least between two changes."""

    together: str = setting(
        SUM, "how the workers' wishes become one: sum, mean or max", choices=(SUM, MEAN, MAX)
    )
    every_s: float = setting(60.0, "between two changes")

    def __call__(
        self, now: Observation, state: State, now_s: float, wishes: Mapping[int, int]
    ) -> Suggestion:
        """What is wanted; ``wishes``: workers more or fewer, by worker."""
        if now.awaits or not wishes:
            why = "the last change is under way" if now.awaits else "no worker wishes anything"
            return Suggestion(now.np, why, state)
        changed_s = state.get("changed_s")
        if changed_s is not None and now_s - changed_s < self.every_s:
            return Suggestion(now.np, f"{workers(now.np)}: the last change was just now", state)
        change = self._change(list(wishes.values()))
        said = f"the {self.together} of what {counted(len(wishes), 'worker')} wish is {change:+d}"
        if change == 0:
            return Suggestion(now.np, f"stays at {now.np}: {said}", state)
        return Suggestion(max(1, now.np + change), said, {"changed_s": now_s})

    def _change(self, wishes: list[int]) -> int:
        if self.together == MAX:
            return max(wishes)
        total = sum(wishes)
        return total if self.together == SUM else round(total / len(wishes))
