"""Which processes of a host's runs are found by looking once, or twice."""

from __future__ import annotations

from collections.abc import Sequence

from edl.cluster.host.processes import find_surely
from edl.cluster.host_jobs import RunProcess
from edl.cluster.records import HostAssignment, JobAssignment

ENDS, GOES_ON = JobAssignment("r1", (0,), ends=5), JobAssignment("r1", (1,))
OF_A = RunProcess(10, 1, "a", "r1")
OF_B = RunProcess(20, 2, "b", "r1")


class Scans:
    def __init__(self, *results: Sequence[RunProcess]) -> None:
        self.left = list(results)

    def __call__(self) -> Sequence[RunProcess]:
        return self.left.pop(0)


def found(scans: Scans, **assigned: JobAssignment) -> list[RunProcess]:
    return list(find_surely(scans, HostAssignment(assigned)))


def test_one_look_is_enough_unless_a_run_that_ends_has_no_process() -> None:
    scans = Scans([OF_B], [])
    assert found(scans, a=GOES_ON, b=ENDS) == [OF_B]
    assert len(scans.left) == 1


def test_a_process_that_the_first_look_missed_is_found() -> None:
    assert found(Scans([], [OF_A]), a=ENDS) == [OF_A]


def test_what_the_first_look_found_of_another_run_is_kept() -> None:
    """Of that run the second look is the first one that found nothing: it proves no end."""
    assert found(Scans([OF_B], []), a=ENDS, b=ENDS) == [OF_B]


def test_a_process_that_both_looks_found_is_there_once() -> None:
    agent = RunProcess(20, 2, "b", "r1", is_agent=True)  # it has begun its program meanwhile
    successor = RunProcess(20, 3, "b", "r1")  # another process with the pid of one that ended
    assert found(Scans([OF_B], [agent, OF_A]), a=ENDS, b=ENDS) == [OF_A, agent]
    assert found(Scans([OF_B], [successor]), a=ENDS, b=ENDS) == [OF_B, successor]
