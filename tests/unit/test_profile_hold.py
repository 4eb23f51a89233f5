"""What is desired of a job that is profiled: who asked, and what it shall be afterwards."""

from collections.abc import Mapping

import pytest
from made import make_job

from edl.job.profile import HoldState, ProfileHold, ProfileView

JOB = make_job(command=("python",), max_np=5)
MINE = ProfileHold("mine", "process 7 on a", {"a": 2})
ASKED = ProfileHold("mine", "process 7 on a", {"a": 2}, asked=True)
OTHER = ProfileHold("other", "process 8 on b", {"a": 2})
SLOTS = {"a": 2, "b": 2, "c": 2}
OURS, FOREIGN = {"a": 1}, {"a": 1, "c": 1}


def held(before: Mapping[str, int], last: Mapping[str, int] | None) -> ProfileView:
    return ProfileView("mine", before, ours=(before, OURS), last=last)


@pytest.mark.parametrize(
    ("desired", "hold", "fate"),
    [
        (OURS, MINE, HoldState.OURS),
        (OURS, ASKED, HoldState.ASKED),
        (OURS, OTHER, HoldState.ASKED),
        (OURS, None, HoldState.OURS),  # our session was lost, and the hold with it
        (FOREIGN, MINE, HoldState.MOVED),
        (FOREIGN, ASKED, HoldState.ASKED),
        (FOREIGN, OTHER, HoldState.ASKED),
        (FOREIGN, None, HoldState.ASKED),  # perhaps: nobody can know any more
    ],
)
def test_who_has_asked(
    desired: Mapping[str, int], hold: ProfileHold | None, fate: HoldState
) -> None:
    assert held({"a": 2}, last=OURS).fate_of(desired, hold) is fate


def test_what_was_changed_against_an_unknown_size_stays() -> None:
    """ZooKeeper did not answer the last time that the profile wrote it."""
    assert held({"a": 2}, last=None).fate_of(FOREIGN, MINE) is HoldState.ASKED
    assert held({"a": 2}, last=None).fate_of(OURS, MINE) is HoldState.OURS


def test_what_was_asked_for_stays() -> None:
    assert held({"a": 2}, last=OURS).given_back(FOREIGN, HoldState.ASKED, SLOTS, JOB) == FOREIGN


def test_what_nobody_has_changed_is_as_it_was() -> None:
    before = {"a": 2, "b": 0}
    assert held(before, last=OURS).given_back(OURS, HoldState.OURS, SLOTS, JOB) == before


def test_a_host_gets_no_more_workers_back_than_it_has_slots_now() -> None:
    before = {"a": 2, "b": 2}
    back = held(before, last=OURS).given_back(OURS, HoldState.OURS, {"a": 2, "b": 1}, JOB)
    assert back == {"a": 2, "b": 1}


GIVEN_BACK = {
    "it shrank, and c came": (
        {"a": 1, "b": 0, "c": 1},
        {"a": 2, "b": 1},
        {"a": 1, "b": 0},
        {"a": 2, "b": 1, "c": 1},
    ),
    "it grew, and c came": (
        {"a": 2, "b": 1, "c": 1},
        {"a": 2},
        {"a": 2, "b": 1},
        {"a": 2, "b": 0, "c": 1},
    ),
    "a worker left": ({"a": 1, "b": 0}, {"a": 2, "b": 2}, {"a": 2, "b": 0}, {"a": 1, "b": 2}),
    "host d has gone, and has no slots": (
        {"a": 1, "d": 0, "c": 1},
        {"a": 2, "d": 2},
        {"a": 1, "d": 0},
        {"a": 2, "c": 1, "d": 0},
    ),
    "max_np cuts, from the last by name": (
        {"a": 1, "b": 0, "c": 2},
        {"a": 2, "b": 2},
        {"a": 1, "b": 0},
        {"a": 2, "b": 1, "c": 2},
    ),
    "min_np cuts": ({"a": 0, "b": 1}, {"a": 2, "b": 0}, {"a": 2, "b": 1}, {"a": 0, "b": 1}),
    "never below 0": (
        {"a": 2, "b": 0, "c": 1},
        {"a": 1, "b": 1},
        {"a": 2, "b": 2},
        {"a": 1, "b": 0, "c": 1},
    ),
}


@pytest.mark.parametrize("case", GIVEN_BACK)
def test_what_a_profile_took_is_given_back_to_whoever_is_there(case: str) -> None:
    desired, before, last, after = GIVEN_BACK[case]
    assert held(before, last).given_back(desired, HoldState.MOVED, SLOTS, JOB) == after


def test_a_hold_survives_its_storage() -> None:
    assert ProfileHold.from_json(ASKED.to_json()) == ASKED
