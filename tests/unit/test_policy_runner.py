"""How the leader asks a policy that fails: it rests, or is asked at once when it was changed."""

from __future__ import annotations

import pytest
from clusters import job, nodes

from edl.cluster.allocate import KeepAllocation
from edl.cluster.controller import policy_runner
from edl.cluster.controller.policy_runner import REST_S, PolicyProcess, PolicyRunner
from edl.cluster.policies.simple import Fifo
from edl.cluster.records import ClusterRecord
from edl.cluster.state import ClusterState


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(policy_runner, "time", one)
    return one


@pytest.fixture
def said() -> list[str]:
    return []


def test_a_policy_that_fails_rests(clock: Clock, said: list[str]) -> None:
    runner = PolicyRunner(said.append)
    fifo = ClusterRecord(policy="fifo")
    assert isinstance(runner.policy(fifo), Fifo)
    held = runner.failed("it is broken")
    assert held == KeepAllocation("it is broken") == runner.policy(fifo)
    clock.now_s = REST_S
    assert isinstance(runner.policy(fifo), Fifo)
    runner.failed("it is broken")
    assert said == ["jobs keep their slots: it is broken"]
    clock.now_s = 2 * REST_S
    runner.policy(fifo)
    runner.worked()
    runner.failed("it is broken")
    assert len(said) == 2


def test_a_policy_that_was_changed_is_asked_at_once(clock: Clock, said: list[str]) -> None:
    runner = PolicyRunner(said.append)
    runner.policy(ClusterRecord(policy="fifo"))
    runner.failed("it is broken")
    assert isinstance(runner.policy(ClusterRecord(policy="fifo_backfill")), Fifo)


def test_a_policy_that_this_edl_does_not_have(clock: Clock, said: list[str]) -> None:
    runner = PolicyRunner(said.append)
    held = runner.policy(ClusterRecord(policy="future"))
    assert isinstance(held, KeepAllocation)
    assert said == [f"jobs keep their slots: {held.why}"]
    assert held.why.startswith("there is no policy 'future'; use one of fifo, ")
    state = ClusterState([job("a")], nodes(2), {}, 0.0, {"x": 1})
    assert held(state).reasons == {"a": f"waits: {held.why}"}


def test_a_policy_of_a_user_has_a_process_that_is_kept(clock: Clock, said: list[str]) -> None:
    runner = PolicyRunner(said.append)
    mine = ClusterRecord(policy="mine:Policy", parameters={"patience": 3})
    first = runner.policy(mine)
    assert isinstance(first, PolicyProcess)
    assert runner.policy(mine) is first
    assert repr(first) == "PolicyProcess('mine:Policy', {'patience': 3})"
    runner.policy(ClusterRecord(policy="fifo"))
    assert runner.policy(mine) is not first
