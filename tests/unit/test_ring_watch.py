"""What a worker reports of the steps of its ring, on invented step records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from edl.policy.stragglers import NO_REPORT, RingReport
from edl.records import Generation, RingMember
from edl.step.batching import Batching
from edl.step.record import StepRecord, StepRecords
from edl.worker.loader_steps import EVERY, RingWatch


def test_without_a_policy_the_times_and_batches_are_reported_and_nothing_else() -> None:
    """The dashboard shows them, and a cluster has to know how the batch grows with the workers."""
    ring = tuple(RingMember(n, "a", n, "127.0.0.1", 1) for n in range(2))
    switching: Any = SimpleNamespace(generation=Generation(1, 1, ring, 0, (), (), ""), worker=0)
    shares: list[float] = []
    progress: Any = SimpleNamespace(
        sampler=SimpleNamespace(share=shares.append),
        source=SimpleNamespace(batching=Batching(32)),
        step_batches=4,
    )
    shared: Any = SimpleNamespace(ring=NO_REPORT, policy=None)
    watch = RingWatch(shared)
    records = StepRecords.of(
        [
            StepRecord(1, 7, n, 0, 32, 32 * n, 0, 1, 5, compute_us=1000 * (n + 1), reduce_us=500)
            for n in range(2)
        ]
    )
    for _ in range(EVERY):
        watch.look(records, switching, progress)
    assert shared.ring == RingReport(batching=Batching(32), step_batches=4, generation=1)
    watch.look(records, switching, progress)
    assert [one.compute_s for one in shared.ring.times] == [0.001, 0.002]
    assert (shared.ring.size_changes, set(shares)) == ((), {1.0})
    known = shared.ring.times
    watch.look(records, switching, progress)
    assert shared.ring.times == known
