"""TensorFlow scripts written for Horovod Elastic, with one import changed: Keras, and a loop."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import forked
import pytest
from paths import ROOT, SCRIPTS
from scenario import Scenario, scenario
from test_horovod_scripts import alone, learned
from wrong import answers_of, assert_a_sentence

from edl.testing import throttle
from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

START_S = 180.0  # for processes that import TensorFlow, several at a time
EXAMPLE = ROOT / "examples" / "horovod" / "keras_elastic.py"


@pytest.mark.long  # the loop below counts samples as well
def test_2_3_2_and_a_kill(tmp_path: Path, zk_hosts: str) -> None:
    words = [throttle.SCRIPT, str(EXAMPLE), "--epochs", "14"]
    with started(tmp_path, zk_hosts, *words, np=2, max_np=3, throttled=Throttle(0.1)) as job:
        job.wait_for_size(2, START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        job.scale(2)
        now = job.wait_for_size(2)
        victim = next(m for m in now["members"] if m["id"] != now["leader"])
        os.kill(victim["pid"], signal.SIGKILL)
        job.wait_for_eviction()
        job.hurry()
        assert job.end() == 0, job.describe("it failed")  # its replacement may come too late
        learned(job.output())


class LoopScenario(Scenario):
    script = SCRIPTS / "hvd_tf_counting.py"
    samples, batch_size, epochs = 900, 6, 8  # what is left is divided by 1, 2 and 3


@pytest.mark.long  # `make test` has PyTorch's, and TensorFlow's without Horovod's names
@pytest.mark.parametrize(
    "more", [pytest.param([], id="loop"), pytest.param(["--graph"], id="graph")]
)
def test_a_loop_2_3_2_and_a_kill(more: list[str], tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, kind=LoopScenario, more=more) as job:
        job.wait_for_step(3, START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        job.scale(2)
        job.wait_for_size(2)
        os.kill(job.members(job.plain())[job.plain()]["pid"], signal.SIGKILL)
        job.wait_for_eviction()
        job.wait_for_size(2, START_S)
        job.prove(workers=2)


def test_alone() -> None:
    alone(EXAMPLE)


def test_the_parts_in_a_job_of_one() -> None:
    done = forked.python("tensorflow", [SCRIPTS / "hvd_keras_parts.py"], 200.0)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all is well"


def test_sparse_gradients_with_each_option(tmp_path: Path, zk_hosts: str) -> None:
    with started(tmp_path, zk_hosts, SCRIPTS / "hvd_sparse.py", np=2, max_np=2) as job:
        assert job.end(START_S) == 0, job.describe("it failed")
        assert job.output().count("all is well") == 2


FUNCTION = """
def train(state):
    return 7
"""
WRONG = {  # by their code: a part of the sentence
    "hvd.elastic.TensorFlowKerasState(tf.keras.Sequential([tf.keras.layers.Dense(1)]))": (
        "must be built first"
    ),
    "hvd.elastic.TensorFlowKerasState(model)": "needs the optimizer, or a compiled model",
    "hvd.elastic.TensorFlowState()": "name the variables",
    FUNCTION + "hvd.elastic.run(train)(object())": (
        "take elastic.TensorFlowKerasState of edl, not of horovod"
    ),
    "hvd.DistributedOptimizer(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)))": (
        "was wrapped by hvd.DistributedOptimizer already"
    ),
    "hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), backward_passes_per_step=2)": (
        "gradient_accumulation_steps"
    ),
    """
more = {"average_aggregated_gradients": True, "scale_local_gradients": True, "process_set": 1}
hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), num_groups=2, **more)
""": "hvd.DistributedOptimizer: process sets need a ring of constant size",
    "hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.1), op=hvd.Adasum)": (
        "op=Adasum is not there"
    ),
    "hvd.DistributedGradientTape(tf.GradientTape(), op=hvd.Adasum)": "op=Adasum is not there",
    "from edl.tensorflow.keras import load_model": (
        "edl.tensorflow.keras has no load_model: load it with keras.models.load_model"
    ),
    """
sgd = tf.keras.optimizers.SGD(0.1)
hvd.DistributedOptimizer(sgd, op=hvd.Sum, gradient_predivide_factor=2.0)
""": "gradient_predivide_factor splits an average",
}


def test_wrong_uses_get_a_sentence() -> None:
    imports = "import tensorflow as tf\nimport edl.tensorflow as hvd"
    setup = (
        "hvd.init()\nmodel = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])"
    )
    answers = answers_of({code: code for code in WRONG}, imports, setup)
    for code, sentence in WRONG.items():
        assert_a_sentence(answers[code], sentence)
