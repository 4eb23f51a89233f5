"""Both scripts of docs/get-started/from-ddp.md train, each with the command of that page."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import forked
import pytest
from paths import ROOT

from edl.testing.job import EDL

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = (ROOT / "docs" / "get-started" / "from-ddp.md").read_text()
BLOCKS = dict(re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))


def script(keeps: str) -> str:
    """Return the script before the diff, with lines that begin with "-", or the one after it."""
    lines = [line or " " for line in BLOCKS["diff"].splitlines()]
    return "".join(f"{line[1:]}\n" for line in lines if line[0] in (" ", keeps))


@pytest.mark.parametrize("which", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_the_script_trains(which: str, tmp_path: Path, zk_hosts: str) -> None:
    (tmp_path / "train.py").write_text(script("-" if which == "before" else "+"))
    (line,) = [each for each in BLOCKS["sh"].splitlines() if each.endswith(f"# {which}")]
    words = line.partition("#")[0].split()
    if which == "before":
        command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
    else:
        command = [EDL, *words[1:]]
        command[command.index("python")] = sys.executable
    environment = {**os.environ, "EDL_ZOOKEEPER": zk_hosts, "OMP_NUM_THREADS": "1"}
    shown = tmp_path / "output"
    process = forked.start(command, tmp_path, environment, shown)
    try:
        code = process.wait(240.0)
    finally:
        process.kill()
    output = shown.read_text()
    # PyTorch's threads may abort a process of "before" as it ends: "terminate called without ...".
    assert which == "before" or code == 0, output
    losses = [float(loss) for loss in re.findall(r"epoch \d loss (\S+)", output)]
    assert len(losses) == 5, output
    assert losses[-1] < losses[0] / 10
