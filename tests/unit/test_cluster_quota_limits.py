"""How much of the quota of a queue each job has that may not be preempted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.cluster.queues import QuotaRequest, quota_limits
from edl.spec import Sizes


def job(name: str, size: int = 0, least: int = 1, most: int = 4) -> QuotaRequest:
    return QuotaRequest(name, size, least, most, Sizes(least, most))


def limits(quota: int, *jobs: QuotaRequest) -> dict[str, int]:
    return quota_limits("q", jobs, quota)[0]


def test_the_first_jobs_get_what_they_can_use() -> None:
    found, reasons = quota_limits("q", [job("a", most=2), job("b"), job("c")], 5)
    assert found == {"a": 2, "b": 3}
    assert reasons == {
        "c": "waits: it may not be preempted, so it gets slots of the quota of queue q only, of "
        "which 0 of 5 are left for it, and it needs 1"
    }


def test_what_a_job_has_is_dealt_first() -> None:
    assert limits(4, job("a", most=4), job("b", size=2, most=2)) == {"a": 2, "b": 2}
    assert limits(1, job("a"), job("b", size=2, most=2)) == {"b": 2}, "the quota was lowered"


def test_a_job_that_has_lost_slots_gets_those_that_are_left() -> None:
    assert limits(4, job("a", size=1, least=2, most=8), job("b")) == {"a": 4}
    assert limits(4, job("a", size=1, least=2, most=8), job("b", size=2, most=2)) == {
        "a": 2,
        "b": 2,
    }


def test_a_job_for_which_too_little_is_left_lets_none_pass_it() -> None:
    found, reasons = quota_limits("q", [job("a", 2, most=2), job("b", least=3), job("c")], 4)
    assert found == {"a": 2}
    assert reasons["b"].endswith("of which 2 of 4 are left for it, and it needs 3")
    assert reasons["c"].endswith(
        "and those that are left are kept for job b, which comes before it and needs 3"
    )


def test_a_job_that_needs_more_than_the_quota_holds_up_none() -> None:
    assert limits(4, job("a", least=5, most=8), job("b", most=2)) == {"b": 2}


JOBS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6
)


@given(JOBS, st.integers(0, 12))
def test_the_quota_is_kept_and_nobody_is_passed(
    sizes: list[tuple[int, int, int]], quota: int
) -> None:
    jobs = [job(str(n), size, least, least + more) for n, (size, least, more) in enumerate(sizes)]
    found, reasons = quota_limits("q", jobs, quota)
    assert found.keys() ^ reasons.keys() == {one.name for one in jobs}
    dealt_before = sum(max(one.size, one.least) for one in jobs if one.size)
    assert sum(found.values()) <= max(quota, dealt_before)
    waits = False  # one that would fit in the quota
    for one in jobs:
        if one.size:
            assert found[one.name] >= max(one.size, one.least)
        elif waits:
            assert one.name not in found
        else:
            waits = one.name not in found and one.least <= quota
