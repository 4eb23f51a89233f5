"""Which processes are known to be dead, or to be others, by the machine that they ran on."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from edl.errors import AgentExists
from edl.host.adoption import has_died_here, machine_name
from edl.records import Host
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.store import HostNodes

HERE = Host("a", 2, "10.0.0.1", os.getpid(), machine=machine_name())


def test_an_agent_of_this_machine_and_address_whose_process_is_gone() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = replace(HERE, pid=ended.pid)
    assert has_died_here(gone, HERE)
    assert not has_died_here(HERE, HERE), "this process"
    assert not has_died_here(replace(gone, machine="elsewhere"), HERE)
    assert not has_died_here(replace(gone, machine=""), HERE), "of an older edl"
    assert not has_died_here(replace(gone, address="10.0.0.2"), HERE), "another machine, perhaps"


class Nodes:
    paths = JobPaths("digits")

    def __init__(self, there: Host) -> None:
        self.there = there

    def put_ephemeral(
        self, path: str, host: Host, ours: Callable[[Mapping[str, Any]], bool], conditions: object
    ) -> bool:
        is_put = ours(self.there.to_json())
        if is_put:
            self.there = host
        return is_put


def test_an_agent_in_another_container_keeps_its_node() -> None:
    """With its host's network, each container has the same address, and process 1."""
    first = replace(HERE, pid=1, machine="h (boot, 4026532001)")
    nodes = Nodes(first)
    hosts = HostNodes(cast(Any, nodes))
    with pytest.raises(AgentExists, match="'a' of job digits belongs to another agent, process 1"):
        hosts.put(replace(first, machine="h (boot, 4026532002)"))
    assert nodes.there == first


@pytest.mark.parametrize("before", [HERE, replace(HERE, machine="")], ids=["now", "older edl"])
def test_an_agent_replaces_its_own_node(before: Host) -> None:
    nodes = Nodes(before)
    new = replace(HERE, slots=3)
    HostNodes(cast(Any, nodes)).put(new)
    assert nodes.there == new
