"""Hugging Face's Trainer in an elastic job: each sample once an epoch, through joins and kills."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import forked
import pytest
from extra_python import huggingface_python
from paths import ROOT, SCRIPTS
from scenario import Scenario, scenario

from edl.job.run import HALTED_EXIT
from edl.testing.job import WAIT_S, Job
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def python() -> Path:
    return huggingface_python()


class TrainerJob(Scenario):
    """A job of the counting model in Hugging Face's Trainer."""

    script = SCRIPTS / "hf_trainer.py"

    def words(self) -> list[str]:
        return [*super().words(), "--output", str(self.directory / "trainer")]


def settings(python: Path, **more: Any) -> dict[str, Any]:
    environment = {
        "PYTHONPATH": str(ROOT),
        "EDL_TEMPLATE": "0",  # the imports are those of another Python
        "EDL_START_TIMEOUT_S": "600",  # these take 6 s of a quiet processor
    }
    # The import of TensorBoard, with TensorFlow's here, keeps a worker's other threads waiting.
    return {
        "kind": TrainerJob,
        "session_s": 15.0,
        "python": python,
        "environment": environment,
        **more,
    }


def counted(job: Scenario, directory: Path) -> list[dict[str, Any]]:
    """Let a job end, perhaps inside an epoch; return its reports, in which no step was wrong."""
    job.hurry()
    assert job.end(job.end_s) == 0, job.describe("it failed")
    reports = [json.loads(path.read_text()) for path in (directory / "reports").glob("*.json")]
    assert reports, job.output()
    for report in reports:
        assert report["wrong"] == []
        few, *more = sorted(map(int, report["counts"]))
        assert more in ([], [few + 1]), report["counts"]
    assert len({report["w_sha256"] for report in reports}) == 1
    return reports


@pytest.mark.parametrize(
    ("accumulate", "num_workers"), [(1, 0), (3, 2)], ids=["plain", "accumulated-loaders"]
)
def test_a_join_a_leave_and_a_death(
    accumulate: int, num_workers: int, python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    throttled = Throttle(0.3, 40 // accumulate, 3.0 / accumulate)  # of each batch of a step
    more = ["--accumulate", str(accumulate)]
    how = settings(python, num_workers=num_workers, throttled=throttled, more=more)
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **how) as job:
        job.join_leave_and_die()
        reports = job.prove(workers=2)
        shown = job.output()
    steps = {report["steps"] for report in reports}
    assert {report["global_step"] for report in reports} == steps
    assert {report["epoch"] for report in reports} == {float(job.epochs)}
    assert len({str(report["logged"]) for report in reports}) == 1, "the logs are the job's"
    checkpoints = sorted(path.name for path in (tmp_path / "trainer").glob("checkpoint-*"))
    assert f"checkpoint-{max(steps)}" in checkpoints, checkpoints
    assert len(checkpoints) == 2, checkpoints
    assert "Traceback" not in shown


def test_rank_0_dies_and_the_job_ends_after_a_number_of_steps(
    python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """The next rank 0 saves, logs to TensorBoard and shows progress; steps are the job's."""
    how = settings(python, more=["--max-steps", "300"])
    with scenario(tmp_path, zk_hosts, np=2, **how) as job:
        job.wait_for_size(2)
        job.wait_for_step(22)
        first = next(each for each in job.members().values() if each["rank"] == 0)
        os.kill(first["pid"], signal.SIGKILL)
        job.wait_for_eviction()
        job.wait_for_size(2)
        reports = counted(job, tmp_path)
        shown = job.output()
    assert len(reports) == 2, shown
    assert {report["global_step"] for report in reports} == {300}
    assert {report["steps"] for report in reports} == {300}
    assert {path.name for path in (tmp_path / "trainer").glob("checkpoint-*")} == {
        "checkpoint-280",
        "checkpoint-300",
    }
    writers = list((tmp_path / "trainer/runs").rglob("events.out.tfevents.*"))
    assert len(writers) == 2, "one of each rank 0"
    assert "300/300" in shown
    assert sum(report["is_zero"] for report in reports) == 1


def test_a_stream_through_a_join_and_a_death(python: Path, tmp_path: Path, zk_hosts: str) -> None:
    """An IterableDataset of the library datasets, shuffled in a buffer, in the Trainer."""
    how = settings(python, more=["--streams", "--max-steps", "300"])
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **how) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.kill(job.plain())
        job.wait_for_eviction()
        job.wait_for_size(3)
        reports = counted(job, tmp_path)
    assert {report["global_step"] for report in reports} == {300}


def test_all_die_and_the_job_goes_on_from_its_checkpoint(
    python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """With edl.checkpoint, the Trainer's step, logs and place in the data are those of before."""
    more = ["--checkpoint", str(tmp_path / "checkpoints"), "--every", "0.2"]
    with scenario(tmp_path, zk_hosts, np=2, **settings(python, more=more)) as job:
        job.wait_for_step(22)
        for worker in job.members().values():
            os.kill(worker["pid"], signal.SIGKILL)
        job.until(lambda: job.events("resumed"), "resumed job")
        reports = job.prove(workers=2)
    for report in reports:
        assert report["global_step"] == report["steps"]
        assert len(report["logged"]) == report["steps"] // 5


def test_a_resumed_job_goes_on_to_a_larger_number_of_steps(
    python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """It was preempted before its 60 steps were made; the script asks for 90 when it goes on."""
    saved = tmp_path / "checkpoints"
    saves = ["--checkpoint", str(saved), "--every", "0.2", "--max-steps"]
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    with scenario(first, zk_hosts, np=2, **settings(python, more=[*saves, "60"])) as job:
        job.wait_for_step(22)
        job.edl("preempt", "--within", "2m")
        assert job.end(job.end_s) == HALTED_EXIT, job.describe("it failed")
    how = settings(python, more=[*saves, "90"], options=["--resume"])
    with scenario(second, zk_hosts, np=2, **how) as job:
        reports = counted(job, second)
    assert all(22 <= report["rings"][0]["step"] < 60 for report in reports)
    assert {report["global_step"] for report in reports} == {90}
    assert {len(report["logged"]) for report in reports} == {90 // 5}


def test_all_workers_stop_early_together(python: Path, tmp_path: Path, zk_hosts: str) -> None:
    """A newcomer knows how often the metric was not better, and loads the best model, too."""
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3,
        **settings(python, epochs=20, more=["--stops-early"]),
    ) as job:  # fmt: skip
        job.wait(lambda now: now["epoch"] == 1, "second epoch")
        job.scale(3)
        job.wait_for_size(3)
        assert job.status()["epoch"] < 3
        job.hurry()
        assert job.end(job.end_s) == 0, job.describe("it failed")
    reports = [json.loads(path.read_text()) for path in (tmp_path / "reports").glob("*.json")]
    assert len(reports) == 3
    assert [report["wrong"] for report in reports] == [[], [], []]
    assert {report["epoch"] for report in reports} == {3.0}
    assert len({report["best"] for report in reports}) == 1
    for report in reports:
        assert report["counts"] == {"1": 480}, "the best model is that after the first epoch"


@pytest.mark.parametrize(
    ("accumulate", "num_workers"), [(1, 2), (3, 0)], ids=["loaders", "accumulated"]
)
def test_accelerate_through_a_join_a_leave_and_a_death(
    accumulate: int, num_workers: int, python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    how = settings(
        python,
        script=SCRIPTS / "hf_accelerate.py",
        num_workers=num_workers,
        more=["--accumulate", str(accumulate)],
    )
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **how) as job:
        job.join_leave_and_die()
        reports = job.prove(workers=2)
    for report in reports:
        made, total = report["schedule"]
        assert 0 <= total - made <= 4 * accumulate, "the schedule ends with the data"
    assert (tmp_path / "trainer" / "model.safetensors").exists()


def test_a_schedule_of_accelerate_counts_the_updates_that_end_the_training(
    python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """Three workers, and a newcomer among them: each update is one step."""
    how = settings(python, script=SCRIPTS / "hf_accelerate.py", more=["--max-steps", "50"])
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **how) as job:
        job.wait_for_step(2)
        job.scale(3)
        job.wait_for_size(3)
        reports = counted(job, tmp_path)
    assert {report["steps"] for report in reports} == {50}
    assert [report["schedule"] for report in reports] == [[50, 50]] * 3


def language_model(
    directory: Path,
    python: Path,
    zookeeper: str,
    np: int,
    *words: str,
    then: Callable[[Job], None] = Job.hurry,
) -> list[dict[str, Any]]:
    """Train with ``np`` workers, or (0) without edl; ``then`` is done while steps are slow."""
    directory.mkdir()
    script = SCRIPTS / "hf_language_model.py"
    command = ["--out", str(directory), "--output", str(directory / "trainer"), *words]
    how = settings(python)
    if np == 0:
        subprocess.run([python, script, *command, "--plain"], check=True, timeout=WAIT_S)
    else:
        job = Job(directory, zookeeper)
        job.python = python
        job.environment |= how["environment"]
        with closing(job):
            job.throttle(Throttle(0.5, 100, 4.0))
            job.run(script, *command, np=np, max_np=np)
            then(job)
            assert job.end() == 0, job.describe("it failed")
            assert "no mean over" not in job.output(), job.output()
    return [json.loads(path.read_text()) for path in sorted(directory.glob("*.json"))]


def test_each_label_counts_alike_as_in_the_trainer_alone(
    python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """Masked labels, accumulated batches, clipping, warm-up: the weights are those of the Trainer.

    Two workers have unlike numbers of labels, and so have the accumulated batches.
    """
    (alone,) = language_model(tmp_path / "0", python, zk_hosts, 0, "--batch-size", "12")
    for np, size, accumulate in ((1, 6, 2), (2, 6, 1), (2, 3, 2)):
        words = ["--batch-size", str(size), "--accumulate", str(accumulate)]
        where = tmp_path / f"{np}-{size}"
        for report in language_model(where, python, zk_hosts, np, *words):
            for own, expected in zip(report["weights"], alone["weights"], strict=True):
                assert own == pytest.approx(expected, rel=1e-5, abs=1e-6)
            for own, expected in zip(report["logs"], alone["logs"], strict=True):
                assert own == pytest.approx(expected, rel=1e-4)


def test_a_death_while_labels_are_counted(python: Path, tmp_path: Path, zk_hosts: str) -> None:
    """In bfloat16: the survivor's gradient is the mean over its own labels; all stay equal."""

    def disturb(job: Job) -> None:
        job.wait_for_step(3)
        job.kill(job.plain())
        job.wait_for_eviction()
        job.wait_for_size(2)
        job.hurry()

    words = ["--batch-size", "2", "--accumulate", "3", "--epochs", "40", "--bf16"]
    one, two = language_model(tmp_path / "job", python, zk_hosts, 2, *words, then=disturb)
    assert one["weights"] == two["weights"]
    assert one["logs"] == two["logs"]
    assert one["logs"][-1]["loss"] < one["logs"][0]["loss"] / 2


@pytest.mark.parametrize("dies_at", [-1, 30], ids=["all-live", "one-dies"])
def test_the_workers_share_an_evaluation(
    dies_at: int, python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """Each sample is in the metrics once, and is evaluated once by the workers that live.

    The script checks what ``compute_metrics`` gets: 10 batches of 37 samples, in their order.
    """
    job = Job(tmp_path, zk_hosts)
    job.python = python
    job.environment |= settings(python)["environment"]
    words = ["--out", str(tmp_path), "--dies-at", str(dies_at)]
    with closing(job):
        job.run(SCRIPTS / "hf_evaluation.py", *words, np=2, max_np=2)
        assert job.end() == 0, job.describe("it failed")
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("report-*.json")]
    assert (tmp_path / "died").exists() == (dies_at >= 0)
    for report in reports:
        assert report["samples"] == [37, 37, 37]
        assert report["losses"] == reports[0]["losses"]
        assert report["after"] == 10, "after the training each evaluates all of the data"
        assert report["losses"][-1] == pytest.approx(report["after_loss"])
    if dies_at < 0:
        first, second = reports
        assert first["batches"] == second["batches"] == 15
        assert sorted(first["evaluated"] + second["evaluated"]) == sorted(3 * list(range(37)))


def test_accelerate_orders_the_workers_and_divides_what_they_evaluate(
    python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    job = Job(tmp_path, zk_hosts)
    job.python = python
    job.environment |= settings(python)["environment"]
    with closing(job):
        job.run(SCRIPTS / "hf_parts.py", str(tmp_path), np=2, max_np=2)
        assert job.end() == 0, job.describe("it failed")
        lines = re.findall(r"^\[w\d\] (\[.*)$", job.output(), re.MULTILINE)
    first, second = sorted(json.loads(line) for line in lines)
    padded = {"a": [0, 1], "b": [[0, 1], [2, 3]]}, {"a": [2, 2], "b": [[4, 5], [4, 5]]}
    assert first == [0, [False, False], [[0, 1, 2], [1, 2], padded[0], [0, 1], [7]]]
    assert second == [1, [True, True], [[3, 4], [3, 3], padded[1], [2, 3], []]]


SHIPPED = {
    "test_ops": "testing op_checker",
    "test_sync": "edl: iterate the loader inside `for epoch in loader.epochs(n):`",
    "test_script": "edl: iterate the loader inside `for epoch in loader.epochs(n):`",
    # num_processes is 1, as docs/guides/huggingface.md says.
    "test_distributed_data_loop": "AssertionError: this script expects that two GPUs are available",
}


@pytest.mark.parametrize("script", SHIPPED)
def test_scripts_that_accelerate_ships_pass_or_get_a_sentence(
    script: str, python: Path, tmp_path: Path, zk_hosts: str
) -> None:
    """Not here: test_metrics, which downloads a data set."""
    job = Job(tmp_path, zk_hosts)
    job.python = python
    job.environment |= settings(python)["environment"]
    with closing(job):
        job.run(SCRIPTS / "hf_shipped.py", script, np=2, max_np=2)
        assert job.end() == (0 if script == "test_ops" else 1), job.describe("it failed")
        assert SHIPPED[script] in job.output()


def test_the_example_learns(python: Path, tmp_path: Path) -> None:
    example = ROOT / "examples" / "huggingface_trainer.py"
    ended = forked.by_exec(
        [python, example, "--output", str(tmp_path)],
        WAIT_S,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    loss = float(ended.stdout.splitlines()[-1].split()[1])
    assert loss < 0.1, ended.stdout
    assert list(tmp_path.glob("checkpoint-*")), "it saves checkpoints"
