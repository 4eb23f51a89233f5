"""The events that an agent hands on for its metrics."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from test_agent_devices import HERE, JOB, Store, Workers

from edl.core.events import DrainDetails, Event
from edl.core.host.agent import AgentLimits
from edl.launch.agent import Agent


@pytest.mark.parametrize("joined", [False, True])
def test_an_agent_that_joins_counts_the_events_from_before_it_came(
    tmp_path: Path, joined: bool
) -> None:
    """And shows none of them, in contrast to the agent of `edl run`."""
    store, seen, shown = Store(), list[str](), list[str]()
    log = [Event(0.0, 1, 1, reason, DrainDetails("w1", True)) for reason in ("first", "second")]
    store.events.read = lambda after=-1: [*enumerate(log)][after + 1 :]
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
    log.append(Event(0.0, 1, 2, "third", DrainDetails("w1", True)))
    agent.on_change()
    assert agent._turn(80.0) is None
    assert seen == ["first", "second", "third"]
    assert any("first" in line for line in shown) is not joined
    assert any("third" in line for line in shown)
