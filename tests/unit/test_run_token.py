"""The token of a run: which words can be one, and when no agent can join its run any more."""

from __future__ import annotations

import pytest
from made import make_job

from edl.errors import UsageError
from edl.job.run import check_run_token, why_run_is_over
from edl.records import JobState

RUN, LATER = "0123456789abcdef", "f" * 32


@pytest.mark.parametrize("token", [RUN, LATER, "65756f7847914bf3a6368f6e7ac8aa90"])
def test_a_token(token: str) -> None:
    assert check_run_token(token) == token


@pytest.mark.parametrize("token", ["", "abc", RUN.upper(), "g" * 32, f"{RUN}\n", "f" * 65, "a/b"])
def test_no_token(token: str) -> None:
    with pytest.raises(UsageError, match="give 16 to 64 lower-case hexadecimal digits"):
        check_run_token(token)


@pytest.mark.parametrize(
    ("state", "current", "says"),
    [
        (JobState.RUNNING, RUN, ""),
        (JobState.STOPPING, RUN, ""),  # its workers may need an agent that ends them
        (JobState.STOPPED, RUN, f"run {RUN} of job digits is over: it was stopped (edl stop)"),
        (JobState.FINISHED, RUN, f"run {RUN} of job digits is over: it has finished (edl stop)"),
        (JobState.FAILED, RUN, f"run {RUN} of job digits is over: it has failed (edl stop)"),
        (JobState.RUNNING, LATER, f"is over: run {LATER} has taken its place"),
        (JobState.STOPPED, LATER, f"is over: run {LATER} has taken its place"),
    ],
)
def test_when_a_run_is_over(state: JobState, current: str, says: str) -> None:
    why = why_run_is_over(make_job(state=state, reason="edl stop"), RUN, current)
    assert why == says if not says.startswith("is") else says in why
