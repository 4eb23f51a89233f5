"""The wishes of a script's workers, taken together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.policy.hill_climbing import MAX, MEAN, SUM, Votes
from edl.policy.observation import Observation
from edl.spec import Sizes

NOW = Observation(4, Sizes(1, 8))


@pytest.mark.parametrize(
    ("together", "wishes", "np"),
    [
        (SUM, [1, 1, -1, 0], 5),
        (SUM, [-3, -3, 0, 0], 1),
        (MEAN, [2, 2, 1, 0], 5),  # 1.25
        (MEAN, [-1, -1, 0, -1], 3),  # -0.75
        (MAX, [-1, 2, 0, 1], 6),
        (MAX, [-2, -1, -1, -1], 3),
    ],
)
def test_wishes_are_taken_together(together: str, wishes: list[int], np: int) -> None:
    suggestion = Votes(together)(replace(NOW, size_changes=wishes), {}, 5.0)
    assert (suggestion.np, suggestion.state) == (np, {"changed_s": 5.0})


def test_changes_are_not_closer_than_the_interval() -> None:
    rule, now = Votes(every_s=60.0), replace(NOW, size_changes=(1,))
    state = rule(now, {}, 5.0).state
    assert rule(now, state, 64.0).np == 4
    assert rule(now, state, 65.0).np == 5


def test_nobody_wishes_anything() -> None:
    assert Votes()(NOW, {}, 0.0).reason == "stays at 4: no worker wishes anything"
    kept = Votes()(replace(NOW, size_changes=(1, -1)), {}, 0.0)
    assert (kept.np, kept.reason) == (4, "stays at 4: the sum of what 2 workers wish is 0")
