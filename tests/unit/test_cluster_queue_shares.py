"""How the slots of a cluster are divided among queues: numbers only."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.cluster.queues import QueueRequest, overbooked, queue_shares, surplus_slots, unknown_queue
from edl.cluster.records import QueueRecord


def wants(
    name: str,
    demand: int,
    quota: int = 0,
    weight: float = 1.0,
    most: int | None = None,
    held: int = 0,
    least: int = 0,
) -> QueueRequest:
    return QueueRequest(name, demand, QueueRecord(quota, weight, most), held, least)


@pytest.mark.parametrize(
    ("queues", "slots", "shares"),
    [
        ([wants("a", 9, quota=4), wants("b", 9, quota=2)], 6, {"a": 4, "b": 2}),  # quotas
        ([wants("a", 9, quota=4), wants("b", 1, quota=2)], 6, {"a": 5, "b": 1}),  # an idle one
        ([wants("a", 0, quota=4), wants("b", 9)], 6, {"a": 0, "b": 6}),  # all of it is lent
        ([wants("a", 9), wants("b", 9)], 6, {"a": 3, "b": 3}),  # equal weights
        ([wants("a", 9, weight=2.0), wants("b", 9)], 6, {"a": 4, "b": 2}),
        ([wants("a", 9, quota=2), wants("b", 9)], 6, {"a": 4, "b": 2}),  # 4 beyond the quotas
        ([wants("a", 9, most=2), wants("b", 9)], 6, {"a": 2, "b": 4}),
        ([wants("a", 9, quota=4, most=2), wants("b", 9)], 6, {"a": 2, "b": 4}),
        ([wants("a", 9, quota=6), wants("b", 9, quota=6)], 6, {"a": 3, "b": 3}),  # overbooked
        ([wants("a", 9, quota=8), wants("b", 9, quota=4)], 6, {"a": 4, "b": 2}),
        ([wants("a", 9, quota=4), wants("b", 9, held=5)], 6, {"a": 1, "b": 5}),  # it starts
        ([wants("a", 9), wants("b", 9, least=5)], 6, {"a": 1, "b": 5}),  # surplus halts nobody
        ([wants("a", 9, quota=4), wants("b", 9, least=5)], 6, {"a": 4, "b": 2}),  # a quota does
        ([wants("a", 2, quota=4), wants("b", 2)], 6, {"a": 2, "b": 2}),  # nobody wants more
        ([], 6, {}),
        ([wants("a", 9, quota=4)], 0, {"a": 0}),
    ],
)
def test_quotas_come_first_and_the_rest_goes_by_weight(
    queues: list[QueueRequest], slots: int, shares: dict[str, int]
) -> None:
    assert queue_shares(queues, slots) == shares


REQUESTS = st.lists(
    st.builds(
        QueueRecord,
        st.integers(0, 9),
        st.sampled_from((0.5, 1.0, 3.0)),
        st.none() | st.integers(0, 12),
    ).flatmap(
        lambda record: st.builds(
            QueueRequest, st.just(""), st.integers(0, 20), st.just(record), st.integers(0, 3)
        )
    ),
    max_size=4,
)


@given(REQUESTS, st.integers(12, 30))
@example(
    [
        QueueRequest("", 3, QueueRecord(0, 0.5)),
        QueueRequest("", 3, QueueRecord(0, 0.5), 2),  # what it holds is part of its share
        QueueRequest("", 7, QueueRecord(0, 3.0)),
    ],
    12,
)
def test_no_slot_is_given_twice_or_left_idle_and_quotas_are_met(
    drawn: list[QueueRequest], slots: int
) -> None:
    queues = [QueueRequest(str(n), one.usable, one.record, one.held) for n, one in enumerate(drawn)]
    shares = queue_shares(queues, slots)
    assert sum(shares.values()) == min(slots, sum(one.limit for one in queues)), "all are used"
    for one in queues:
        assert one.held <= shares[one.name] <= one.limit
        guaranteed = min(one.record.quota, one.limit)
        if sum(max(c.held, min(c.record.quota, c.limit)) for c in queues) <= slots:
            assert shares[one.name] >= guaranteed
    quota = {c.name: min(c.record.quota, c.limit) for c in queues}
    for one in queues:  # by weight: no queue has a slot that another one was to get before
        for other in queues:
            mine, its = (shares[c.name] - quota[c.name] for c in (one, other))
            dealt = shares[other.name] > max(other.held, quota[other.name])
            if shares[one.name] < one.limit and dealt:
                assert its / other.record.weight <= (mine + 1) / one.record.weight


def test_the_quota_of_a_queue_counts_for_its_first_jobs() -> None:
    queues = {"a": QueueRecord(4), "b": QueueRecord(1)}
    jobs = [("one", "a", 3), ("two", "a", 3), ("three", "b", 1), ("four", "none", 2)]
    assert surplus_slots(jobs, queues) == {"two": 2, "four": 2}


def test_messages_name_what_is_there() -> None:
    assert unknown_queue("cluster lab", "prd", {"dev", "prod"}, ", for which job a asks") == (
        "cluster lab has no queue 'prd', for which job a asks; it has dev, prod; name one of them "
        "by `queue:` in the manifest"
    )
    assert unknown_queue("cluster lab", "prd", ()) == "cluster lab has no queue 'prd', and no other"
    queues = {"a": QueueRecord(4), "b": QueueRecord(1)}
    assert overbooked(queues, 5) == ""
    assert overbooked(queues, 4) == (
        "the quotas of all queues are 5 slots together, and the cluster has 4: they are met in "
        "proportion"
    )
