"""Which processes are known to be dead, by the machine that they ran on."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

from edl.core.records import Host
from edl.launch.adoption import has_died_here
from edl.launch.machine import machine_name

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
