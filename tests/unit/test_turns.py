"""When a schedule of several optimizers begins anew."""

from __future__ import annotations

import pytest

from edl.core.step.turns import LONGEST, begins_anew, period

BOTH, FIRST, SECOND = (1, 2), (1,), (2,)


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], None),
        ([BOTH], None),  # seen once
        ([BOTH] * 2, 1),
        ([BOTH] * 7, 1),
        ([BOTH, FIRST], None),
        ([BOTH, FIRST, BOTH], None),
        ([BOTH, FIRST, BOTH, FIRST], 2),
        ([BOTH, FIRST, BOTH, FIRST, BOTH], 2),
        ([BOTH, FIRST, FIRST, BOTH, FIRST], None),
        ([BOTH, FIRST, FIRST, BOTH, FIRST, FIRST, BOTH], 3),
        ([SECOND, FIRST, SECOND, FIRST, FIRST], None),
        ([SECOND] + [FIRST] * (2 * LONGEST - 1), 1),  # it does not repeat itself
    ],
)
def test_period(turns: list[tuple[int, ...]], expected: int | None) -> None:
    assert period(turns) == expected


def test_it_begins_anew_after_a_whole_number_of_periods() -> None:
    turns = [BOTH, FIRST, FIRST]
    found = [begins_anew((3 * turns)[:batch], batch) for batch in range(9)]
    assert found == [False] * 8 + [True], "it must have been seen twice before"
    assert begins_anew([BOTH] * 2 * LONGEST, 1000), "no more than so many are kept"
