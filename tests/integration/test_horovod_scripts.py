"""Scripts written for Horovod Elastic, with one import changed: nothing lost, nothing redone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import forked
import pytest
from paths import ROOT, SCRIPTS
from scenario import Scenario, scenario
from wrong import answers_of, assert_a_sentence

from edl.testing import throttle
from edl.testing.job import Job, Status, started
from edl.testing.throttle import Throttle
from edl.text import verb, workers_train

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SAMPLES, BATCH = 900, 6  # any mixture of steps of 1, 2 and 3 workers leaves what 1, 2 and 3 divide


class HorovodScenario(Scenario):
    """The counting model as a script for Horovod."""

    script = SCRIPTS / "hvd_counting.py"
    samples, batch_size, epochs = SAMPLES, BATCH, 3


def sizes(report: dict[str, Any]) -> list[int]:
    return [size for size, _ in groupby(ring["size"] for ring in report["rings"])]


@pytest.mark.long  # `make test` has the two below: deaths between commits, and resizes
def test_2_3_2_and_a_kill(tmp_path: Path, zk_hosts: str) -> None:
    """Each sample counts once an epoch, though Horovod's own sampler loses some on a scale-in."""
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=HorovodScenario, epochs=8) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.wait_for_progress()
        job.scale(2)
        job.wait_for_size(2)
        job.wait_for_progress()
        job.scale(3)
        job.wait_for_size(3)
        victim = job.plain()
        job.process(victim).kill()
        job.wait(lambda now: victim not in {m["id"] for m in now["members"]}, "repair")
        job.wait_for_size(3)  # its replacement
        reports = job.prove(workers=3)
        assert len(job.events("generation")) >= 6
    oldest = max(reports, key=lambda report: len(report["rings"]))
    assert sizes(oldest) == [2, 3, 2, 3, 2, 3]
    assert oldest["resets"] == [3, 2, 3, 2, 3]


@pytest.mark.long  # one newcomer learns it in `make test`
def test_newcomers_that_join_together_learn_the_size_from_the_callbacks(
    tmp_path: Path, zk_hosts: str
) -> None:
    """Each of them had guessed that it joins alone."""
    together = tmp_path / "together"  # none is ready before both are known
    together.touch()
    more = ["--together", str(together)]
    with scenario(tmp_path, zk_hosts, np=1, max_np=3, kind=HorovodScenario, more=more) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait(lambda now: len(now["members"]) == 3, "both newcomers")
        together.unlink()
        job.wait_for_size(3)
        reports = job.prove(workers=3)
    assert [report["resets"][-1] for report in reports] == [3, 3, 3]


def test_a_death_at_each_place(tmp_path: Path, zk_hosts: str) -> None:
    """In a step, just before a commit, before the epoch's commit, after the last one of all."""
    long = {"samples": 960}  # on a very busy machine two replacements take their time to come up
    with scenario(tmp_path, zk_hosts, np=3, kind=HorovodScenario, **long) as job:
        job.wait_for_size(3)
        for place in ("step", "commit"):
            job.wait_for_progress()
            before = len(job.events("generation"))
            die(job, 1, place)
            # The repair, and then the join of its replacement, which may come right after it.
            job.until(lambda before=before: len(job.events("generation")) >= before + 2, "join")
            job.wait_for_size(3)
        last = [order(job, 1, "epoch"), order(job, 0, "end")]
        reports = job.prove()
        assert not any(asked.exists() for asked in last)
    assert reports  # at least of one that has not died; replacements may come too late


def die(job: Scenario, slot: int, place: str) -> None:
    """Let the worker of ``slot`` kill itself at ``place``, and wait for it."""
    asked = order(job, slot, place)
    job.until(lambda: not asked.exists(), f"death at {place}")


def order(job: Scenario, slot: int, place: str) -> Path:
    asked = job.reports_in / f"die-{slot}-{place}"
    asked.touch()
    return asked


@pytest.mark.long  # tests/README.md, Time
def test_what_is_trained_since_the_last_commit(tmp_path: Path, zk_hosts: str) -> None:
    """Commits at the ends of epochs only: a resize redoes nothing, a crash redoes the epoch."""
    more = ["--check-only"]
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=HorovodScenario, more=more) as job:
        ring_of(job, 2)
        job.scale(3)
        ring_of(job, 3)
        job.scale(2)
        ring_of(job, 2)
        os.kill(job.members(job.leader())[job.leader()]["pid"], signal.SIGKILL)
        job.wait_for_eviction()
        reports = job.prove()  # its replacement may come too late
    oldest = max(reports, key=lambda report: len(report["rings"]))
    assert sizes(oldest)[:3] == [2, 3, 2]


def ring_of(job: Scenario, size: int) -> None:
    """Wait for a ring of ``size`` in which all are; no step is reported before the next commit."""
    all_train = f"{workers_train(size)}; {size} {verb(size)} wanted"
    job.wait(lambda now: now["reason"] == all_train, f"ring of {size} workers")


@pytest.mark.long  # `make test` runs it alone
def test_the_torch_example(tmp_path: Path, zk_hosts: str) -> None:
    words = [throttle.SCRIPT, str(ROOT / "examples" / "horovod" / "torch_elastic.py")]
    with started(tmp_path, zk_hosts, *words, np=2, max_np=3, throttled=Throttle(0.1)) as job:
        job.wait_for_size(2)
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        learned(job.output(), workers=3)


def learned(output: str, workers: int | None = None) -> None:
    """All workers (None: any number) end with the same weights, which know the digits."""
    results = re.findall(r"rank \d: accuracy (0\.\d+) weights (\w{64})", output)
    assert workers in (None, len(results)), output
    assert len(set(results)) == 1, output
    assert float(results[0][0]) >= 0.9


ADASUM = """
import torch
import edl.torch as hvd

hvd.init()
model = torch.nn.Linear(1, 1)

@hvd.elastic.run
def train(state):
    hvd.allreduce(torch.ones(2), op=hvd.Adasum)

train(hvd.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1)))
"""


@pytest.mark.long
def test_what_horovod_refuses_is_not_tried_again(tmp_path: Path, zk_hosts: str) -> None:
    script = tmp_path / "adasum.py"
    script.write_text(ADASUM)
    with started(tmp_path, zk_hosts, script, np=2, max_np=2) as job:
        assert job.end() == 1
        assert "op=Adasum is not there: Adasum needs a ring of constant size" in job.output()
        assert len(job.events("generation")) == 1


def test_the_torch_example_alone() -> None:
    alone(ROOT / "examples" / "horovod" / "torch_elastic.py")


def alone(script: Path) -> None:
    learned(run_alone(script, "--epochs", "4").stdout, workers=1)


def run_alone(script: Path, *options: str) -> subprocess.CompletedProcess[str]:
    framework = "tensorflow" if "import tensorflow" in script.read_text() else "torch"
    done = forked.python(framework, [script, *options], 300.0)
    assert done.returncode == 0, done.stderr
    return done


SYNTHETIC = [
    ROOT / "examples" / "horovod" / f"{framework}_synthetic_elastic.py"
    for framework in ("torch", "tensorflow")
]


@pytest.mark.long
@pytest.mark.parametrize("script", SYNTHETIC, ids=lambda script: script.stem)
def test_the_synthetic_examples(script: Path, tmp_path: Path, zk_hosts: str) -> None:
    """Their rounds go on in each ring; such a benchmark knows no end that could be waited for."""
    with started(tmp_path, zk_hosts, script, "--rounds", "1000000", np=2, max_np=3) as job:
        for size in (2, 3, 2):
            job.wait_for_size(size, 180.0)
            start = len(job.output())
            trained = partial(round_in, job, start, size)
            job.wait(trained, f"round of {size} workers")
            job.scale(5 - size)
        job.edl("stop")
        assert job.end() == 143, job.describe("it was not stopped")
        rounds = [int(n) for n in re.findall(r"round (\d+): ", job.output())]
    assert rounds == list(range(len(rounds)))


def round_in(job: Job, start: int, size: int, now: Status) -> bool:
    """Whether the output since ``start`` has a whole round of so many workers."""
    return f"with {size} workers" in job.output()[start:]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(SYNTHETIC[0], id="torch", marks=pytest.mark.long),
        pytest.param(SYNTHETIC[1], id="tensorflow", marks=pytest.mark.long),
    ],
)
def test_the_synthetic_examples_alone(script: Path) -> None:
    done = run_alone(script, "--fp16-allreduce")
    assert "10 rounds: " in done.stdout


FUNCTION = """
def train(state):
    return 7
"""
WRONG = {  # by their code: a part of the sentence
    FUNCTION
    + "import horovod.torch as h\nhvd.elastic.run(train)(h.elastic.TorchState(model, sgd))": (
        "take elastic.TorchState of edl, not of horovod"
    ),
    FUNCTION
    + """
class Mine(hvd.elastic.TorchState):
    def sync(self): pass
hvd.elastic.run(train)(Mine(model, sgd))
""": "Mine.sync() would not be called: give what follows the job to the constructor",
    FUNCTION
    + """
state = hvd.elastic.TorchState(model, sgd)
assert hvd.elastic.run(train)(state) == 7
hvd.elastic.run(train)(state)
""": "do all of the training in one",
    FUNCTION
    + "hvd.DataLoader([1, 2])\nhvd.elastic.run(train)(hvd.elastic.TorchState(model, sgd))": (
        "an edl data loader and a Horovod elastic state"
    ),
    FUNCTION
    + "hvd.Optimizer(sgd, model)\nhvd.elastic.run(train)(hvd.elastic.TorchState(model, sgd))": (
        "an edl.Optimizer and an elastic state"
    ),
    FUNCTION
    + """
import tempfile
hvd.checkpoint(tempfile.mkdtemp())
hvd.elastic.run(train)(hvd.elastic.TorchState(model, sgd))
""": "a script with an elastic state keeps its own checkpoints",
    FUNCTION
    + "hvd.track(model=model)\nhvd.elastic.run(train)(hvd.elastic.TorchState(optimizer=sgd))": (
        "give it to the state: elastic.TorchState(..., model=...)"
    ),
    """
def train(state):
    hvd.track(model=model)
hvd.elastic.run(train)(hvd.elastic.TorchState(optimizer=sgd))
""": "edl.track(model=...) does nothing beside an elastic state",
    "hvd.DistributedOptimizer(sgd, model.named_parameters(), op=hvd.Adasum)": (
        "op=Adasum is not there: Adasum needs a ring of constant size"
    ),
    "hvd.add_process_set([0])": (
        "edl.torch has no add_process_set: process sets need a ring of constant size"
    ),
    "hvd.init(process_sets=[])": "edl has no setting named process_sets",
    """
state = hvd.elastic.TorchState(model, sgd)
state.model = torch.nn.Linear(5, 5)
state.restore()
""": "the state.model of this worker is not like the job's",
}


def test_wrong_uses_get_a_sentence() -> None:
    # Each process that makes an optimizer would import PyTorch's compiler: 1 s of CPU.
    imports = "import torch\nimport torch._dynamo\nimport edl.torch as hvd"
    setup = (
        "hvd.init()\nmodel = torch.nn.Linear(2, 1)\n"
        "sgd = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    answers = answers_of({code: code for code in WRONG}, imports, setup)
    for code, sentence in WRONG.items():
        assert_a_sentence(answers[code], sentence)
