"""Choose the size that the script itself asks for, by combining the votes of its workers.

:class:`Votes` is the size rule. In ElasticRMI (Middleware 2013) an elastic class returns, every
burst interval, how many objects more or fewer its pool should have. Here the function that a script
gives to :func:`edl.on_interval` returns how many workers more or fewer there should be. The job
changes its size by the sum, the mean or the largest of these numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.plural import counted, verb
from edl.core.policy.observation import Observation, State, Suggestion
from edl.core.settings import setting

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
        change = self._change(now.size_changes)
        count = len(now.size_changes)
        wish = verb(count, "wishes", "wish")
        said = f"the {self.together} of what {counted(count, 'worker')} {wish} is "
        if change == 0:
            notes = {"wish": 0} if changed_s is None else {"wish": 0, "changed_s": changed_s}
            return Suggestion(now.np, f"stays at {now.np}: {said}0", notes)
        np = max(now.least, now.np + change)
        return Suggestion(np, f"goes to {np}: {said}{change:+d}", {"changed_s": now_s})

    def _change(self, wishes: Sequence[int]) -> int:
        if self.together == MAX:
            return max(wishes)
        total = sum(wishes)
        return total if self.together == SUM else round(total / len(wishes))
