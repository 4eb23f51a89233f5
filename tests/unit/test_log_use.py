"""Which logs of old jobs are removed when another job starts: none of a job that runs."""

from __future__ import annotations

import os
from pathlib import Path

from edl.host.adoption import MARK_EACH_S, identity, last_use_s
from edl.host.agent import written_down
from edl.host.workers import Workers, log_directory


def test_the_logs_of_a_job_that_runs_are_kept(tmp_path: Path) -> None:
    """It may have printed nothing for long, while its user started many others."""
    names = ("agent", "worker", "ended")
    agent, worker, ended = (log_directory(tmp_path, name, fresh=True) for name in names)
    (worker / "a-0.process").write_text(f"{identity(os.getpid())}\n")
    (ended / "a-0.process").write_text(f"{os.getpid()} since 1\n")
    with written_down(agent, os.getpid()):
        log_directory(tmp_path, "new", fresh=True, kept_jobs=0, kept_s=-1.0)
    assert (agent.exists(), worker.exists(), ended.exists()) == (True, True, False)


def test_the_logs_of_a_job_that_runs_on_another_host_are_kept(tmp_path: Path) -> None:
    """As on a home directory that machines share: its launcher marks the directory now and then."""
    jobs = {name: log_directory(tmp_path, name, fresh=True) for name in ("old", "runs")}
    for logs in jobs.values():
        (logs / "a-0.log").touch()
        for path in (logs / "a-0.log", logs, logs.parent):
            os.utime(path, (1000.0, 1000.0))
    workers = Workers(["true"], tmp_path, {}, jobs["runs"])
    workers.keep_logs(5.0)
    log_directory(tmp_path, "new", fresh=True, kept_jobs=0)
    assert (jobs["old"].exists(), jobs["runs"].exists()) == (False, True)
    os.utime(jobs["runs"], (1000.0, 1000.0))
    workers.keep_logs(5.0 + MARK_EACH_S - 1.0)
    assert last_use_s(jobs["runs"]) == 1000.0
    workers.keep_logs(5.0 + MARK_EACH_S)
    assert last_use_s(jobs["runs"]) > 1000.0
