"""The events that an agent hands on for its metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_agent_devices import HERE, JOB, Store, Workers

from edl.events import DrainDetails, Event
from edl.host.agent import Agent
from edl.host.decide import AgentLimits
from edl.zookeeper.events import OnUnreadable, leave_out


def drained(reason: str) -> Event:
    return Event(0.0, 1, 1, reason, DrainDetails("w1", True))


@pytest.mark.parametrize("joined", [False, True])
def test_an_agent_that_joins_counts_the_events_from_before_it_came(
    tmp_path: Path, joined: bool
) -> None:
    """And shows none of them, in contrast to the agent of `edl run`; an unknown one is left out."""
    store, seen, shown = Store(), list[str](), list[str]()
    log: list[Event | None] = [drained("first"), None, drained("second")]

    def read_known(
        after: int = -1, unreadable: OnUnreadable = leave_out
    ) -> Iterator[tuple[int, Event]]:
        for number, event in [*enumerate(log)][after + 1 :]:
            if event is None:
                unreadable(number, "a newer edl has written it")
            else:
                yield number, event

    store.events.read_known = read_known
    output = SimpleNamespace(follow=lambda *a, **k: None, note=shown.append)
    agent = Agent(
        cast(Any, store),
        HERE,
        JOB,
        cast(Any, output),
        {},
        tmp_path,
        "hello",
        AgentLimits(),
        joined=joined,
        on_event=lambda event: seen.append(event.reason),
    )
    agent._workers = cast(Any, Workers(store.hosts))
    store.assign(0)
    for now in (0.0, 40.0):
        assert agent._turn(now) is None
    log.append(drained("third"))
    agent.on_change()
    assert agent._turn(80.0) is None
    assert seen == ["first", "second", "third"]
    assert any("first" in line for line in shown) is not joined
    assert any("third" in line for line in shown)
