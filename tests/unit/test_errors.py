"""What errors say when there is much to say: names near to what was written, and how many more."""

from __future__ import annotations

from edl.errors import JobExists, UnknownJob, some


def test_an_unknown_job_gets_the_few_nearest_names() -> None:
    assert str(UnknownJob("a")) == "there is no job named 'a'; start one with `edl run`"
    assert str(UnknownJob("a", ("b", "c"))) == "there is no job named 'a'; known jobs: b, c"
    ninety = (*(f"other-{number}" for number in range(88)), "digits-1", "digits-2")
    sentence = str(UnknownJob("digts-2", ninety))
    assert sentence.startswith("there is no job named 'digts-2'; the nearest of 90: digits-2, ")
    assert sentence.count(",") == 4
    assert "is over, and a new one" in str(UnknownJob("b", ("b", "c")))


def test_a_job_that_is_there_says_who_is_alive_and_how_long_the_dead_count() -> None:
    sentence = str(JobExists("j", ["host a", *(f"w{worker}" for worker in range(9))], 6.0))
    assert "already running (host a, w0, w1, w2, w3 and 5 more)" in sentence
    assert "until their ZooKeeper sessions end, about 6 s" in sentence
    assert some([]) == ""
