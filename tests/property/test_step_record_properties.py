"""Step records and weights: what goes in comes out, all agree, and the update is the mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.errors import MismatchedEnd, RingError
from edl.step.record import (
    FIELDS,
    StepRecord,
    StepRecords,
    Stop,
    agreed_generation,
    check_records,
    global_samples,
    stopping,
    wanting_to_stop,
)
from edl.step.weighting import average_correction, send_weight

INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.builds(StepRecord, **dict.fromkeys(FIELDS, INT64))


@given(st.lists(RECORDS, min_size=1, max_size=8))
def test_records_survive_the_allgather(records: list[StepRecord]) -> None:
    table = np.concatenate([record.encode() for record in records])
    read = StepRecords(table)
    assert [*read] == records
    assert all(type(value) is int for r in read for value in vars(r).values())
    for name in FIELDS:
        assert read.values(name) == [getattr(record, name) for record in records]


def records_with(current: int, known: list[int]) -> StepRecords:
    return StepRecords.of(
        [
            StepRecord(current, 7, worker, 0, 1, 0, 0, newest, 99)
            for worker, newest in enumerate(known)
        ]
    )


@given(current=st.integers(0, 5), known=st.lists(st.integers(0, 8), min_size=1, max_size=6))
@example(current=3, known=[2, 2])  # it switched back to a generation that was over
def test_workers_switch_together_and_forward_only(current: int, known: list[int]) -> None:
    records = records_with(current, known)
    target, reason = agreed_generation(records)
    assert reason
    if target is None:
        assert len(set(known)) > 1 or known[0] <= current
    else:
        assert target > current
        assert known == [target] * len(known)
    # The answer depends on what the rows say and not on who reads them, or in which order.
    assert agreed_generation(records[::-1])[0] == target


@given(known=st.lists(st.integers(3, 8), min_size=1, max_size=6), newest=st.integers(8, 9))
def test_news_that_reach_everybody_lead_to_a_switch(known: list[int], newest: int) -> None:
    """However late they hear of it: once the last one knows, all switch to the same."""
    targets = []
    for worker in range(len(known)):
        known[worker] = newest
        targets.append(agreed_generation(records_with(2, known))[0])
    assert targets[-1] == newest


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=6),
    st.sampled_from(["generation", "step", "epoch", "ledger"]),
)
def test_rows_that_disagree_are_refused(values: list[int], name: str) -> None:
    rows = [
        {**vars(r), name: value} for r, value in zip(records_with(1, values), values, strict=True)
    ]
    records = StepRecords.of([StepRecord(**row) for row in rows])
    if len(set(values)) == 1:
        check_records(records)
    else:
        wrong = "left epoch" if name == "epoch" else f"disagree about the {name}"
        with pytest.raises(RingError, match=wrong):
            check_records(records)


@given(st.lists(st.sampled_from(Stop), min_size=1, max_size=6))
def test_all_stop_or_none_does_and_nobody_leaves_alone(stops: list[Stop]) -> None:
    made = zip(records_with(1, stops), stops, strict=True)
    rows = StepRecords.of([replace(r, stop=stop) for r, stop in made])
    wanting = wanting_to_stop(rows)
    assert wanting == [w for w, stop in enumerate(stops) if stop is Stop.WANTED]
    decided, reason = stopping(wanting)
    assert decided == bool(wanting)
    assert all(f"w{worker}" in reason for worker in wanting)
    assert stopping(wanting[::-1]) == (decided, reason)
    if len({stop >= Stop.FINISHED for stop in stops}) == 1:
        check_records(rows)
    else:
        ended = r"ended (its|their) script after step 7, inside epoch 0, and w.* trains? on; all"
        wrong = ended if Stop.ENDED in stops else "left epoch 0 before its end"
        with pytest.raises(MismatchedEnd, match=wrong):
            check_records(rows)


@given(
    batch=st.integers(1, 64),
    parts=st.lists(st.floats(0, 1), min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
)
@example(batch=32, parts=[1.0, 1.0, 1.0], seed=0)
@example(batch=32, parts=[1.0, 0.0], seed=0)
def test_the_update_is_the_mean_over_the_global_batch(
    batch: int, parts: list[float], seed: int
) -> None:
    counts = [round(part * batch) for part in parts]
    total = sum(counts)
    if total == 0:
        return
    rng = np.random.default_rng(seed)
    samples = [
        rng.normal(size=(max(n, 1), 5)) for n in counts
    ]  # a padding batch repeats some sample
    counted = np.concatenate([s for s, n in zip(samples, counts, strict=True) if n])

    sent = [s.mean(axis=0) * send_weight(n, batch) for s, n in zip(samples, counts, strict=True)]
    average = np.mean(sent, axis=0)
    update = average * average_correction(batch, len(counts), total)

    np.testing.assert_allclose(update, counted.mean(axis=0), rtol=1e-9, atol=1e-12)
    if counts == [batch] * len(counts):
        assert send_weight(batch, batch) == average_correction(batch, len(counts), total) == 1.0


@given(st.integers(1, 64), st.integers(1, 8), st.integers(0, 64))
def test_sample_counts_add_up(size: int, batch: int, samples: int) -> None:
    rows = StepRecords.of([StepRecord(1, 0, w, 0, samples, 0, 0, 1, 0) for w in range(size)])
    assert global_samples(rows) == size * samples
