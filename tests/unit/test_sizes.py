"""Which sizes a job may have, and what is said about the others."""

from __future__ import annotations

import pytest

from edl.errors import UsageError
from edl.spec import Sizes

ANY = Sizes(2, 6)
FEW = Sizes(1, 8, sizes=(1, 2, 4))
EVEN = Sizes(1, 7, size_step=2)
OPEN = Sizes(1)


@pytest.mark.parametrize(
    ("sizes", "allowed"),
    [(ANY, [2, 3, 4, 5, 6]), (FEW, [1, 2, 4]), (EVEN, [2, 4, 6]), (OPEN, [*range(1, 10)])],
)
def test_the_allowed_ones(sizes: Sizes, allowed: list[int]) -> None:
    assert [n for n in range(10) if sizes.allows(n)] == allowed
    for n in range(10):
        assert sizes.below(n) == max((a for a in allowed if a <= n), default=None)
        if n <= allowed[-1]:
            assert sizes.above(n) == min(a for a in allowed if a >= n)
    assert {sizes.fit(n) for n in range(10)} == {*allowed}


def test_both_kinds_together() -> None:
    both = Sizes(2, 8, sizes=(2, 4, 8), size_step=4)
    assert [n for n in range(10) if both.allows(n)] == [4, 8]


def test_any_size_trains_from_min_np_on() -> None:
    assert [n for n in range(5) if Sizes(2, 4, (2, 4)).enough(n)] == [2, 3, 4]


def test_room_for_more() -> None:
    assert ANY.room(3, np=9) == 3
    assert FEW.room(2, np=1) == 0, "three are not allowed"
    assert FEW.room(2, np=3) == 2
    assert FEW.room(3, np=1) == 1, "a crash has left three"
    assert FEW.room(2, np=1, has=1) == 1, "it keeps what it has"


def test_what_a_planned_change_may_make_of_a_ring() -> None:
    assert [n for n in range(6) if FEW.keeps(n, 3)] == [1, 2, 3, 4]
    assert [n for n in range(6) if Sizes(4, 8).keeps(n, 2)] == [2, 3, 4, 5], "too few take any"


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (ANY, "2 to 6 workers"),
        (FEW, "1, 2 or 4 workers"),
        (EVEN, "2 to 7 workers in steps of 2"),
        (OPEN, "1 to any number workers"),
        (Sizes(1, 4, (4,)), "4 workers"),
    ],
)
def test_the_sizes_in_words(sizes: Sizes, text: str) -> None:
    assert str(sizes) == text


def test_a_scale_to_nobody_names_what_people_want() -> None:
    with pytest.raises(UsageError, match="to 0 workers: `edl stop digits` ends it"):
        Sizes(2, 6).check_scale("digits", 0)


@pytest.mark.parametrize("np", [1, 7])
def test_a_scale_outside_the_limits_is_refused(np: int) -> None:
    with pytest.raises(UsageError, match=r"cannot scale job digits to \d workers?: m\w\w_np is"):
        ANY.check_scale("digits", np)


def test_a_scale_to_another_size_names_the_nearest() -> None:
    FEW.check_scale("digits", 4)
    with pytest.raises(UsageError) as caught:
        FEW.check_scale("digits", 3)
    assert str(caught.value) == (
        "cannot scale job digits to 3 workers: the job may have 1, 2 or 4 workers; "
        "nearest to 3 are 2 and 4"
    )
    with pytest.raises(UsageError, match="nearest to 5 is 4"):
        FEW.check_scale("digits", 5)


@pytest.mark.parametrize(
    ("np", "sizes", "message"),
    [
        (0, Sizes(1, 2), "--np is 0"),
        (1, Sizes(0, 2), "--min-np is 0"),
        (1, Sizes(1, 0), "--max-np is 0"),
        (1, Sizes(1, 2, size_step=0), "--size-step is 0"),
        (3, Sizes(4, 2), "min must not be above max"),
        (3, Sizes(1, 2), "-np is 3; it must lie between --min-np 1 and --max-np 2"),
        (1, Sizes(2, 4), "-np is 1"),
        (2, Sizes(1, 4, (2, 8)), "--sizes has 8; each must lie between --min-np 1 and --max-np 4"),
        (3, FEW, "-np is 3; the job may have 1, 2 or 4 workers; nearest to 3 are 2 and 4"),
        (3, EVEN, "-np is 3; the job may have 2 to 7 workers in steps of 2; nearest to 3 are 2"),
    ],
)
def test_a_start_that_contradicts_itself(np: int, sizes: Sizes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        sizes.check(np)
