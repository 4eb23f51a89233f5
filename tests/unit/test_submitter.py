"""The file that names the agent of `edl run` to commands on its host."""

from __future__ import annotations

import os
from pathlib import Path

from edl.host.agent import submitters, written_down
from edl.host.workers import log_directory


def test_an_agent_that_ends_leaves_the_record_of_its_successor(tmp_path: Path) -> None:
    """Another run of the job may begin before the agent of the last one has ended."""
    former = written_down(log_directory(tmp_path, "digits", fresh=True), os.getppid())
    with former:
        assert submitters(tmp_path, "digits") == {"digits": os.getppid()}
        newest = written_down(log_directory(tmp_path, "digits", fresh=True), os.getpid())
        newest.__enter__()
    assert submitters(tmp_path, None) == {"digits": os.getpid()}
    newest.__exit__(None, None, None)
    assert submitters(tmp_path, None) == {}
