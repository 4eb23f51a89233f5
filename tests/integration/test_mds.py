"""Each sample of MDS shards, as mosaicml-streaming writes them, is trained once an epoch."""

from __future__ import annotations

import os
from pathlib import Path

import forked
import pytest
from mds_python import mds_python, stand_ins, write_shards
from paths import ROOT
from scenario import Scenario, scenario

from edl.testing.job import WAIT_S

pytestmark = [pytest.mark.integration, pytest.mark.long]  # unit/test_data_stream.py

REFUSED = """
import sys
from streaming import StreamingDataset
import edl.torch as edl

edl.init()
edl.DataLoader(StreamingDataset(local=sys.argv[1], batch_size=4), batch_size=4)
"""


class MdsJob(Scenario):
    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.python = mds_python()
        path = f"{ROOT}:{stand_ins(self.directory)}"
        self.environment |= {"EDL_TEMPLATE": "0", "PYTHONPATH": path}  # as test_lightning.py
        super().begin(np, max_np, min_np)


@pytest.mark.parametrize(
    ("by_shard", "num_workers"), [([], 2), (["--by-shard"], 0)], ids=["by-number", "by-shard"]
)
def test_a_join_a_leave_and_a_death(
    by_shard: list[str], num_workers: int, tmp_path: Path, zk_hosts: str
) -> None:
    more = ["--mds", str(write_shards(tmp_path, MdsJob.samples)), *by_shard]
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3, kind=MdsJob, num_workers=num_workers, more=more
    ) as job:
        job.join_leave_and_die()
        job.prove(workers=2)


def test_a_streaming_dataset_is_refused_in_a_sentence(tmp_path: Path) -> None:
    ended = forked.by_exec(
        [mds_python(), "-c", REFUSED, write_shards(tmp_path, 400)],
        WAIT_S,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{stand_ins(tmp_path)}"},
    )
    assert ended.returncode != 0
    assert "StreamingDataset.state_dict() needs num_samples and from_beginning" in ended.stderr
    assert "streaming.LocalDataset(directory)" in ended.stderr
