"""Streams: shards whose lengths nobody knows, read by workers that come, leave and die."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import SEEDS, Change, Fault, Scenario, faults, points, sampled, scales, some

from edl.records import JobState
from edl.testing.counting import Counting

MORE = settings(max_examples=3 * settings().max_examples)
LENGTHS = {
    "even": (8, 8, 8, 8),
    "as it comes": (5, 0, 1, 12, 0, 0, 7, 2),
    "fewer than workers": (11, 3),
    "one": (17,),
    "tiny": (1,) * 9,
}
STREAMS = {
    **{name: Counting(sum(lengths), shards=lengths) for name, lengths in LENGTHS.items()},
    "shared": Counting(25, shards=(25,), shared=True),
    "shared and even": Counting(24, shards=(24,), shared=True),
}

each_stream = pytest.mark.parametrize("script", STREAMS.values(), ids=STREAMS)


@st.composite
def streams(draw: st.DrawFn) -> Counting:
    shared = draw(st.booleans())
    lengths = st.lists(st.integers(0, 12), min_size=1, max_size=1 if shared else 8)
    shards = tuple(draw(lengths.filter(any)))
    return Counting(
        sum(shards),
        batch_size=draw(st.integers(1, 4)),
        prefetch_batches=draw(st.integers(0, 2)),
        exchange_every=draw(st.sampled_from([0, 2])),
        accumulated=draw(st.sampled_from([1, 1, 2, 3])),
        single=draw(st.sampled_from([0, 2])),
        shards=shards,
        shared=shared,
    )


@each_stream
@pytest.mark.parametrize("np", [1, 2, 3, 5])
def test_nothing_happens(np: int, script: Counting) -> None:
    job = Scenario(np=np, script=script).run()
    assert job.memory.job.state is JobState.FINISHED
    assert len(job.results) == np
    if np == 1:
        batches = -(-script.samples // script.batch_size)
        short = script.shards in (LENGTHS["as it comes"], LENGTHS["tiny"])
        assert job.results[0].steps - script.epochs * batches in range(9 if short else 1)


@each_stream
@pytest.mark.parametrize("what", ["kill", "cut", "fail"])
def test_a_fault_at_each_point(what: str, script: Counting) -> None:
    for worker in range(3):
        for point in points(1 + worker, 80, 9, worker):
            Scenario(point % 2, script=script, faults=(Fault(worker, point, what),)).run()


@each_stream
def test_workers_join_and_leave(script: Counting) -> None:
    for step in sampled(range(6), 2):
        Scenario(np=2, script=script, changes=(Change(step, a=4), Change(step + 2, a=1))).run()


@MORE
@given(
    seed=SEEDS,
    np=st.integers(1, 4),
    script=streams(),
    changes=some(scales() | st.builds(Change, st.integers(0, 8), drain=st.integers(0, 5)), 0, 3),
    faults=some(faults(), 0, 4),
    restart_s=st.sampled_from([0.0, 0.5]),
)
def test_everything_at_once(
    seed: int,
    np: int,
    script: Counting,
    changes: tuple[Change, ...],
    faults: tuple[Fault, ...],
    restart_s: float,
) -> None:
    Scenario(seed, np, 1, 5, script, faults, changes, restart_s).run()
