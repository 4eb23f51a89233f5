"""Callbacks of a Keras `fit`: their memories follow the job, rank 0 writes, all stop together."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest
from paths import SCRIPTS

from edl.testing.job import Job, started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

FIT = SCRIPTS / "keras_fit.py"
START_S = 200.0  # TensorFlow takes its time to be imported
SLOW = Throttle(0.5, 40, 5.0)  # a job of about 120 steps
PATIENCE = 9  # epochs after the first, for nothing improves


def fault(tmp_path: Path, do: str, what: str, rank: int) -> tuple[Path, list[str]]:
    """Return a file, and the words for a fault that strikes once the file is there."""
    file = tmp_path / f"fault-{do}-{what}-{rank}"
    return file, ["--fault", json.dumps({"file": str(file), "do": do, "what": what, "rank": rank})]


@contextmanager
def fit(
    tmp_path: Path, zk_hosts: str, *words: str, np: int, max_np: int, options: Sequence[str] = ()
) -> Iterator[Job]:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    words = ("--out", str(out), *words)
    environment = {"EDL_BACKOFF_MAX_S": "1", "EDL_START_TIMEOUT_S": str(START_S)}
    limits: dict[str, Any] = {"np": np, "max_np": max_np, "options": options, "throttled": SLOW}
    with started(tmp_path, zk_hosts, FIT, *words, environment=environment, **limits) as job:
        yield job


def out(job: Job) -> Path:
    return job.directory / "out"


def ended(job: Job, workers: int | None = None) -> dict[str, Any]:
    """Return what all workers report alike at the end, two or more if no number is given."""
    job.hurry()
    assert job.end(200.0) == 0, job.describe("it failed")
    reports = [json.loads(path.read_text()) for path in out(job).glob("*.json")]
    story = job.describe(f"they differ: {json.dumps(reports, indent=1)}")
    assert len(reports) == workers if workers else len(reports) > 1, story
    for report in reports:
        del report["rank"]
    assert all(report == reports[0] for report in reports), story
    assert reports[0]["ended"], story
    return reports[0]


def check_files(job: Job, epochs: int) -> None:
    """Each epoch is in each file once, and the files are whole."""
    files = out(job) / "files"
    lines = (files / "log.csv").read_text().split()
    assert lines[0].startswith("epoch,learning_rate,loss,mae"), lines
    assert [line.split(",")[0] for line in lines[1:]] == [str(n) for n in range(epochs)], lines
    for epoch in range(1, epochs + 1):
        assert zipfile.ZipFile(files / f"{epoch:02d}" / "model.keras").testzip() is None
    assert (files / "best" / "b.weights.h5").stat().st_size > 0
    assert board(files / "board" / "train") == set(range(epochs))


def board(directory: Path) -> set[int]:
    """Return the epochs whose loss is in TensorBoard's files."""
    script = (
        "import sys, glob; from tensorflow.python.summary.summary_iterator import summary_iterator"
        "\nfor path in glob.glob(sys.argv[1] + '/*'):"
        "\n  for event in summary_iterator(path):"
        "\n    for v in event.summary.value:"
        "\n      if v.tag == 'epoch_loss': print(event.step)"
    )
    done = forked.python("tensorflow", ["-c", script, directory], 120.0)
    assert done.returncode == 0, done.stderr
    return {int(line) for line in done.stdout.split()}


def shown(job: Job) -> list[int]:
    """Return the epochs whose progress was shown, in order."""
    return [int(n) for n in re.findall(r"Epoch (\d+)/20", job.output())]


@pytest.mark.long  # `make test` has the memories in a job of one, and a death within fit below
def test_memories_follow_a_join_and_rank_0_writes_through_its_death(
    tmp_path: Path, zk_hosts: str
) -> None:
    """A newcomer in the midst of an epoch; rank 0 dies when its files have an epoch's end."""
    kill, words = fault(tmp_path, "kill", "end", rank=0)
    with fit(tmp_path, zk_hosts, *words, np=2, max_np=3) as job:
        job.wait(lambda now: now["epoch"] >= 1, "second epoch", START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        kill.touch()
        end = ended(job)  # the replacement may still have come
        assert end["epochs"] == list(range(PATIENCE + 1))
        assert end["wait"][:2] == [PATIENCE, PATIENCE]
        assert end["rate"] == pytest.approx(0.05 * 0.9 ** (PATIENCE + 1) * 0.5**4, rel=1e-5)
        assert end["own"][0] == PATIENCE + 1
        check_files(job, PATIENCE + 1)
        assert shown(job)[-1] == PATIENCE + 1, job.describe("no progress at the end")
        (stop,) = job.events("training_stopped")
        assert "want to stop training" in stop["reason"]


def test_all_leave_fit_where_one_wants_to_stop(tmp_path: Path, zk_hosts: str) -> None:
    """In the midst of an epoch, while another dies in the step in which they hear of it.

    The weights that are compared have the statistics of a synchronized batch normalisation.
    """
    stop, words = fault(tmp_path, "stop", "batch", rank=1)
    kill, more = fault(tmp_path, "kill", "next", rank=2)
    stop.touch()
    kill.touch()
    with fit(tmp_path, zk_hosts, *words, *more, "--synchronized", np=3, max_np=3) as job:
        end = ended(job, 2)
        assert end["epochs"] == [0]
        assert end["steps"] == 4
        assert len(end["history"]["loss"]) == 1
        (event,) = job.events("training_stopped")
        assert event["reason"] == (
            "all workers stop training after step 4: w1 wants to stop training"
        )


def test_callbacks_of_rank_0_alone_are_refused(tmp_path: Path, zk_hosts: str) -> None:
    with fit(tmp_path, zk_hosts, "--only-rank-0", np=2, max_np=2) as job:
        assert job.end(START_S) != 0
        output = job.output()
        sentence = "w1 was not given ModelCheckpoint, unlike the others; give it to all workers"
        assert f"[w1] edl: the Keras callbacks differ between workers: {sentence}" in output
        assert f"edl: job {job.name} failed: the Keras callbacks differ" in output, output
        assert "Traceback" not in output, output
        assert not list((tmp_path / "out").glob("*.json"))
        assert not list((tmp_path / "out" / "files").glob("*/*")), "it trained"


@pytest.mark.long
def test_deaths_at_the_end_of_an_epoch(tmp_path: Path, zk_hosts: str) -> None:
    """Rank 0 dies as it sends its metrics, the next among its callbacks; then one wants to stop."""
    first, words = fault(tmp_path, "kill", "metrics", rank=0)
    second, more = fault(tmp_path, "kill", "hook", rank=0)
    stop, last = fault(tmp_path, "stop", "hook", rank=1)
    first.touch()
    with fit(tmp_path, zk_hosts, *words, *more, *last, "--synchronized", np=4, max_np=4) as job:
        job.wait(lambda now: now["generation"] > 1 and now["epoch"] > 0, "a repair", START_S)
        second.touch()
        job.wait(lambda now: not second.exists() and now["epoch"] > 1, "another", START_S)
        stop.touch()
        end = ended(job)
        epochs = len(end["epochs"])
        assert end["epochs"] == list(range(epochs))
        assert end["wait"][0] == epochs - 1
        check_files(job, epochs)
        (event,) = job.events("training_stopped")
        assert re.search(r": w\d+ wants to stop training$", event["reason"])


@pytest.mark.long
def test_memories_are_in_a_checkpoint(tmp_path: Path, zk_hosts: str) -> None:
    """Resumed in the midst of an epoch, by more workers; the files go on."""
    saved = ["--checkpoint", str(tmp_path / "saved")]
    with fit(tmp_path, zk_hosts, *saved, np=1, max_np=1) as job:
        job.wait(lambda now: now["epoch"] == 1 and now["epoch_done"] > 8, "epoch 1", START_S)
        job.edl("stop")
        assert job.end() == 143, job.describe("it failed")
    with fit(tmp_path, zk_hosts, *saved, np=2, max_np=2, options=["--resume"]) as job:
        end = ended(job, 2)
        assert job.events("resumed")[0]["step"] > 24
        assert end["epochs"] == list(range(PATIENCE + 1))
        assert end["wait"][:2] == [PATIENCE, PATIENCE]
        assert end["rate"] == pytest.approx(0.05 * 0.9 ** (PATIENCE + 1) * 0.5**4, rel=1e-5)
        assert end["own"][0] == PATIENCE + 1
        check_files(job, PATIENCE + 1)
