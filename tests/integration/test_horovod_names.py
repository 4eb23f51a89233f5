"""Each public name of Horovod's modules works in edl's, or answers a sentence with what to do."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import forked
import pytest
from horovod_calls import CALLS, REFUSED
from paths import ROOT

from edl.binding.api import ABSENT, INTERNAL

pytestmark = pytest.mark.integration

LOOK = """
import importlib, json, sys, types
from edl.errors import UsageError
told = {}
for module in sys.argv[1:]:
    theirs = importlib.import_module(module)
    ours = importlib.import_module(module.replace("horovod", "edl", 1))
    for name in dir(theirs):
        thing = getattr(theirs, name)
        if name.startswith("_") or isinstance(thing, types.ModuleType):
            continue
        if "elastic" in module and not getattr(thing, "__module__", "").endswith("elastic"):
            continue  # what it imports for itself
        try:
            getattr(ours, name)
        except UsageError as error:
            told[name] = str(error)
print(json.dumps(told))
"""
TENSORFLOW = ("horovod.tensorflow", "horovod.tensorflow.elastic", "horovod.tensorflow.keras")
MODULES = {
    "torch": ("horovod.torch", "horovod.torch.elastic"),
    "tensorflow": (*TENSORFLOW, f"{TENSORFLOW[2]}.elastic", f"{TENSORFLOW[2]}.callbacks"),
}


@pytest.mark.parametrize("framework", MODULES)
def test_each_name_works_or_answers_a_sentence(framework: str) -> None:
    looked = forked.python(framework, ["-c", LOOK, *MODULES[framework]], 240.0)
    assert looked.returncode == 0, looked.stderr
    told = json.loads(looked.stdout.splitlines()[-1])
    assert "ProcessSet" in told
    for name, sentence in told.items():
        assert f" has no {name}: " in sentence


def test_docs_have_what_there_is_not() -> None:
    table = (ROOT / "docs" / "guides" / "horovod-scripts.md").read_text()
    assert [name for name in ABSENT if f"{name}`" not in table] == []
    assert not ABSENT.keys() & INTERNAL


ABSENT_HERE = """
import importlib.util
from importlib.machinery import PathFinder
importlib.util.find_spec = lambda name: PathFinder.find_spec(name, ["."])  # as if not installed
"""
ADVICE = "need Horovod, and there is none here: run `edl build-horovod`"


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ("train.py", ADVICE),
        ("horovod/train.py", ADVICE),
        ("horovod/__init__.py", "horovod/__init__.py hides Horovod, which edl needs"),
        ("horovod.py", "horovod.py hides Horovod, which edl needs"),
    ],
)
def test_without_horovod_it_is_said_how_to_get_it(tmp_path: Path, beside: str, said: str) -> None:
    (tmp_path / beside).parent.mkdir(exist_ok=True)
    (tmp_path / beside).touch()
    for module in ("edl.torch", "edl.tensorflow.keras"):
        command = [sys.executable, "-c", f"{ABSENT_HERE}import {module}"]
        done = forked.by_exec(command, 60.0, cwd=tmp_path)
        assert said in done.stderr.splitlines()[-1]


CALL = """
import importlib, json, sys
order = json.load(sys.stdin)
exec(order["setup"])
names, wrong = importlib.import_module(order["module"]).__all__, {}
names = sorted(names, key=lambda name: (name == "shutdown", name == "stop_timeline", name))
for name in names:
    if name not in order["calls"]:
        wrong[name] = "is called nowhere"
        continue
    try:
        if not eval(order["calls"][name]):
            wrong[name] = "gives something else"
    except Exception as error:
        wrong[name] = repr(error)
print(json.dumps(wrong))
"""


@pytest.mark.parametrize("module", CALLS)
def test_each_name_of_horovod_works_when_it_is_called(module: str) -> None:
    setup, calls = CALLS[module]
    done = forked.python(
        "tensorflow" if "tensorflow" in module else "torch",
        ["-c", CALL],
        240.0,
        json.dumps({"setup": setup + REFUSED, "calls": calls, "module": module}),
        env=os.environ | {"HOROVOD_TIMELINE": "DYNAMIC"},  # start_timeline needs it
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {}
