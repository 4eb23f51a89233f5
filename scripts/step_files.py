"""Trace which files of edl a step of a job of two workers enters: `make step-files`.

Prints the files of an ordinary step, of eight successive ones together, and of the step in which
the other worker is killed and the ring repaired. ARGS=--fit does so for Keras' `fit`.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

EDL = f"{Path(__file__).parent.parent / 'edl'}/"
WARM, STEPS = 20, 8  # the steps before the trace, and in it


class Trace:
    """The files that this thread enters in each step from the 20th on; rank 0 has one."""

    def __init__(self, rank: int, pids: Path) -> None:
        self.rank, self.pids = rank, pids
        (pids / str(rank)).write_text(str(os.getpid()))
        self.step = self.changes = 0
        self.files: list[set[str]] = []
        self._last = ""

    def end_step(self) -> None:
        self.step += 1
        if self.rank > 0 or self.step < WARM:
            return
        sys.setprofile(None)
        if self.step == WARM + STEPS:
            os.kill(int((self.pids / "1").read_text()), signal.SIGKILL)
        if self.step > WARM + STEPS:
            self._report()
            os._exit(0)
        self.files.append(set())
        sys.setprofile(self._on_event)

    def _on_event(self, frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(EDL):
            self.files[-1].add(name.removeprefix(EDL))
            self.changes += name != self._last and len(self.files) <= STEPS
            self._last = name

    def _report(self) -> None:
        ordinary, repair = self.files[:STEPS], self.files[STEPS]
        least, several = min(ordinary, key=len), set().union(*ordinary)
        print(f"a step: {len(least)} files: {', '.join(sorted(least))}")
        print(
            f"{STEPS} steps: {len(several)} files, {self.changes / STEPS:.0f} changes of file a ",
            end="",
        )
        print(f"step; more than in one: {', '.join(sorted(several - least))}")
        print(
            f"with a repair: {len(repair)} files; more: {', '.join(sorted(repair - several))}",
            flush=True,
        )


def train_torch(pids: Path) -> None:
    import torch

    import edl.torch as edl

    torch.set_num_threads(1)
    edl.init()
    data = torch.utils.data.TensorDataset(torch.randn(100_000, 8), torch.randn(100_000, 1))
    loader = edl.DataLoader(data, batch_size=8, shuffle=True)
    model = torch.nn.Linear(8, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.001), model)
    trace = Trace(edl.rank(), pids)
    for _epoch in loader.epochs(1):
        for inputs, targets in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            trace.end_step()


def train_keras(pids: Path) -> None:
    import keras
    import numpy as np

    import edl.tensorflow as edl

    edl.init()
    inputs = np.random.default_rng(0).normal(size=(100_000, 8)).astype("float32")
    data = edl.Dataset((inputs, inputs[:, :1]), 8, shuffle=True)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(edl.Optimizer(keras.optimizers.SGD(0.001)), "mse")
    trace = Trace(edl.rank(), pids)
    after = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: trace.end_step())
    model.fit(data, callbacks=[edl.KerasCallback(), after], verbose=0)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--fit", action="store_true", help="Keras' fit, not a loop of PyTorch's")
    options.add_argument("--pids", type=Path, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.pids:
        (train_keras if asked.fit else train_torch)(asked.pids)
        return
    with tempfile.TemporaryDirectory() as pids:
        command = [
            sys.executable,
            "-m",
            "edl.cli.main",
            "run",
            "-np",
            "2",
            "--min-np",
            "1",
            sys.executable,
            __file__,
        ]
        command += ["--pids", pids, *["--fit"] * asked.fit]
        subprocess.run(command, check=False, timeout=300)


if __name__ == "__main__":
    main()
