"""Rings that break again and again: when a worker gives its job up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from edl.errors import JobFailed, RendezvousFailed, RingBroken, RingError
from edl.records import Generation, RingMember
from edl.spec import JobSettings
from edl.worker.switching import MAX_REPAIRS, Repairs

LIMIT_S = JobSettings().elastic_timeout_s
BROKEN, CUT = RingBroken(1, "it fails"), RendezvousFailed(1, "w1 does not answer")


class Worker:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.members = (0, 1, 2)
        self.progress = SimpleNamespace(step=5, exchanges=0, leaves=0)
        shared = SimpleNamespace(
            clock=SimpleNamespace(now_s=lambda: self.now_s),
            led_since=0.0,
            wait_for_generation=lambda *_, **__: self.ring,
        )
        coordinator = SimpleNamespace(settings=JobSettings(), away=False)
        checkpointing = SimpleNamespace(fail_together=self.fail)
        parts = (cast(Any, one) for one in (shared, coordinator, checkpointing))
        self.repairs = Repairs(*parts, lambda: cast(Any, self.progress))

    @property
    def ring(self) -> Generation:
        members = tuple(RingMember(n, "h", n, "127.0.0.1", 1) for n in self.members)
        return Generation(2, 1, members, 0, (), (), "")

    def fail(self, reason: str, rank: int) -> NoReturn:
        assert rank == 0
        raise JobFailed(reason)

    def repair(self, error: RingError, times: int = 1, each_s: float = 0.1) -> None:
        for _ in range(times):
            self.now_s += each_s
            self.repairs.wait(0, 1, error)


def test_rings_that_break_after_they_were_built_end_the_job() -> None:
    worker = Worker()
    worker.repair(BROKEN, MAX_REPAIRS)
    with pytest.raises(JobFailed, match=r"repaired 10 times after step 5 .* it fails; look"):
        worker.repair(BROKEN)


@pytest.mark.parametrize("what", ["step", "exchanges", "leaves"])
def test_progress_and_deaths_begin_the_count_anew(what: str) -> None:
    worker = Worker()
    worker.repair(BROKEN, MAX_REPAIRS)
    setattr(worker.progress, what, 7)
    worker.repair(BROKEN, MAX_REPAIRS)
    worker.members = (0, 1)
    worker.repair(BROKEN, MAX_REPAIRS)
    with pytest.raises(JobFailed):
        worker.repair(BROKEN)


def test_while_the_network_is_cut_between_two_workers_the_job_lives() -> None:
    """No ring can be built, however often that is tried, until the network is back."""
    worker = Worker()
    worker.repair(CUT, 500, each_s=(LIMIT_S - 1.0) / 500)
    worker.progress.step += 1
    worker.repair(CUT, 500, each_s=(LIMIT_S - 1.0) / 500)
    with pytest.raises(JobFailed, match="w1 does not answer; look for what keeps these workers"):
        worker.repair(CUT, 2, each_s=2.0)
