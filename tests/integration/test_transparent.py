"""An unchanged script for plain Horovod trains the same in any number of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from horovodrun import HOROVODRUN, WORKER, HorovodrunScenario
from logical_runs import preempted
from paths import SCRIPTS
from scenario import scenario

from edl.testing import throttle
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = pytest.mark.integration

PLAIN = SCRIPTS / "plain_horovod.py"
OPTIONS = ("--transparent", "--logical", "4")
SLOW = Throttle(0.1, 10, 3.0)  # in each pass of the loop, of which a worker has several in a step
UNUSED = """
import json, sys, torch
print(json.dumps(torch.load(sys.argv[1])["4.unused.weight"].tolist()))
"""
STEPS = 7  # in an epoch: 110 samples, 4 for each of four ranks
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def train(out: Path, *words: str) -> list[str]:
    out.mkdir(exist_ok=True)
    return [str(PLAIN), "--out", str(out), *words]


def alone(out: Path, *words: str, ranks: int = 4, limit_s: float = 240.0) -> dict[int, str]:
    """Return the digests by epoch of one process without a launcher, which nothing disturbs."""
    run = "import runpy; runpy.run_module('edl.transparent', run_name='__main__')"
    environment = os.environ | ENVIRONMENT | {"EDL_LOGICAL": str(ranks)}
    arguments = ["-c", run, *train(out, *words)]
    done = forked.python("torch", arguments, limit_s, env=environment, cwd=out)
    assert done.returncode == 0, done.stderr
    return digests(out)


def lines(out: Path) -> list[list[str]]:
    return [line.split() for line in (out / "epochs").read_text().splitlines()]


def digests(out: Path) -> dict[int, str]:
    """Return the digest after each epoch; an epoch that was written twice has the same."""
    found: dict[int, str] = {}
    for epoch, digest, *_ in lines(out):
        assert found.setdefault(int(epoch), digest) == digest
    return found


def test_a_kill_and_a_join_change_no_bit(tmp_path: Path, zk_hosts: str) -> None:
    """A replacement begins in a later epoch, and two processes share four ranks, then three."""
    expected = alone(tmp_path / "alone")
    script = [throttle.SCRIPT, *train(tmp_path / "out")]
    how: dict[str, Any] = {"np": 2, "max_np": 3, "options": OPTIONS, "throttled": SLOW}
    with started(tmp_path, zk_hosts, *script, **how) as job:
        job.wait_for_step(STEPS + 2)
        job.kill("w0")
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
    assert digests(tmp_path / "out") == expected
    assert [line[0] for line in lines(tmp_path / "out")] == ["0", "1", "2"], "no epoch twice"


def test_a_layer_without_gradients_decays_as_under_horovod(tmp_path: Path) -> None:
    """Horovod gives its parameters gradients of zero, if there are several ranks."""
    weights = {}
    for ranks in (1, 2):
        out = tmp_path / str(ranks)
        alone(out, "--habits", "unused,schedule", "--epochs", "1", ranks=ranks)
        done = forked.python("torch", ["-c", UNUSED, str(out / "weights.pt")], 120.0)
        assert done.returncode == 0, done.stderr
        weights[ranks] = json.loads(done.stdout)
    assert weights[1] == [[1.0, 1.0]] * 2
    expected, momentum = 1.0, 0.0
    for _ in range(2 * STEPS):  # SGD, as plain_horovod.py makes it
        momentum = 0.9 * momentum + 0.1 * expected
        expected -= 0.02 * momentum
    assert weights[2] == [pytest.approx([expected] * 2, rel=1e-6)] * 2


@pytest.mark.long
def test_as_plain_horovod(tmp_path: Path, zk_hosts: str) -> None:
    """Four ranks of plain Horovod, and three processes that share them, train the same weights.

    BatchNorm's averages are those of rank 0 there, and the mean over the ranks here.
    """
    import torch  # not by each process of pytest that only collects

    plain, out = tmp_path / "plain", tmp_path / "out"
    launcher = str(Path(sys.executable).with_name("horovodrun"))
    words = ("--habits", "unused,passes")
    command = [launcher, "--gloo", "-np", "4", sys.executable, *train(plain, *words)]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, timeout=240.0, cwd=plain)
    script = train(out, *words)
    with started(tmp_path, zk_hosts, *script, np=3, max_np=4, options=OPTIONS) as job:
        assert job.end() == 0, job.describe("it failed")
    theirs, mine = (torch.load(one / "weights.pt") for one in (plain, out))
    for name, value in theirs.items():
        if "running" not in name:
            torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-5)
    assert [line[2] for line in lines(out)] == [line[2] for line in lines(plain)], "the same rates"


HABITS = {
    "augment,dropout,collate,loaders": 1,
    "schedule,clip,test_within": 1,
    "from_rank_0,join,no_set_epoch": 1,
    "unnamed,drop_last,dropout": 1,
    "break": 1,
    "passes,clip,dropout": 1,
    "phases,first_batch": 1,
    "seed_by_rank,dropout": 1,
    "broadcasts,dropout": 1,
    "broadcasts,break": 1,
}


@pytest.mark.long
@pytest.mark.parametrize("habits", HABITS)
def test_habits(tmp_path: Path, zk_hosts: str, habits: str) -> None:
    """One process, and three, of which one is killed in a later epoch, and one joins."""
    words = ("--habits", habits, "--epochs", "4")
    expected = alone(tmp_path / "alone", *words)
    assert len(set(expected.values())) == 4
    script = [throttle.SCRIPT, *train(tmp_path / "out", *words)]
    with started(
        tmp_path, zk_hosts, *script, np=3, max_np=3, options=OPTIONS, throttled=SLOW
    ) as job:
        job.wait_for_step(5)
        job.kill("w1")
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
    assert digests(tmp_path / "out") == expected


@pytest.mark.long
def test_a_script_without_a_seed(tmp_path: Path, zk_hosts: str) -> None:
    """The processes draw one seed together."""
    script = train(tmp_path / "out", "--habits", "unseeded,dropout")
    with started(tmp_path, zk_hosts, *script, np=3, max_np=3, options=OPTIONS) as job:
        assert job.end() == 0, job.describe("it failed")
    assert len(digests(tmp_path / "out")) == 3


@pytest.mark.long
def test_workers_die_before_the_training(tmp_path: Path, zk_hosts: str) -> None:
    """Replacements get what the others have exchanged, also rank 0's, which is gone."""
    words = ("--habits", "from_rank_0,late")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "go").touch()
    expected = alone(tmp_path / "alone", *words)
    script = train(tmp_path / "out", *words)
    with started(tmp_path, zk_hosts, *script, np=3, max_np=3, options=OPTIONS) as job:
        job.wait(lambda _: all((tmp_path / f"out/early{n}").exists() for n in range(3)), "barrier")
        job.kill("w0")
        (tmp_path / "out" / "go").touch()
        assert job.end() == 0, job.describe("it failed")
    assert digests(tmp_path / "out") == expected


@pytest.mark.long
def test_a_preempted_job_goes_on_with_other_processes(tmp_path: Path, zk_hosts: str) -> None:
    words = ("--epochs", "6", "--habits", "schedule,dropout,average")
    expected = alone(tmp_path / "alone", *words)
    script = [throttle.SCRIPT, *train(tmp_path / "out", *words)]
    options = [*OPTIONS, "--checkpoint-dir", str(tmp_path / "saved")]
    slow = Throttle(0.3, 100)
    preempted(
        tmp_path, zk_hosts, script, (2, 3, 1), options, lambda run: STEPS * (2 * run + 1) + 3, slow
    )
    assert digests(tmp_path / "out") == expected


class UnderHorovodrun(HorovodrunScenario):
    """The script under an unmodified elastic `horovodrun`."""

    script = Path("-m")
    throttled = SLOW

    def words(self) -> list[str]:
        return ["edl.transparent", str(throttle.SCRIPT), *train(self.reports_in)]


@pytest.mark.long
def test_under_horovodrun(tmp_path: Path, zk_hosts: str) -> None:
    """It starts two workers, one dies, and a third one comes."""
    expected = alone(tmp_path / "alone")
    settings = {"environment": {"EDL_LOGICAL": "4"}, "shield": WORKER, "driver": HOROVODRUN}
    directory = tmp_path / "job"
    directory.mkdir()
    with scenario(directory, zk_hosts, np=2, max_np=4, kind=UnderHorovodrun, **settings) as job:
        job.wait_for_step(STEPS + 1)
        job.process("w1").kill()
        job.wait_for_eviction()
        job.scale(3)
        job.wait_for_size(3, 180.0)
        job.hurry()
        assert job.end(180.0) == 0, job.describe("it failed")
    assert digests(job.reports_in) == expected


@pytest.mark.long
@pytest.mark.parametrize("word", ["none", "optimizer", "unlike"])
def test_an_evaluation_before_the_training(tmp_path: Path, zk_hosts: str, word: str) -> None:
    """All samples are evaluated, with equal weights, though two processes share four ranks."""
    script = [str(SCRIPTS / "evaluate_first.py"), str(tmp_path / "total"), word]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=4, options=OPTIONS) as job:
        code = job.end()
    if word == "unlike":
        assert code == 1
        assert "the workers have different weights" in job.output()
    else:
        assert code == 0, job.describe("it failed")
        assert (tmp_path / "total").read_text() == "48"


REFUSED = {
    "import horovod.mxnet": "run it by horovodrun",
    "import horovod.torch as hvd; hvd.elastic": "a script with hvd.elastic needs one changed",
    "import horovod.torch as hvd; hvd.alltoall": "hvd.alltoall is not there with --transparent",
    "import horovod.torch as hvd; hvd.nothing": "has no attribute 'nothing'",
    "step": "from a DataLoader with sampler=DistributedSampler",
    "step op=hvd.Sum": "multiply the learning rate by hvd.size",
}
LEFT_EARLY = """
import torch, horovod.torch as hvd
from torch.utils.data import DataLoader, DistributedSampler
hvd.init()
model, data = torch.nn.Linear(2, 1), torch.ones(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
loader = DataLoader(data, 2, sampler=DistributedSampler(data, hvd.size(), hvd.rank()))
def step(x):
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    return True
LOOP
hvd.rank()
"""
LOOPS = {
    "for i, x in enumerate(loader): step(x); break": True,
    "batches = iter(loader); [step(next(batches)) for _ in range(len(loader))]; del batches": True,
    "import itertools; [step(x) for x in itertools.islice(loader, 2)]": True,
    "for i, x in enumerate(loader):\n    if i == 2: break\n    step(x)": False,
    "[step(x) for x in loader]": False,
    "kept = iter(loader); [step(next(kept)) for _ in range(4)]": True,
    "kept = iter(loader); [step(next(kept)) for _ in range(8)]": True,
}


@pytest.mark.long
@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_counts_batches_is_refused(loop: str) -> None:
    """Two ranks have four steps; one process takes eight batches."""
    done = forked.by_exec(
        [sys.executable, "-m", "edl.transparent", "-c", LEFT_EARLY.replace("LOOP", loop)],
        240.0,
        env=os.environ | ENVIRONMENT | {"EDL_LOGICAL": "2"},
    )
    refused = "left its loop over the training data early" in done.stderr
    assert (refused, done.returncode) == (LOOPS[loop], int(LOOPS[loop])), done.stderr


STEP = """
import torch, horovod.torch as hvd
hvd.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), OPTIONS)
for x in torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4, shuffle=True):
    model(x).mean().backward()
    optimizer.step()
"""


@pytest.mark.long
@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused(code: str) -> None:
    script = STEP.replace("OPTIONS", code[5:]) if code.startswith("step") else code
    done = forked.by_exec(
        [sys.executable, "-m", "edl.transparent", "-c", script],
        240.0,
        env=os.environ | ENVIRONMENT | {"EDL_LOGICAL": "2"},
    )
    assert done.returncode == 1
    assert REFUSED[code] in done.stderr.splitlines()[-1]
    assert "edl/transparent/__main__" not in done.stderr, "edl's frames around the script"
    assert "nothing" in code or "Traceback" not in done.stderr
