"""`edl.run`: a program, or a notebook, starts a job by a function, and gets what it returns."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import pytest
from extra_python import python_with
from paths import ROOT, SCRIPTS

from edl.testing.job import EDL, Job
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
EXECUTE = """
import sys
import nbformat, nbclient

notebook = nbformat.read(sys.argv[1], 4)
folder = {"metadata": {"path": sys.argv[2]}}
client = nbclient.NotebookClient(notebook, timeout=300, resources=folder)
try:
    client.execute()
finally:
    nbformat.write(notebook, sys.argv[3])
"""


class Program(Job):
    """A job that a program starts."""

    def begin(self, how: str, epochs: int) -> None:
        self._begin([sys.executable, SCRIPTS / "program.py", self.name, how, str(epochs)])

    def spawn(self, *words: str) -> Any:
        return self._spawn([EDL, *words], self.directory / "spawned.output")

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def results(self) -> list[Any]:
        found: list[Any] = json.loads(self.output().splitlines()[-1])
        return found


@contextmanager
def program(
    directory: Path, zk_hosts: str, how: str, throttled: Throttle | None = None
) -> Iterator[Program]:
    job = Program(directory, zk_hosts)
    if throttled is not None:
        job.throttle(throttled)
    try:
        job.begin(how, 20 if throttled else 2)
        yield job
    finally:
        job.close()
    functions = directory / "state" / "edl" / "functions"
    assert not functions.exists() or list(functions.iterdir()) == []


def test_a_join_and_the_death_of_rank_0(tmp_path: Path, zk_hosts: str) -> None:
    """All that are there at the end return their results, in the order of ranks."""
    with program(tmp_path, zk_hosts, "returns", Throttle()) as job:
        job.wait_for_step(2)
        job.scale(3)
        job.wait_for_size(3)
        job.kill("w0")
        job.wait_for_eviction()
        job.wait_for_size(3)
        job.hurry()
        assert job.end(240.0) == 0, job.describe("it failed")
        results = job.results()
    weights = {weight for _, _, weight, _ in results}
    assert [(rank, size, word) for rank, size, _, word in results] == [
        (rank, 3, "from the program") for rank in range(3)
    ]
    assert len(weights) == 1


def test_a_death_after_the_training(tmp_path: Path, zk_hosts: str) -> None:
    with program(tmp_path, zk_hosts, "dies late") as job:
        assert job.end(240.0) == 0, job.describe("it failed")
        assert [result[0] for result in job.results()] == [1]
        assert "RuntimeWarning: the results of job" in job.output()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raises", ["JobFailed", "ValueError: of the function", 'raise ValueError("of the']),
        ("raises late", ["has finished, but the function has failed", "ValueError: after the"]),
        ("returns a socket", ["JobFailed", "of type socket, cannot be sent", "plain values"]),
    ],
)
def test_a_failure_is_raised(tmp_path: Path, zk_hosts: str, how: str, said: list[str]) -> None:
    """The error has the traceback of the worker, with the line of the source."""
    with program(tmp_path, zk_hosts, how) as job:
        assert job.end(240.0) == 9, job.describe("it did not fail")
        error = job.output().rpartition("JobFailed: ")
        assert all(text in "".join(error[1:]) for text in said), job.describe("not the error")


@pytest.mark.parametrize(("by", "error"), [("Ctrl-C", "KeyboardInterrupt"), ("stop", "JobStopped")])
def test_a_job_that_is_stopped(tmp_path: Path, zk_hosts: str, by: str, error: str) -> None:
    with program(tmp_path, zk_hosts, "returns", Throttle()) as job:
        job.wait_for_step(2)
        if by == "stop":
            job.edl("stop")
        else:
            job.interrupt()
        assert job.end(240.0) == 9, job.describe("it was not stopped")
        assert job.output().splitlines()[-1].startswith(f"{error}: job {job.name} was stopped")


def test_a_second_host_returns_its_results(tmp_path: Path, zk_hosts: str) -> None:
    """It finds the function, and leaves its results, in a directory that both hosts share."""
    with program(tmp_path, zk_hosts, "on two hosts", Throttle()) as job:
        job.wait_for_step(2)
        joined = job.spawn("join", "--job", job.name, "--host", "b", "--slots", "1", "-np", "1")
        job.wait_for_size(3)
        job.hurry()
        assert job.end(240.0) == 0, job.describe("it failed")
        assert joined.wait(60.0) == 0
        assert [result[:2] for result in job.results()] == [[0, 3], [1, 3], [2, 3]]
    assert list((tmp_path / "shared").iterdir()) == []


def notebook_python() -> Path:
    return python_with("notebooks-1", "nbclient==0.10.4", "ipykernel==7.1.0", beside_edl=True)


def executed(notebook: Path, job: Job) -> tuple[list[Any], str]:
    """Run ``notebook`` in its own folder; return its cells, and what the execution said."""
    done = job.directory / "done.ipynb"
    ended = forked.by_exec(
        [notebook_python(), "-c", EXECUTE, notebook, notebook.parent, done],
        600,
        env={**job.environment, "PYTHONPATH": str(ROOT)},
    )
    cells: list[Any] = json.loads(done.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"], ended.stderr


def text_of(cell: Any, kind: str) -> str:
    """Return what a cell has put out as plain text, of one kind of output."""
    found = [out.get("data", out) for out in cell["outputs"] if out["output_type"] == kind]
    return "".join("".join(out.get("text/plain", out.get("text"))) for out in found)


def test_the_notebook(tmp_path: Path, zk_hosts: str) -> None:
    """The example: one line of progress, the workers' lines, the results as the cell's value."""
    job = Job(tmp_path, zk_hosts)
    cells, said = executed(NOTEBOOK, job)
    assert job.processes() == []
    trained = next(cell for cell in cells if "edl.run(" in "".join(cell["source"]))
    assert len([out for out in trained["outputs"] if out["output_type"] == "display_data"]) == 1
    assert "has finished: trained" in text_of(trained, "display_data"), said
    assert "[w0] epoch 0" in text_of(trained, "stream"), said
    assert "accuracy" in text_of(cells[-1], "stream"), said


def test_an_interrupt_of_a_notebook(tmp_path: Path, zk_hosts: str) -> None:
    """The kernel gets SIGINT, as from the button: the job ends, and the cell, by that exception."""
    train = (SCRIPTS / "program.py").read_text().partition("if __name__")[0]
    stop = f"""
import os, signal, threading, time
from edl.client import Job
from edl.errors import EdlError
def interrupt():
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            if Job("interrupted", {zk_hosts!r}).status().step > 1:
                break
        except EdlError:
            pass
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
edl.run(trainer("returns"), (SAMPLES, 20), np=2, name="interrupted", shows_workers=False)
"""
    job = Job(tmp_path, zk_hosts)
    job.throttle(Throttle())
    cells, said = run_cells(job, train, stop)
    (error,) = [out for out in cells[-1]["outputs"] if out["output_type"] == "error"]
    assert error["ename"] == "KeyboardInterrupt", said
    assert "interrupted was stopped" in error["evalue"]
    assert job.processes() == []


FIT = """
import edl

def train(epochs):
    import keras
    import numpy as np
    import tensorflow as tf

    import edl.tensorflow as edl

    edl.init()
    x = np.random.rand(320, 4).astype("float32")
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(1)])

    @tf.function
    def size_of(value):  # without its source AutoGraph cannot make a graph of it
        if value > 0:
            return value
        else:
            return -value

    assert int(size_of(tf.constant(-3))) == 3
    model.compile(optimizer=edl.Optimizer(keras.optimizers.SGD(0.1), model), loss="mse")
    data = edl.Dataset((x, x.sum(1, keepdims=True)), batch_size=16, shuffle=True)
    model.fit(data, epochs=epochs, callbacks=[edl.KerasCallback()], verbose=0)
    return model.get_weights()[0].ravel().tolist()
"""


def test_keras_and_autograph_in_a_notebook(tmp_path: Path, zk_hosts: str) -> None:
    cells, said = run_cells(Job(tmp_path, zk_hosts), FIT, "edl.run(train, [2], np=2)")
    first, second = json.loads(text_of(cells[-1], "execute_result").replace("'", '"'))
    assert first == second, said


def run_cells(job: Job, *sources: str) -> tuple[list[Any], str]:
    """Run a notebook of these cells; return them, and what the execution said."""
    notebook = {
        "cells": [code(source) for source in sources],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    file = job.directory / "cells.ipynb"
    file.write_text(json.dumps(notebook))
    return executed(file, job)


def code(source: str) -> dict[str, Any]:
    common = {"execution_count": None, "metadata": {}, "outputs": []}
    return {"cell_type": "code", "id": f"{abs(hash(source)):x}", "source": source, **common}
