"""What a tenant may ask of a cluster, and which requests are its own and new."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edl.cluster import tenants
from edl.cluster.manifest import JobManifest
from edl.cluster.records import (
    Goal,
    QueueRecord,
    is_tenant_name,
    own_name,
    parsed_word,
    secret_word,
    tenant_of,
)
from edl.cluster.tenants import (
    MAX_A_MINUTE,
    MAX_TEXT,
    RESPONSES_KEPT,
    RequestRate,
    TenantRequest,
    TenantResponse,
    TenantResponses,
    TenantVerb,
    misshapen,
    own_manifest,
    refusal,
    request_number,
    shown,
    views,
)
from edl.errors import UsageError

KEY, OTHER = "k" * 64, "o" * 64
NONE = TenantResponses()
QUEUES = {
    "research": QueueRecord(4, tenant="ann"),
    "prod": QueueRecord(8, tenant="bob"),
    "default": QueueRecord(1),
}


def request(**changes: Any) -> TenantRequest:
    asked = TenantRequest("id", TenantVerb.WANT, job="ann.digits", goal=Goal.HALT)
    return replace(asked, **changes).signed(KEY, "ann")


def manifest(**changes: Any) -> JobManifest:
    return replace(JobManifest("digits", ("python",), 1, 4), **changes)


def test_a_request_that_is_its_own_is_carried_out() -> None:
    assert refusal("ann", request(), NONE, KEY) == ""


@pytest.mark.parametrize(
    "change",
    [
        {"signature": ""},
        {"job": "ann.other"},
        {"priority": 3},
        {"after": 7},
        {"id": "another"},
        {"goal": Goal.RUN},
        {"verb": TenantVerb.DELETE},
        {"key": "x"},
        {"manifest": {"name": "x"}},
    ],
)
def test_a_changed_request_is_refused(change: dict[str, Any]) -> None:
    why = refusal("ann", replace(request(), **change), NONE, KEY)
    assert why == "the request is not signed by tenant ann"


def test_a_request_with_another_key_or_of_another_tenant_is_refused() -> None:
    signed = "the request is not signed by tenant"
    assert refusal("ann", request().signed(OTHER, "ann"), NONE, KEY) == f"{signed} ann"
    assert refusal("bob", request(), NONE, KEY) == f"{signed} bob"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"job": "bob.digits"}, "bob.digits is no job of tenant ann"),
        ({"job": "digits"}, "digits is no job of tenant ann"),
        ({"job": "annex.digits"}, "annex.digits is no job of tenant ann"),
        ({"job": ""}, " is no job of tenant ann"),
        ({"goal": Goal.GONE}, "to delete a job is a request of its own"),
        ({"priority": 10**9}, "the priority must lie between -1000000 and 1000000"),
    ],
)
def test_what_a_tenant_may_not_ask(changes: dict[str, Any], why: str) -> None:
    assert refusal("ann", request(**changes), NONE, KEY) == why


def test_a_request_is_carried_out_once() -> None:
    responses = TenantResponses(forgotten=3).with_response("id", job="ann.digits")
    assert responses.responses == (TenantResponse(4, "id", job="ann.digits"),)
    assert refusal("ann", request(after=3), responses, KEY) == "the request was answered before"
    for number in range(RESPONSES_KEPT):
        responses = responses.with_response(f"id{number}")
    assert (len(responses.responses), responses.forgotten, responses.newest) == (
        RESPONSES_KEPT,
        4,
        4 + RESPONSES_KEPT,
    )
    assert responses.of("id") is None, "it is forgotten"
    old = "the request is older than the responses that are kept; ask again"
    assert refusal("ann", request(after=3), responses, KEY) == old
    assert refusal("ann", request(after=responses.newest), responses, KEY) == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_copies_of_requests_are_carried_out_never_and_new_ones_always(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject
) -> None:
    """A listener repeats what it has heard, as often as it likes and under any name."""
    monkeypatch.setattr(tenants, "RESPONSES_KEPT", 4)
    responses, heard, done = NONE, [], set()
    for number in range(20):
        if heard and data.draw(st.booleans()):
            asked = data.draw(st.sampled_from(heard))
        else:
            asked = request(id=f"id{number}", after=responses.newest)
            heard.append(asked)
            assert refusal("ann", asked, responses, KEY) == ""
        if refusal("ann", asked, responses, KEY) == "":
            assert asked.id not in done
            done.add(asked.id)
            responses = responses.with_response(asked.id)
    assert len(done) == len(heard)


def test_names_and_secrets_of_a_tenant() -> None:
    word = secret_word("ann", KEY)
    assert parsed_word(word) == ("ann", KEY)
    for wrong in ("", KEY, "tenant:", "tenant:ann:", "tenant:a.b:c", "job:ann:c"):
        assert parsed_word(wrong) is None
    assert [name for name in ("ann", "a.b", "", "a/b", "a" * 33) if is_tenant_name(name)] == ["ann"]
    assert own_name("ann", "digits") == own_name("ann", "ann.digits") == "ann.digits"
    assert own_name("ann", "annex.digits") == "ann.annex.digits"
    tenants = {"ann"}
    assert tenant_of("ann.digits", tenants) == "ann"
    for other in ("digits", "bob.digits", "ann", "annex.digits"):
        assert tenant_of(other, tenants) == ""


def test_a_submission_gets_the_names_and_the_queue_of_its_tenant() -> None:
    found = own_manifest("ann", manifest(after=("first", "ann.second")), QUEUES)
    assert (found.name, found.after) == ("ann.digits", ("ann.first", "ann.second"))
    assert found.queue == "research", "its only one"
    assert own_manifest("ann", manifest(secrets=("ann.key",)), QUEUES).secrets == ("ann.key",)


@pytest.mark.parametrize(
    ("tenant", "changes", "why"),
    [
        ("ann", {"queue": "prod"}, "tenant ann has no queue 'prod'; it has research"),
        ("eve", {}, "tenant eve has no queue 'default'; it has none; the administrator gives"),
        ("ann", {"secrets": ("key",)}, "tenant ann has no secret 'key': its secrets are called"),
        ("ann", {"secrets": ("bob.key",)}, "tenant ann has no secret 'bob.key'"),
    ],
)
def test_a_submission_that_is_refused(tenant: str, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        own_manifest(tenant, manifest(**changes), QUEUES)


def test_a_tenant_is_told_of_its_own_jobs_only() -> None:
    jobs = ["ann.a", "bob.b", "c"]
    reasons = {name: f"why {name}" for name in jobs}
    found = views(jobs, {"ann": None, "bob": None}, reasons, {"ann.a": 1, "c": 2}, 7.0)
    assert {name: dict(view.reasons) for name, view in found.items()} == {
        "ann": {"ann.a": "why ann.a"},
        "bob": {"bob.b": "why bob.b"},
    }
    assert (found["ann"].surplus, found["bob"].surplus) == ({"ann.a": 1}, {})


@pytest.mark.parametrize(
    ("node", "number"),
    [
        ("r-0000000012", 12),
        ("foo", None),
        ("r-", None),
        ("x-0000000012", None),
        ("r-00000000012", None),
        ("r-0000000012\n", None),
        ("r-\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661", None),
    ],
)
def test_a_node_with_another_name_is_no_request(node: str, number: int | None) -> None:
    assert request_number(node) == number


def test_what_is_kept_of_a_text_of_a_tenant_is_short_and_printable() -> None:
    assert shown("tenant ann has no queue 'x'") == "tenant ann has no queue 'x'"
    assert shown("a\x1b[2J\ud800\u00e9\n") == "a?[2J???"
    assert shown("x" * MAX_TEXT) == "x" * MAX_TEXT
    long = shown("x" * 1_000_000)
    assert (len(long), long[-4:]) == (MAX_TEXT, "x...")


@pytest.mark.parametrize("signature", ["\ud800", "\u00e9", "x" * 1000])
def test_any_text_can_be_a_wrong_signature(signature: str) -> None:
    request = replace(TenantRequest("one", TenantVerb.DELETE, job="ann.x"), signature=signature)
    assert not request.is_signed("k", "ann")


def test_what_an_answer_repeats_is_short_and_printable() -> None:
    fine = TenantRequest("one", TenantVerb.DELETE, job="ann.x")
    assert misshapen(fine) == ""
    for id_ in ("", "x" * 65, "a\n", "\ud800"):
        assert "its id is not a text of 1 to 64" in misshapen(replace(fine, id=id_))
    for job in ("x" * 129, "\ud800"):
        assert "its job is not a text of at most 128" in misshapen(replace(fine, job=job))
    for key in ("\ud800", "x" * 501):
        request = replace(fine, key=key).signed("k", "ann")
        assert "the key must be a text" in refusal("ann", request, TenantResponses(), "k")


def test_a_tenant_may_have_so_many_requests_a_minute() -> None:
    rate = RequestRate().at(1000.0)
    assert rate.count < MAX_A_MINUTE
    full = replace(rate, count=MAX_A_MINUTE)
    assert full.at(1059.9) == full
    assert full.at(1060.0) == RequestRate(1060.0)
    assert full.at(999.0) == RequestRate(999.0), "the clock was set back"
