"""Where in a training workers may exchange numbers.

That all get the same answer, wherever the ring breaks, is tested with whole jobs:
`tests/property/test_loopback_jobs.py`.
"""

from __future__ import annotations

import pytest

from edl.config import Config
from edl.errors import UsageError
from edl.ring.loopback import LoopbackNetwork
from edl.step.batching import Batching
from edl.step.source import Source
from edl.worker.coordinator import JobOfOne
from edl.worker.loader_steps import packed, unpacked
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker


def test_it_takes_place_between_two_steps_of_the_training() -> None:
    ring = LoopbackNetwork().ring(0)
    worker = Worker(Config(), ring, SharedState(), JobOfOne(Config()))
    worker.start()
    worker.attach_source(Source(1000, Batching(4), True, 7, 0))
    with pytest.raises(UsageError, match=r"call edl\.mean\(\).*: training has not begun"):
        worker.exchange([1.0])
    worker.begin()
    batch = worker.loader.sampler.form(worker.loader.ledger)
    assert batch is not None
    worker.loader.begin(batch)
    with pytest.raises(UsageError, match=r"this batch is not trained yet$"):
        worker.exchange([1.0])
    worker.loader.engine.batches.pieces = 2  # microbatches, or logical workers
    with pytest.raises(UsageError, match=r"one of several of a step, .* edl\.step\(\) has moved"):
        worker.exchange([1.0])
    worker.loader.records()
    worker.loader.end()
    assert worker.exchange([1.0, 2.0]) == [[1.0, 2.0]]
    assert worker.exchange_bytes(b"") == [b""]
    worker.finishing.finish()
    with pytest.raises(UsageError, match="all epochs are trained"):
        worker.exchange([1.0])


def test_numbers_come_as_they_were_sent() -> None:
    rows = [[0.1, 1e300, -0.0], [float("inf"), 0.2, 5e-324]]
    assert unpacked([packed(row) for row in rows]) == rows


def test_uneven_numbers_are_refused_with_all_counts() -> None:
    with pytest.raises(UsageError, match=r"the 3 workers exchanged 2, 1, 2 numbers"):
        unpacked([packed([1.0, 2.0]), packed([1.0]), packed([1.0, 2.0])])
