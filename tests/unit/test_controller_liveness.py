"""Which controllers count as dead, by their ports and by their process ids."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace

from edl.cluster.controller.controller import LivenessProbe, LivenessServer
from edl.cluster.records import ControllerRecord
from edl.host.adoption import machine_name

HERE = ControllerRecord("one", "here", os.getpid(), "127.0.0.1", machine=machine_name())


def test_a_port_that_has_answered_and_does_not_any_more() -> None:
    probe = LivenessProbe()
    with LivenessServer("127.0.0.1") as server:
        one = replace(HERE, port=server.port, machine="elsewhere")
        assert probe.dead([one]) == []
        assert LivenessProbe().dead([one]) == []
    assert LivenessProbe().dead([one]) == [], "it has never answered this one"
    assert probe.dead([one]) == [one]


def test_a_process_of_this_machine_that_is_gone() -> None:
    """A controller that is started again at once knows that its predecessor is dead."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    gone = replace(HERE, pid=ended.pid, port=port)
    assert LivenessProbe().dead([gone]) == [gone]
    assert LivenessProbe().dead([replace(gone, machine="elsewhere")]) == []
    assert LivenessProbe().dead([replace(gone, machine="")]) == []
    assert LivenessProbe().dead([replace(HERE, port=port)]) == [], "this process"
