"""Each sample of tar archives that WebDataset reads is trained once an epoch."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest
from extra_python import webdataset_python
from paths import ROOT
from scenario import Scenario, scenario

pytestmark = [pytest.mark.integration, pytest.mark.long]  # test_stream_jobs.py

ARCHIVES = 12


class WebDatasetJob(Scenario):
    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.python = webdataset_python()
        self.environment |= {"EDL_TEMPLATE": "0", "PYTHONPATH": str(ROOT)}  # as test_lightning.py
        super().begin(np, max_np, min_np)


def write_archives(directory: Path, samples: int) -> list[str]:
    """Write archives of about the same number of samples, with two files each."""
    paths = [directory / f"numbers-{number:02}.tar" for number in range(ARCHIVES)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as archive:
            for sample in range(number, samples, ARCHIVES):
                for kind, text in (("json", f"{sample}"), ("txt", f"sample {sample}")):
                    entry = tarfile.TarInfo(f"{sample:06}.{kind}")
                    entry.size = len(text)
                    archive.addfile(entry, io.BytesIO(text.encode()))
    return [str(path) for path in paths]


def test_a_join_a_leave_and_a_death(tmp_path: Path, zk_hosts: str) -> None:
    archives = ("--archives", *write_archives(tmp_path, WebDatasetJob.samples))
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3, kind=WebDatasetJob, num_workers=2, more=archives
    ) as job:
        job.join_leave_and_die()
        job.prove(workers=2)
