"""Jobs of Lightning's Trainer with ElasticStrategy: each sample once an epoch, whatever happens.

In `make test`: unit/test_lightning.py, the parts without Lightning.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import forked
import pytest
from extra_python import lightning_python
from paths import ROOT, SCRIPTS
from scenario import Scenario, scenario

from edl.testing.job import WAIT_S
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.long]


class LightningJob(Scenario):
    """A job of lightning_counting.py."""

    script = SCRIPTS / "lightning_counting.py"
    session_s = 10.0

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.prepare()
        super().begin(np, max_np, min_np)

    def prepare(self) -> None:
        self.python = lightning_python()
        self.environment |= {"EDL_TEMPLATE": "0", "PYTHONPATH": str(ROOT)}

    def of_rank(self, rank: int) -> str:
        now = self.wait(lambda now: rank in (m["rank"] for m in now["members"]), f"rank {rank}")
        return next(str(m["id"]) for m in now["members"] if m["rank"] == rank)


def check_metrics(reports: list[dict[str, Any]], samples: int) -> None:
    """All workers have the same metrics; each sample was validated once, and trained so often."""
    by_epoch: dict[int, list[dict[str, Any]]] = {}
    for report in reports:
        for epoch in report["epochs"]:
            by_epoch.setdefault(epoch["epoch"], []).append(epoch)
    for number, shown in by_epoch.items():
        assert {one["val_count"] for one in shown} == {number + 1.0}
        assert {one["val_mean"] for one in shown} == {(samples - 1) / 2}
        assert {one["val_seen"] for one in shown} == {float(samples)}
        assert len({one["train_loss_epoch"] for one in shown}) == 1
        assert len({one["trained"] for one in shown}) == 1
    first, *others = (report["logged"] for report in reports)
    for other in others:
        assert {step: first.get(step, value) for step, value in other.items()} == other


def test_a_join_a_leave_and_a_death(tmp_path: Path, zk_hosts: str) -> None:
    loaders = 2
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=3, kind=LightningJob, num_workers=loaders
    ) as job:
        job.join_leave_and_die()
        reports = job.prove(workers=2)
    check_metrics(reports, job.samples)


def test_the_next_rank_0_goes_on_in_the_same_folders(tmp_path: Path, zk_hosts: str) -> None:
    """Rank 0 is killed while gradients are added up, and its replacement leaves by SIGTERM."""
    more = ("--accumulate", "3", "--precision", "bf16-mixed")
    with scenario(tmp_path, zk_hosts, np=2, kind=LightningJob, samples=1440, more=more) as job:
        job.wait_for_step(8)  # it has written metrics
        first = job.of_rank(0)
        job.kill(first)
        job.wait_for_eviction()
        job.wait_for_size(2)
        second = job.of_rank(0)
        last = job.of_rank(1)
        job.process(last).terminate()
        job.wait(lambda now: last not in {m["id"] for m in now["members"]}, "leave")
        reports = job.prove()
        output = job.output()
    check_metrics(reports, job.samples)
    assert f"[{second}] Epoch" in output
    (logs,) = (job.reports_in / "logs/lightning_logs").iterdir()
    kept, until = sorted(path.name for path in logs.glob("metrics*.csv"))
    assert (kept.startswith("metrics-until-step-"), until) == (True, "metrics.csv")
    saved = sorted(path.name for path in (job.reports_in / "kept").iterdir())
    assert saved == [f"epoch={number}.ckpt" for number in range(job.epochs)]
    assert {Path(report["best"]).name for report in reports} == {saved[-1]}


def test_all_workers_die_and_the_trainer_goes_on(tmp_path: Path, zk_hosts: str) -> None:
    more = ("--checkpoint", str(tmp_path / "saved"), "--every", "0.5")
    with scenario(tmp_path, zk_hosts, np=2, kind=LightningJob, more=more) as job:
        job.wait_for_step(70)  # in the second epoch
        job.wait(lambda now: job.events("checkpoint"), "checkpoint")
        for name in job.members():
            job.kill(name)
        job.wait(lambda now: job.events("resumed"), "new workers")
        reports = job.prove()
    check_metrics(reports, job.samples)


def test_a_death_in_a_validation(tmp_path: Path, zk_hosts: str) -> None:
    """What the dead worker was to validate is missing in that validation, and in no other."""
    hold = tmp_path / "hold"
    hold.touch()
    more = ("--hold", str(hold))
    with scenario(
        tmp_path, zk_hosts, np=3, max_np=3, kind=LightningJob, samples=60, more=more
    ) as job:
        job.until(lambda: all(f"[w{n}] validates" in job.output() for n in range(3)), "validation")
        job.kill(job.of_rank(0))
        hold.unlink()
        job.wait_for_eviction()
        reports = job.prove()
    seen = {tuple(epoch["val_seen"] for epoch in report["epochs"]) for report in reports}
    assert (40.0, 60.0) in seen


def test_values_of_a_validation_batch_are_not_exchanged(tmp_path: Path, zk_hosts: str) -> None:
    more = ("--each-validation-batch",)
    with scenario(tmp_path, zk_hosts, np=2, kind=LightningJob, samples=80, more=more) as job:
        job.hurry()
        assert job.end(job.end_s) == 1
        assert "log with on_step=False, on_epoch=True, sync_dist=True" in job.output()


@pytest.mark.parametrize("words", [(), ("--part",)], ids=["whole", "part"])
def test_much_that_a_trainer_can_do(words: tuple[str, ...], tmp_path: Path, zk_hosts: str) -> None:
    """A datamodule, batch norm, a plateau, a timer, other accumulation: the workers end alike."""
    job = LightningJob(tmp_path, zk_hosts)
    job.prepare()
    job.throttle(Throttle(0.5, 40, 4.0))
    try:
        job.run(SCRIPTS / "lightning_more.py", "--out", str(tmp_path), *words, np=2, max_np=2)
        job.wait_for_step(2)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        ends = re.findall(r"ends with (.*)", job.output())
    finally:
        job.close()
    assert len(ends) == 2
    assert len({*ends}) == 1, ends
    prepared = (tmp_path / "prepared").read_text().split()
    assert prepared[1::2] == ["begins", "ends"] * 4  # fit and validate
    assert prepared[0::4] == prepared[2::4], "one after another"
    epochs = "{0: 6, 1: 6, 2: 6, 3: 6}, 8" if words else "{0: 12, 1: 12, 2: 12, 3: 12}, 4"
    assert ends[0].endswith(epochs.replace("}, ", "} ")), ends[0]


def check_schedule(job: LightningJob) -> None:
    """Each worker's LR schedule was where Lightning's would be: 4 epochs of 20 steps in all."""
    job.hurry()
    assert job.end() == 0, job.describe("it failed")
    ends = [json.loads(line) for line in re.findall(r"made (.*)", job.output())]
    for end in ends:
        found = [steps for _, _, steps in end["updates"]]
        assert found == [20 * epoch + batch for epoch, batch, _ in end["updates"]]
        assert found == [*range(found[0], 80)]
        assert end["step"] == 80
    assert ends


def test_a_schedule_ends_with_limited_epochs_though_the_job_grows(
    tmp_path: Path, zk_hosts: str
) -> None:
    job = LightningJob(tmp_path, zk_hosts)
    job.prepare()
    job.throttle(Throttle(0.3, 15, 3.0))
    try:
        job.run(SCRIPTS / "lightning_limited.py", np=1, max_np=2)
        job.wait_for_step(2)
        job.scale(2)
        job.wait_for_size(2)
        check_schedule(job)
    finally:
        job.close()


def test_a_limited_epoch_goes_on_where_all_workers_died(tmp_path: Path, zk_hosts: str) -> None:
    """Its limit and its schedule count the batches that were trained before the checkpoint."""
    job = LightningJob(tmp_path, zk_hosts)
    job.prepare()
    job.environment |= {"EDL_BACKOFF_MAX_S": "1", "EDL_MAX_RESTARTS": "1000"}
    job.throttle(Throttle(0.3, 30, 3.0))
    try:
        words = "--checkpoint", str(tmp_path / "saved")
        job.run(SCRIPTS / "lightning_limited.py", *words, np=1, max_np=2)
        job.wait_for_step(27)  # in the second epoch
        job.wait(lambda now: len(job.events("checkpoint")) > 1, "checkpoint")
        for name in job.members():
            job.kill(name)
        job.wait(lambda now: job.events("resumed"), "a new worker")
        job.scale(2)
        job.wait_for_size(2)
        check_schedule(job)
        assert job.events("resumed")[0]["step"] % 20
    finally:
        job.close()


REFUSED = {
    "nothing": "trained 5 steps",
    "no_init": "call edl.init() first",
    "manual_optimization": "the module must leave optimization to Lightning",
    "averaged_weights": "the callback StochasticWeightAveraging does not work",
    "own_scheduler_step": "lr_scheduler_step of the module would not be called",
    "own_scheduler_step_by_updates": "trained 4 steps",
    "rate_finder": "the callback LearningRateFinder does not work",
    "reloaded": "leave out reload_dataloaders_every_n_epochs=1",
    "drop_last": "the training loader has drop_last=True",
    "sampler": "the training loader has a RandomSampler",
    "two_loaders": "the script has two training loaders",
    "no_loader": "the training data come from a Tensor",
    "unnumbered": "have no numbers",
    "second_fit": "a job trains once",
    "stopped_before_an_update": "the training was stopped before its first update",
    "stopped_between_two_updates": "trained 1 steps",
    "one_more_epoch": "the job ends after 1 epochs",
    "inside_an_epoch": "the checkpoint of ckpt_path was saved after batch 2 of an epoch",
    "prediction": "trained 5 steps",
}


def test_what_does_not_work_is_refused_in_a_sentence(tmp_path: Path) -> None:
    said = dict(line.split(": ", 1) for line in run_alone(tmp_path, "lightning_refused.py"))
    assert said.keys() == REFUSED.keys()
    assert {name: why for name, why in said.items() if REFUSED[name] not in why} == {}


def test_a_job_of_one_makes_the_updates_that_lightning_makes(tmp_path: Path) -> None:
    """And LR schedulers step alike, and hooks read the same numbers and rates of the trainer.

    The last group of an epoch may be smaller.
    """
    lines = [json.loads(line) for line in run_alone(tmp_path, "lightning_alike.py")]
    assert {name: edls for name, _, edls in lines} == {name: alone for name, alone, _ in lines}
    assert len(lines) == 12


def test_without_a_launcher_it_stops_early_and_resumes(tmp_path: Path) -> None:
    """Alone: EarlyStopping after 2 epochs of 11 steps; then 2 more from Lightning's checkpoint.

    The last step of an epoch has fewer samples, and counts as one in a schedule, as without edl.
    """
    outs = [tmp_path / "first", tmp_path / "second"]
    for out in outs:
        out.mkdir()
    first = run_counting(outs[0], "--epochs", "9", "--stop-after", "2")
    assert (first["counts"], first["epoch"]) == ({"2": 42}, 2)
    assert first["rates"] == pytest.approx([1 - step / 99 for step in range(1, 23)])
    second = run_counting(outs[1], "--epochs", "4", "--ckpt", first["best"])
    assert (second["counts"], second["epoch"], second["global_step"]) == ({"4": 42}, 4, 44)
    check_metrics([second], 42)


def test_the_example(tmp_path: Path) -> None:
    example = ROOT / "examples" / "lightning_digits.py"
    (last,) = run_alone(tmp_path, example, "--epochs", "2")[-1:]
    assert last.startswith("accuracy 0.")


def run_counting(out: Path, *words: str) -> dict[str, Any]:
    run_alone(out, LightningJob.script, "--out", str(out), "--samples", "42", *words)
    (path,) = out.glob("*.json")
    report: dict[str, Any] = json.loads(path.read_text())
    assert report["wrong"] == []
    return report


def run_alone(directory: Path, script: str | Path, *words: str) -> list[str]:
    """Run a script without a launcher, and return the lines of its standard output."""
    ended = forked.by_exec(
        [lightning_python(), SCRIPTS / script, *words],
        WAIT_S,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()
