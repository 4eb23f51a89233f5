"""A job saves into S3, here a server of moto on this machine, and goes on from there."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import forked
import pytest
from extra_python import python_with
from paths import ROOT
from scenario import Scenario, scenario

from edl.job.run import HALTED_EXIT

pytestmark = [pytest.mark.integration, pytest.mark.long]  # unit/test_checkpoint_location.py

S3FS, MOTO = "2026.9.0", "5.2.5"
URL = "s3://runs/17"
START_S = 60.0


def s3_python() -> Path:
    """Return a Python that has s3fs beside edl; the first test that needs it installs it."""
    apart = ("python-dateutil",)  # botocore refuses the release that edl's environment has
    return python_with(f"s3fs-{S3FS}", f"s3fs=={S3FS}", beside_edl=True, other=apart)


def moto_python() -> Path:
    """Return a Python with moto's server, whose botocore is another one than that of s3fs."""
    return python_with(f"moto-{MOTO}", f"moto[s3,server]=={MOTO}")


class S3Job(Scenario):
    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.python = s3_python()
        self.environment |= {"EDL_TEMPLATE": "0", "PYTHONPATH": str(ROOT)}  # as test_lightning.py
        super().begin(np, max_np, min_np)


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [moto_python(), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                made = urllib.request.Request(f"{address}/runs", method="PUT")
                urllib.request.urlopen(made, timeout=5).close()
                break
            except OSError:
                assert time.monotonic() < deadline, "moto's server has not started"
                time.sleep(0.1)
        yield {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait(START_S)


def test_a_job_is_preempted_and_goes_on_from_s3(
    tmp_path: Path, zk_hosts: str, s3: dict[str, str]
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "then").mkdir()
    more = ("--checkpoint", URL, "--every", "1")
    with scenario(tmp_path / "first", zk_hosts, np=2, kind=S3Job, more=more, environment=s3) as job:
        job.wait_for_step(10)
        job.edl("preempt", "--within", "2m")
        assert job.end() == HALTED_EXIT, job.describe("it ended otherwise")
        assert f"is saved in {URL}; `edl run --resume` goes on" in job.output()
        environment = {**job.environment, "PYTHONPATH": str(ROOT)}
    shown = forked.by_exec(
        [s3_python(), "-m", "edl.cli.main", "checkpoint", "show", "--json", URL],
        120,
        env=environment,
        check=True,
    )
    saved = json.loads(shown.stdout)
    assert (saved["path"].startswith(URL), saved["step"] >= 10) == (True, True)
    with scenario(
        tmp_path / "then",
        zk_hosts,
        np=3,
        kind=S3Job,
        more=more,
        environment=s3,
        options=("--resume",),
    ) as job:
        reports = job.prove(workers=3)
    assert {report["rings"][0]["step"] for report in reports} == {saved["step"]}
