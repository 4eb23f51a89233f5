"""docs/guides/fleets.md does what stands there, as it is written, on a Slurm of three nodes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from net import Net
from paths import ROOT
from slurm import Slurm
from test_first_cluster import Machine, page_blocks, page_commands, until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]  # tests/README.md, Time

PAGE = ROOT / "docs" / "guides" / "fleets.md"
NAMES = "127.0.0.1 localhost\n10.77.0.1 a\n"


def test_a_cluster_on_slurm_in_ten_commands(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("examples", "data"):
        (checkout / name).symlink_to(ROOT / name)
    (manifest,) = page_blocks(PAGE, "yaml")
    (checkout / "job.yaml").write_text(manifest)
    (zookeeper, controller), steps = page_commands(PAGE)[:2]
    assert len(steps) == 8
    submit, queue, status, listed, events, delete, again, stop = steps
    with ExitStack() as stack:
        net = stack.enter_context(Net("a", etc={"hosts": NAMES}))
        stack.callback(net.kill, "a")
        nodes = ("n1", "n2", "n3")
        slurm = Slurm(tmp_path / "slurm", nodes, enter=net.enter_network("a"))  # it needs /sys
        stack.enter_context(slurm)
        login = Machine(net, "a", tmp_path, checkout, **slurm.environment)
        login.run(zookeeper)
        with login.running(controller, "leads cluster main"):
            assert login.run(queue).count("\n") == 1, "nothing is borrowed"
            assert login.run(submit).splitlines()[-1].startswith("digits  running: ")
            until(lambda: "4/1-4" in login.run(listed), lambda: login.run(listed))
            assert login.run(queue).count("edl-main") == 2
            hosts = json.loads(login.run(f"{status} --json"))["hosts"]
            assert {one["host"] for one in hosts} < set(nodes)
            assert [one["used"] for one in hosts] == [2, 2]
            assert "slurm: asks for 2 hosts" in login.run(events)
            login.run(delete)
            until(lambda: login.run(again).count("\n") == 1, lambda: login.run(again))
        login.run(stop)
