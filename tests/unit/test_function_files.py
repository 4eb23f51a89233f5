"""The files between a program and the workers that call its function."""

from __future__ import annotations

import inspect
import linecache
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.binding import process
from edl.errors import UsageError
from edl.program.function_files import Failure, FunctionFiles, call_function

CELL = "<cell 7>"
SOURCE = "def train(n):\n    if n:\n        raise ValueError(n)\n    return rate\n"


@pytest.fixture
def files(tmp_path: Path) -> FunctionFiles:
    return FunctionFiles(tmp_path)


def of_a_cell(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(linecache.cache, CELL, (len(SOURCE), None, SOURCE.splitlines(True), CELL))
    names = {"__name__": "__main__", "rate": 0.5}
    exec(compile(SOURCE, CELL, "exec"), names)
    return names["train"]


def test_a_function_of_a_cell_comes_with_its_source(
    files: FunctionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a traceback shows the line, and AutoGraph finds the text."""
    script = files.write_function(of_a_cell(monkeypatch), (0,), {})
    monkeypatch.delitem(linecache.cache, CELL)
    monkeypatch.setattr(sys, "path", list(sys.path))
    function, args, kwargs = files.read_function()
    assert (script.name, args, kwargs) == ("train.py", (0,), {})
    assert function(*args) == 0.5
    assert inspect.getsource(function) == SOURCE
    with pytest.raises(ValueError, match="1") as caught:
        function(1)
    assert caught.traceback[-1].path == CELL or str(caught.traceback[-1].path).endswith(CELL)


def test_the_worker_has_the_path_of_the_program(
    files: FunctionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", ["/beside/the/program", *sys.path])
    files.write_function(len, ("abc",), {})
    monkeypatch.setattr(sys, "path", ["/beside/the/script"])
    function, args, _ = files.read_function()
    assert function(*args) == 3
    assert sys.path[0] == "/beside/the/program"


def test_what_cannot_be_sent_is_named(files: FunctionFiles) -> None:
    lock = threading.Lock()

    def train() -> object:
        return lock

    with pytest.raises(UsageError, match=r"the function train cannot be sent .*let the function"):
        files.write_function(train, (), {})
    with pytest.raises(UsageError, match=r"the result of w1, of type generator, cannot be sent"):
        files.write_result("w1", 0, (n for n in range(3)))
    assert files.results() == {}


def test_results_come_in_the_order_of_ranks(files: FunctionFiles) -> None:
    for worker, rank in (("w10", 0), ("w9", 2), ("w2", 1)):
        files.write_result(worker, rank, f"of {worker}")
    assert list(files.results()) == ["w10", "w2", "w9"]
    assert [result for _, result in files.results().values()] == ["of w10", "of w2", "of w9"]
    assert files.has_result("w9")
    assert not files.has_result("w1")


def test_failures(files: FunctionFiles) -> None:
    failure = Failure("w3", after_training=True, text="ValueError: 7")
    files.write_failure(failure)
    assert files.failures() == [failure]


def test_only_the_user_reads_them(files: FunctionFiles, tmp_path: Path) -> None:
    files.write_result("w0", 0, None)
    assert (tmp_path / "result-w0").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("code", "finished", "failures"), [(3, True, 1), (0, True, 0), (3, False, 0)]
)
def test_an_exit_after_the_training_is_a_failure(
    files: FunctionFiles, monkeypatch: pytest.MonkeyPatch, code: int, finished: bool, failures: int
) -> None:
    """Before, its agent says the exit code, and edl itself may have ended the process."""
    worker = SimpleNamespace(id=1, finished=finished)
    monkeypatch.setattr(process, "is_initialized", lambda: True)
    monkeypatch.setattr(process, "current_worker", lambda: worker)
    monkeypatch.setattr(sys, "path", list(sys.path))
    script = files.write_function(sys.exit, (code,), {})
    with pytest.raises(SystemExit):
        call_function(str(script))
    found = files.failures()
    assert [(one.worker, one.after_training) for one in found] == [("w1", True)] * failures
    assert all(one.text.endswith("Exit: 3") for one in found)
