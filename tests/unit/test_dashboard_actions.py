"""What a page may change: which verbs there are, what they call, and what they refuse."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.records import Goal, Wanted
from edl.dashboard.actions import (
    CLUSTER_VERBS,
    JOB_VERBS,
    act_on_cluster,
    act_on_job,
    check_of_cluster,
)
from edl.errors import UsageError
from edl.records import JobPolicy


class Calls:
    """Stands for a client: remembers the calls, and answers each with what ``answers`` has."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        def called(*values: Any) -> Any:
            self.calls.append((name, *values))
            return self._answers.get(name, f"{name} is done")

        return called


POLICY = JobPolicy("[size]\nrule = 'fit'", "the dashboard")


@pytest.mark.parametrize(
    ("verb", "values", "call", "said"),
    [
        ("scale", {"np": 3}, ("scale", 3), "scale is done"),
        ("drain", {"worker": 2}, ("drain", 2), "drain is done"),
        ("drain-host", {"host": " b "}, ("drain_host", "b", 60.0), "drain_host is done"),
        ("migrate", {"from": "a", "to": "b"}, ("migrate", "a", "b", None, 60.0), "migrate is done"),
        ("migrate", {"from": "a", "to": "b", "np": 1}, ("migrate", "a", "b", 1, 60.0), "migrate"),
        ("preempt", {"within": " 2m"}, ("preempt", 120.0, 60.0), "preempt is done"),
        ("stop", {}, ("stop", 60.0), "stop is done"),
        ("policy-off", {}, ("switch_policy_off",), "the policy is off; the job keeps its size"),
        ("policy-resume", {}, ("resume_policy",), "the policy decides again"),
        ("policy", {"text": "x"}, ("set_policy", "x", "the dashboard"), "policy of the dashboard:"),
    ],
)
def test_an_action_on_a_job_is_the_call_of_its_verb(
    verb: str, values: dict[str, Any], call: tuple[Any, ...], said: str
) -> None:
    job: Any = Calls(set_policy=POLICY)
    assert act_on_job(job, verb, values).startswith(said)
    assert job.calls == [call]


@pytest.mark.parametrize(
    ("verb", "values", "call", "said"),
    [
        ("halt", {"job": "j"}, ("halt", "j"), "job j is to halt"),
        ("resume", {"job": "j"}, ("resume", "j"), "job j is to run"),
        ("delete", {"job": "j"}, ("delete", "j"), "job j will be deleted"),
        ("priority", {"job": "j", "priority": -2}, ("priority", "j", -2), "job j has priority -2"),
    ],
)
def test_an_action_on_a_cluster_is_the_call_of_its_verb(
    verb: str, values: dict[str, Any], call: tuple[Any, ...], said: str
) -> None:
    cluster: Any = Calls(delete=Wanted(Goal.GONE))
    assert act_on_cluster(cluster, verb, values) == said
    assert cluster.calls == [call]


def test_a_host_is_drained_and_gets_jobs_again() -> None:
    hosts = Calls()
    cluster: Any = SimpleNamespace(hosts=hosts)
    assert act_on_cluster(cluster, "drain", {"host": "b"}) == "host b is drained"
    assert act_on_cluster(cluster, "undrain", {"host": "b"}) == "host b may have jobs again"
    assert hosts.calls == [("drain", "b"), ("undrain", "b")]


def test_a_deleted_job_that_has_ended_is_removed() -> None:
    cluster: Any = Calls(delete=Wanted(Goal.GONE, removed=True))
    said = act_on_cluster(cluster, "delete", {"job": "j"})
    assert said == "the records of job j will be removed"


@pytest.mark.parametrize(
    ("verb", "values", "why"),
    [
        ("scale", {}, "np must be a whole number; give one"),
        ("scale", {"np": "3"}, "np must be a whole number; give one"),
        ("scale", {"np": True}, "np must be a whole number; give one"),
        ("scale", {"np": 1.5}, "np must be a whole number; give one"),
        ("drain-host", {"host": " "}, "host is missing; give one"),
        ("migrate", {"from": "a"}, "to is missing; give one"),
        ("preempt", {}, "within is missing; give one"),
        ("preempt", {"within": "soon"}, "soon is no time to save in; write it as 30s, or 2m"),
        ("preempt", {"within": "0s"}, "0s is no time to save in"),
        ("logs", {}, "there is no action 'logs'; there are drain, drain-host, migrate, policy,"),
    ],
)
def test_an_impossible_action_calls_nothing(verb: str, values: dict[str, Any], why: str) -> None:
    job: Any = Calls()
    with pytest.raises(UsageError, match=why):
        act_on_job(job, verb, values)
    assert job.calls == []


def test_what_a_cluster_would_undo_is_refused_on_its_jobs() -> None:
    for verb in JOB_VERBS:
        if verb.startswith("policy"):
            check_of_cluster("j", verb)
        else:
            with pytest.raises(UsageError, match="job j is one of a cluster, which decides"):
                check_of_cluster("j", verb)


def test_no_verb_reads_or_runs_what_a_browser_names() -> None:
    """A verb with a path or a command would let the token read files of the user, or run code."""
    assert set(JOB_VERBS) == {
        *("scale", "drain", "drain-host", "migrate", "preempt", "stop"),
        *("policy", "policy-off", "policy-resume"),
    }
    assert set(CLUSTER_VERBS) == {"halt", "resume", "delete", "priority", "drain", "undrain"}
