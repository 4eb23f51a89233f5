"""How the leader takes requests out of inboxes, on a real ZooKeeper: once, and whatever they hold.

The test is the leading controller, and writes into the inboxes what a tenant could write.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from test_tenants import LAB, Leader, P, manifest, secret_of

from edl.cluster import tenants
from edl.cluster.controller import tenant_requests
from edl.cluster.nodes import create_cluster
from edl.cluster.plan import ClusterPlan
from edl.cluster.records import ClusterRecord, Goal
from edl.cluster.store import ClusterJobs, ClusterStore, signing_key
from edl.cluster.submission import submit_job
from edl.cluster.tenants import TenantRequest, TenantResponses, TenantVerb
from edl.cluster.writer import RequestNodes
from edl.errors import CoordinationError, LeadershipLost, UsageError
from edl.zookeeper.nodes import content
from edl.zookeeper.reads import children, delete_node, encode, get
from edl.zookeeper.session import Session

pytestmark = [pytest.mark.integration, pytest.mark.long]

HALT = TenantRequest("halt", TenantVerb.WANT, job="ann.digits", goal=Goal.HALT)


class Lab:
    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.store = leader.store
        self.keys: dict[str, str] = {}
        for name in ("ann", "bob"):
            self.store.queues.change(name, partial(replace, tenant=name))
            word = self.store.tenants.create(name)
            self.keys[name] = signing_key("lab", name, secret_of(word))

    def put(self, who: str, data: bytes, node: str = "") -> None:
        path = f"{P.inbox(who)}/{node or 'r-'}"
        client = self.store.nodes.session.client
        client.create(path, data, acl=LAB.acl, sequence=not node)

    def ask(self, who: str, request: TenantRequest, node: str = "") -> None:
        self.put(who, encode(request.signed(self.keys[who], who).to_json()), node)

    def submit(self, who: str, name: str) -> None:
        values = manifest(name).to_json()
        self.ask(who, TenantRequest(f"submit {name}", TenantVerb.SUBMIT, manifest=values))

    def serve(self, now_s: float) -> float:
        """Serve the tenants at a time; return in how many seconds to do so again."""
        return self.leader.requests.serve((), ClusterPlan(), {}, now_s)

    def inbox(self, who: str) -> list[str]:
        names: list[str] = self.store.nodes.read(children(P.inbox(who)))[0]
        return names

    def refused(self, who: str) -> dict[str, str]:
        return {one.id: one.refused for one in self._responses(who).responses}

    def newest(self, who: str) -> int:
        return self._responses(who).newest

    def _responses(self, who: str) -> TenantResponses:
        path = P.responses(who)
        return TenantResponses.from_json(content(path, self.store.nodes.read(get(path))[0]))

    def events(self) -> list[str]:
        """Return the reasons of the events about tenants, without those that they were made."""
        found = [one.reason for _, one in self.store.events.read() if one.kind == "tenant"]
        return [why for why in found if " was made" not in why]

    @property
    def jobs(self) -> list[str]:
        return sorted(job.name for job in self.store.jobs.list())

    def goal(self) -> Goal:
        return self.store.jobs.get("ann.digits").wanted.goal


@pytest.fixture
def lab(zk_hosts: str) -> Iterator[Lab]:
    with Session(zk_hosts, session_timeout_s=4.0) as session:
        assert create_cluster(session, LAB, ClusterRecord())
        yield Lab(Leader(session))


@pytest.fixture
def halts(lab: Lab) -> None:
    lab.submit("ann", "digits")
    lab.leader.serve()
    lab.ask("ann", HALT)


class TestTheRateLimit:
    """A tenant pushes nobody's events out of the log by many requests."""

    def test_further_requests_wait_for_the_next_minute(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tenants, "MAX_A_MINUTE", 3)
        for number in range(5):
            lab.ask("ann", replace(HALT, id=f"{number}"))  # refused: there is no such job
        lab.submit("bob", "digits")
        assert lab.serve(1000.0) == 60.0
        assert lab.serve(1010.0) == 50.0
        assert lab.jobs == ["bob.digits"]
        assert sorted(lab.refused("ann")) == ["0", "1", "2"]
        [logged] = [why for why in lab.events() if "the most" in why]
        assert logged == (
            "tenant ann has asked for 120 changes within a minute, which is the most; its other "
            "requests wait for the next minute"
        )
        lab.serve(1060.0)
        assert sorted(lab.refused("ann")) == ["0", "1", "2", "3", "4"]

    def test_what_is_not_signed_takes_none_of_the_minute(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody who has heard how ann proves its identity does not make it wait."""
        monkeypatch.setattr(tenants, "MAX_A_MINUTE", 3)
        for _ in range(5):
            lab.put("ann", encode(HALT.to_json()))
        lab.submit("ann", "digits")
        lab.serve(1000.0)
        assert lab.jobs == ["ann.digits"]


class TestCopies:
    def test_a_copy_under_a_high_number_makes_no_later_request_too_old(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tenants, "RESPONSES_KEPT", 2)
        lab.submit("ann", "digits")
        lab.leader.serve()
        lab.ask("ann", HALT, "r-9999999999")
        lab.leader.serve()
        for number in range(4):
            lab.ask("ann", replace(HALT, id=f"{number}", after=lab.newest("ann")))
            lab.leader.serve()
            assert lab.refused("ann")[f"{number}"] == ""


class TestWhatCannotBeCarriedOut:
    def test_it_holds_up_nobody(self, lab: Lab) -> None:
        for name in ("foo", "r-1", "r-x000000001", "\u00e9"):
            lab.put("ann", b"{}", name)
        deep = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
        bomb = zlib.compress(b'{"a":"' + b"x" * 10_000_000 + b'"}')
        unsigned = encode(replace(HALT, signature="\ud800").to_json())
        for data in (deep, bomb, unsigned, encode({"signature": "\ud800"})):
            lab.put("ann", data)
        for request in (replace(HALT, id="\ud800"), replace(HALT, job="j" * 200_000)):
            lab.ask("ann", request)
        lab.ask("ann", replace(HALT, id="key", key="\ud800"))
        lab.submit("ann", "digits")
        lab.submit("bob", "digits")
        lab.leader.serve()
        assert lab.jobs == ["ann.digits", "bob.digits"]
        assert (lab.inbox("ann"), lab.inbox("bob")) == ([], [])
        assert "the key must be a text" in lab.refused("ann")["key"]
        events = lab.events()
        assert len(events) == 11
        assert all(why.isascii() and len(why) <= 500 for why in events)

    def test_long_texts_are_cut(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise UsageError("q\n" * 1_000_000)

        monkeypatch.setattr(tenant_requests, "own_manifest", refuse)
        lab.submit("ann", "one")
        lab.ask("ann", replace(HALT, job="bob." + "x" * 120))
        lab.leader.serve()
        assert lab.inbox("ann") == []
        refused = lab.refused("ann")
        assert sorted(refused) == ["halt", "submit one"]
        assert len(refused["submit one"]) == 500
        assert all(why.isprintable() and 0 < len(why) <= 500 for why in refused.values())

    def test_a_defect_of_the_leader_holds_up_nobody(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What fails though ZooKeeper answers is tried three times; another error, once."""
        error: Exception = CoordinationError("too large")

        def failing(store: ClusterStore, submitted: Any, *more: Any) -> str:
            if submitted.name.startswith("ann"):
                raise error
            return submit_job(store, submitted, *more)

        monkeypatch.setattr(tenant_requests, "submit_job", failing)
        lab.submit("ann", "one")
        lab.submit("bob", "one")
        lab.leader.serve()
        assert lab.jobs == ["bob.one"]
        assert len(lab.inbox("ann")) == 1
        for _ in range(2):
            lab.leader.serve()
        error = ValueError("a defect")
        lab.submit("ann", "two")
        lab.leader.serve()
        assert lab.inbox("ann") == []
        assert [why.partition(" was refused: ")[2] for why in lab.events()] == [
            "it failed 3 times: too large",
            "it cannot be carried out (ValueError)",
        ]


@pytest.mark.usefixtures("halts")
class TestOneTransaction:
    def test_a_removed_leader_carries_out_nothing(self, lab: Lab) -> None:
        assert lab.store.leader.election("two", {}).remove("one")
        with pytest.raises(LeadershipLost):
            lab.leader.serve()
        assert lab.goal() is Goal.RUN
        assert len(lab.inbox("ann")) == 1

    def test_a_leader_that_is_removed_while_it_decides_changes_nothing(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change = ClusterJobs.change_wanted

        def late(jobs: ClusterJobs, *args: Any) -> Any:
            lab.store.leader.election("two", {}).remove("one")
            return change(jobs, *args)

        monkeypatch.setattr(ClusterJobs, "change_wanted", late)
        with pytest.raises(LeadershipLost):
            lab.leader.serve()
        monkeypatch.undo()
        assert lab.goal() is Goal.RUN

    def test_a_request_that_another_leader_has_taken_changes_nothing(
        self, lab: Lab, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [node] = lab.inbox("ann")
        change = ClusterJobs.change_wanted

        def late(jobs: ClusterJobs, *args: Any) -> Any:
            removal = delete_node(f"{P.inbox('ann')}/{node}")
            lab.store.nodes.session.read_all("remove a request", [removal])
            return change(jobs, *args)

        monkeypatch.setattr(ClusterJobs, "change_wanted", late)
        lab.leader.serve()
        assert lab.goal() is Goal.RUN
        assert list(lab.refused("ann")) == ["submit digits"]

    def test_a_request_that_cannot_be_removed_changes_nothing(self, lab: Lab) -> None:
        [node] = lab.inbox("ann")
        lab.put("ann", b"", f"{node}/below")
        lab.leader.serve()
        assert lab.goal() is Goal.RUN

    def test_what_is_so_already_is_answered(self, lab: Lab) -> None:
        lab.store.jobs.change_wanted("ann.digits", lambda w: replace(w, goal=Goal.HALT))
        lab.leader.serve()
        assert lab.inbox("ann") == []
        assert lab.refused("ann") == {"submit digits": "", "halt": ""}

    def test_a_lost_answer_repeats_nothing(self, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
        """The transaction was done, and the leader does not know it: the administrator's stays."""
        transact = RequestNodes.transact

        def lost(nodes: Any, what: str, build: Any) -> Any:
            transact(nodes, what, build)
            raise CoordinationError("ZooKeeper did not answer")

        monkeypatch.setattr(RequestNodes, "transact", lost)
        lab.leader.serve()
        monkeypatch.undo()
        assert lab.goal() is Goal.HALT
        lab.store.jobs.change_wanted("ann.digits", lambda w: replace(w, goal=Goal.RUN))
        lab.leader.serve()
        assert lab.goal() is Goal.RUN
        assert lab.refused("ann")["halt"] == ""

    def test_a_deletion_of_an_earlier_job_of_the_name_deletes_nothing(self, lab: Lab) -> None:
        """It was sent again, and came late."""
        earlier = lab.store.jobs.get("ann.digits").submitted_s - 60.0
        gone = TenantRequest("d", TenantVerb.DELETE, job="ann.digits", submitted_s=earlier)
        lab.ask("ann", gone)
        lab.leader.serve()
        assert lab.refused("ann")["d"] == "tenant ann has no job ann.digits"
        assert lab.goal() is Goal.HALT
