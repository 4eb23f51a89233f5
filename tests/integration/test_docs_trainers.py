"""The code of the pages for trainers and loaders runs as it stands there.

A test adds what a page leaves to its reader: the model, the data, the training of a loader. Of a
block that shows a change, the lines after the change run.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tarfile
from pathlib import Path

import forked
import pytest
from extra_python import huggingface_python, lightning_python, webdataset_python
from mds_python import mds_python, stand_ins, write_shards
from paths import ROOT
from PIL import Image

from edl.testing.job import WAIT_S

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

BEGIN = """
import edl.torch as edl

edl.init()
"""
LINE = """
import torch


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def forward(self, x, labels):
        y = self.line(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}


def row(number):
    return {"x": torch.tensor([number / 40]), "labels": torch.tensor([number / 20])}


rows = [row(number) for number in range(40)]
"""
TRAIN = """
import torch

model = torch.nn.Linear(1, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
samples = 0
for _ in loader.epochs(1):
    for batch in loader:
        samples += edl.batch_weight()
        optimizer.zero_grad()
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
print("samples:", samples)
"""
OF_STREAM = "loader = edl.DataLoader(stream, batch_size=4, shuffle=True)\n"


def block(page: str, holds: str) -> str:
    """Return the only block of a page of docs/guides that holds a text, after its change."""
    text = (ROOT / "docs" / "guides" / page).read_text()
    found = re.findall(r"^```(python|diff)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (one,) = [(kind, code) for kind, code in found if holds in code]
    kind, code = one
    if kind == "python":
        return code
    lines = [line for line in code.splitlines() if not line.startswith("-")]
    return "".join(f"{line[1:]}\n" for line in lines)


def ran(
    python: str | Path, directory: Path, *parts: str, path: str = "", zookeeper: str = ""
) -> str:
    """Run the parts as one script in a directory, without a launcher; return its output."""
    script = directory / "train.py"
    script.write_text("\n".join(parts))
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}:{path}",
        "OMP_NUM_THREADS": "1",
        "EDL_ZOOKEEPER": zookeeper,
        "XDG_STATE_HOME": str(directory / "state"),
    }
    ended = forked.by_exec([python, script], 2 * WAIT_S, cwd=directory, env=environment)
    assert ended.returncode == 0, f"{script.read_text()}\n{ended.stdout}{ended.stderr}"
    return ended.stdout


def test_the_trainer_of_lightning(tmp_path: Path) -> None:
    given = """
import lightning as L
import torch


class Digits(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.line(batch).pow(2).mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.line(batch).pow(2).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


train_loader = torch.utils.data.DataLoader(torch.rand(40, 1), batch_size=4, shuffle=True)
val_loader = torch.utils.data.DataLoader(torch.rand(10, 1), batch_size=4)
"""
    code = block("lightning.md", "trainer.fit(model, train_loader, val_loader)")
    shown = ran(lightning_python(), tmp_path, given, code, "print('step', trainer.global_step)")
    assert shown.splitlines()[-1] == "step 100"


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    """The changed imports, then the checkpoints of edl."""
    given = """
arguments = TrainingArguments(
    output_dir="trainer",
    num_train_epochs=2,
    per_device_train_batch_size=4,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
)
trainer = Trainer(model=Line(), args=arguments, train_dataset=rows)
"""
    imports = block("huggingface.md", "from edl.huggingface import Trainer")
    trains = block("huggingface.md", "trainer.train()")
    end = "print('step', trainer.state.global_step)"
    shown = ran(huggingface_python(), tmp_path, imports, LINE, given, trains, end)
    assert shown.splitlines()[-1] == "step 20"
    assert list((tmp_path / "runs/17").iterdir()), "edl has saved checkpoints"


def test_a_trainer_of_ones_own(tmp_path: Path) -> None:
    code = block("huggingface.md", "class MyTrainer")
    shown = ran(huggingface_python(), tmp_path, code, "print(MyTrainer.__mro__[1].__name__)")
    assert shown.splitlines()[-1] == "ElasticTrainerMixin"


def test_the_loop_of_accelerate(tmp_path: Path) -> None:
    given = """
class Model(Line):
    def forward(self, x, labels):
        return SimpleNamespace(**super().forward(x, labels))


num_epochs = 3
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
train_dataloader = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
eval_dataloader = torch.utils.data.DataLoader(rows, batch_size=4)
"""
    code = block("huggingface.md", "accelerator = Accelerator(")
    before = f"from types import SimpleNamespace\n{LINE}{given}"
    shown = ran(huggingface_python(), tmp_path, before, code, "print('epoch', epoch)")
    assert shown.splitlines()[-1] == "epoch 2"


def test_a_streaming_set_of_datasets(tmp_path: Path) -> None:
    given = """
import datasets

ds = datasets.Dataset.from_dict({"number": range(40)}).to_iterable_dataset(num_shards=4)
"""
    code = block("data.md", "ds.shard(ds.num_shards, index)")
    shown = ran(huggingface_python(), tmp_path, BEGIN, given, code, OF_STREAM, TRAIN)
    assert shown.splitlines()[-1] == "samples: 40"


def test_archives_of_webdataset(tmp_path: Path) -> None:
    for number in range(2):
        with tarfile.open(tmp_path / f"{number}.tar", "w") as archive:
            for sample in range(20):
                image = io.BytesIO()
                Image.new("L", (4, 4), sample).save(image, "JPEG")
                for kind, data in (("jpg", image.getvalue()), ("cls", b"3")):
                    entry = tarfile.TarInfo(f"{sample:03}.{kind}")
                    entry.size = len(data)
                    archive.addfile(entry, io.BytesIO(data))
    given = """
import io

import numpy as np
import torch
import webdataset as wds
from PIL import Image

urls = ["0.tar", "1.tar"]


def to_tensor(image):
    return torch.tensor(np.asarray(image))
"""
    code = block("data.md", "wds.WebDataset")
    shown = ran(webdataset_python(), tmp_path, BEGIN, given, code, OF_STREAM, TRAIN)
    assert shown.splitlines()[-1] == "samples: 40"


@pytest.mark.parametrize("holds", ["LocalDataset", "reader_from_json"])
def test_shards_of_mosaicml_streaming(holds: str, tmp_path: Path) -> None:
    written = write_shards(tmp_path, 400)
    shutil.copy(written / "index.json", tmp_path)
    given = """
import pathlib
import shutil


def fetch(name, directory):
    pathlib.Path(directory).mkdir(exist_ok=True)
    shutil.copy(f"mds/{name}", directory)
"""
    code = block("data.md", holds)
    loader = OF_STREAM if holds == "reader_from_json" else ""
    path = str(stand_ins(tmp_path))
    shown = ran(mds_python(), tmp_path, BEGIN, given, code, loader, TRAIN, path=path)
    assert shown.splitlines()[-1] == "samples: 400"


def test_a_program(tmp_path: Path, zk_hosts: str) -> None:
    """The function, its job, and then a second job with a policy."""
    code = block("running.md", "def train(epochs")
    policy = block("running.md", "policy=")
    end = "print('ended')"
    shown = ran(sys.executable, tmp_path, code, policy, end, zookeeper=zk_hosts)
    assert shown.splitlines()[-1] == "ended"
    losses = re.findall(r"^\d\.\d+(?:e-\d+)?$", shown, re.MULTILINE)
    assert len(losses) == 1, shown
    assert float(losses[0]) < 0.1, shown
