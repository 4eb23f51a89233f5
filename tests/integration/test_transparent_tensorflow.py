"""Unchanged TensorFlow and Keras scripts for plain Horovod, in any number of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import numpy as np
import pytest
from logical_runs import preempted
from paths import SCRIPTS

from edl.testing import throttle
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

OPTIONS = ("--transparent", "--logical", "4")
SLOW = Throttle(0.5, 14, 4.0)
START_S = 200.0  # TensorFlow takes its time to be imported
ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
STEPS = {"plain_keras.py": 10, "plain_tf.py": 12}  # in an epoch
WRITTEN = {"plain_keras.py": "epoch{epoch}.keras", "plain_tf.py": "checkpoint-1.index"}


def train(name: str, out: Path, *words: str) -> list[str]:
    out.mkdir(exist_ok=True)
    return [str(SCRIPTS / name), "--out", str(out), *words]


def alone(name: str, out: Path, *words: str) -> dict[int, str]:
    """Return the digests by step of one process without a launcher, which nothing disturbs."""
    command = [sys.executable, "-m", "edl.transparent", *train(name, out, *words)]
    environment = os.environ | ENVIRONMENT | {"EDL_LOGICAL": "4"}
    subprocess.run(command, env=environment, check=True, timeout=START_S, cwd=out)
    return {step: found.pop() for step, found in digests(out).items()}


def digests(out: Path) -> dict[int, set[str]]:
    """Return all digests of each step; a newcomer writes some of its warm-up, too."""
    found: dict[int, set[str]] = {}
    for diary in out.glob("w[0-9]*"):
        for line in diary.read_text().splitlines():
            step, _, digest = line.partition(" ")
            if len(digest) == 64 and step != "0":  # else it was killed while it wrote
                found.setdefault(int(step), set()).add(digest)
    return found


def check(out: Path, expected: dict[int, str]) -> None:
    found = digests(out)
    assert {step: each & {expected[step]} for step, each in found.items()} == {
        step: {digest} for step, digest in expected.items()
    }
    warm_ups = len([*out.glob("w[0-9]*")]) * 3
    assert sum(len(each) - 1 for each in found.values()) <= warm_ups


def check_epochs(name: str, out: Path) -> None:
    """Assert that no process wrote in a loop of the past, where it has other weights."""
    if name == "plain_tf.py":
        lines = [line.split() for line in (out / "epochs").read_text().splitlines()]
        assert [(int(epoch) + 1) * STEPS[name] for epoch, _ in lines] == [int(n) for _, n in lines]
        assert len({epoch for epoch, _ in lines}) == len(lines)


@pytest.mark.parametrize("name", STEPS)
def test_any_number_of_processes(tmp_path: Path, zk_hosts: str, name: str) -> None:
    expected = alone(name, tmp_path / "alone", "--epochs", "2")
    assert len(expected) == 2 * STEPS[name]
    for size in (2, 3, 4):
        directory = tmp_path / str(size)
        directory.mkdir()
        script = train(name, directory / "out", "--epochs", "2")
        with started(directory, zk_hosts, *script, np=size, max_np=4, options=OPTIONS) as job:
            assert job.end(START_S) == 0, job.describe("it failed")
        check(directory / "out", expected)
        if name == "plain_keras.py":
            assert (directory / "out" / "epochs").read_text() == "0\n1\n", "rank 0 alone writes"


@pytest.mark.parametrize("name", STEPS)
def test_kills_a_join_and_a_leave(tmp_path: Path, zk_hosts: str, name: str) -> None:
    """The process of rank 0 dies, too; what it would have written, the next one writes."""
    words, last = ("--epochs", "5"), 5 * STEPS[name]
    expected = alone(name, tmp_path / "alone", *words)
    assert max(expected) == last
    script = [throttle.SCRIPT, *train(name, tmp_path / "out", *words)]
    how: dict[str, Any] = {"np": 2, "max_np": 4, "options": OPTIONS, "throttled": SLOW}
    with started(tmp_path, zk_hosts, *script, **how) as job:
        job.wait_for_step(3, START_S)
        job.kill("w0")
        job.wait_for_step(STEPS[name] + 2, START_S)
        job.wait_for_size(2, START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        job.kill(job.plain())
        job.scale(1)
        job.wait_for_size(1, START_S)
        job.hurry()
        assert job.end(START_S) == 0, job.describe("it failed")
    check(tmp_path / "out", expected)
    check_epochs(name, tmp_path / "out")
    if name == "plain_keras.py":
        ended = (tmp_path / "out" / "epochs").read_text().split()
        assert [*dict.fromkeys(ended)] == ["0", "1", "2", "3", "4"]
    for epoch in range(1, 6):
        assert (tmp_path / "out" / WRITTEN[name].format(epoch=epoch)).exists()


@pytest.mark.parametrize("name", STEPS)
def test_a_preempted_job_goes_on_with_other_processes(
    tmp_path: Path, zk_hosts: str, name: str
) -> None:
    words = ("--epochs", "4")
    expected = alone(name, tmp_path / "alone", *words)
    script = [throttle.SCRIPT, *train(name, tmp_path / "out", *words)]
    options = [*OPTIONS, "--checkpoint-dir", str(tmp_path / "saved")]
    first = STEPS[name] + 3
    preempted(tmp_path, zk_hosts, script, (2, 1), options, lambda run: first + run, SLOW, START_S)
    check(tmp_path / "out", expected)
    check_epochs(name, tmp_path / "out")


def test_as_plain_horovod(tmp_path: Path, zk_hosts: str) -> None:
    """Four ranks of plain Horovod, and two processes that share them, train the same weights."""
    plain, out = tmp_path / "plain", tmp_path / "out"
    words = ("--habits", "plain")
    launcher = str(Path(sys.executable).with_name("horovodrun"))
    command = [launcher, "--gloo", "-np", "4", sys.executable, *train("plain_tf.py", plain, *words)]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, timeout=START_S, cwd=plain)
    script = train("plain_tf.py", out, *words)
    with started(tmp_path, zk_hosts, *script, np=2, max_np=4, options=OPTIONS) as job:
        assert job.end(START_S) == 0, job.describe("it failed")
    theirs, mine = (np.load(one / "weights.npz") for one in (plain, out))
    for name in theirs.files:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-4, atol=1e-6)


RUN = "import runpy; runpy.run_module('edl.transparent', run_name='__main__')"
LEFT_EARLY = """
import horovod.tensorflow as hvd, numpy as np, tensorflow as tf
hvd.init()
x = np.ones((16, 1), np.float32)
data = tf.data.Dataset.from_tensor_slices((x, x)).shard(hvd.size(), hvd.rank()).repeat().batch(2)
data = data.take(4)
model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01)
@tf.function
def train(x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
LOOP
print("updates", int(optimizer.iterations))
"""
EARLY, IN_LOOP = (
    "left its loop over the training data early",
    "takes batches until the data set ends",
)
STEERED = "in step 1 the learning rate of sgd was 0.1"
LOOPS = {
    "for step, (x, y) in enumerate(data):\n    train(x, y)\n    if step == 2: break": EARLY,
    "for step, (x, y) in enumerate(data):\n    train(x, y)\n    break\nhvd.rank()": EARLY,
    "for x, y in data:\n    train(x, y)\n    break\nfor x, y in data: train(x, y)": EARLY,
    "kept = iter(data)\nfor _ in range(4): train(*next(kept))": EARLY,
    "kept = iter(data)\nfor _ in range(4): train(*next(kept))\nhvd.allgather(1)": IN_LOOP,
    "for i, (x, y) in enumerate(data):\n    if i == 2: break\n    train(x, y)\nhvd.rank()": "",
    "for x, y in data:\n    train(x, y)\n    hvd.rank()\nfor x, y in data: train(x, y)": "",
    "n = 0\nfor x, y in data: n += 1; optimizer.learning_rate = 0.1 / n; train(x, y)": STEERED,
    "for i, (x, y) in enumerate(data): optimizer.learning_rate = 0.1 / (1 + i); train(x, y)": "",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_that_counts_is_refused(loop: str, tmp_path: Path) -> None:
    """Two ranks have four steps; one process takes eight batches."""
    arguments = ["-c", RUN, "-c", LEFT_EARLY.replace("LOOP", loop)]
    environment = os.environ | ENVIRONMENT | {"EDL_LOGICAL": "2"}
    done = forked.python("tensorflow", arguments, START_S, env=environment, cwd=tmp_path)
    assert done.returncode == int(bool(LOOPS[loop])), done.stderr
    assert LOOPS[loop] in done.stderr


PAST = """
from types import SimpleNamespace
from edl.transparent import script, tensorflow_loop
ledger = SimpleNamespace(done=4, finished=False)
batches = SimpleNamespace(pieces=1, pieces_left=0)
loader = SimpleNamespace(ledger=ledger, open=False, engine=SimpleNamespace(batches=batches))
script.current_worker = tensorflow_loop.current_worker = lambda: SimpleNamespace(loader=loader)
loop = tensorflow_loop.TapeLoop(None, None)
loop._loops = loop._epoch = 2  # it has gone through two loops, and the job is in its third epoch
for loop._warms_up, loop._has_trained in ((False, False), (True, True), (True, False)):
    try:
        loop.check_end()
    except Exception as error:
        print(type(error).__name__)
"""


def test_only_a_newcomer_that_has_trained_nothing_ends_alone_in_a_past_epoch(
    tmp_path: Path,
) -> None:
    """The script of a resumed job, and of one that has trained, would end in another epoch."""
    done = forked.python("tensorflow", ["-c", PAST], START_S, cwd=tmp_path)
    assert done.stdout.split() == ["UsageError", "UsageError", "NewcomerDiffers"], done.stderr
