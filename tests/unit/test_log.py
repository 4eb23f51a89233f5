"""`edl.log`: each point of a log is written once, by whoever is rank 0."""

from __future__ import annotations

import json
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl.binding import api as log_module
from edl.binding.api import log
from edl.checkpoint import store
from edl.checkpoint.store import LoggedSteps
from edl.errors import UsageError
from edl.learning import LearningMeter


class Worker:
    step, rank, warming_up, id = 7, 0, False, 4
    steps = SimpleNamespace(batch_weight=1, progress=SimpleNamespace(members=(4, 5)))

    def __init__(self, record: LoggedSteps) -> None:
        self.learning = LearningMeter()
        self.checkpointing = SimpleNamespace(logged=record.read, put_logged=record.put)
        self.told = -1  # the step that the other one says was written
        self.other: list[float] = []  # its step and the code of its names; empty: as of this one
        self.dies = self.is_apart = False
        self.exchanges = 0

    def exchange(self, mine: list[float], apart: bool = False) -> list[list[float]]:
        self.exchanges += 1
        if len(mine) == 1:
            if self.dies:
                self.rank = 0
                return [mine]
            return [mine, [self.told]]
        if self.is_apart:
            return [mine]
        return [mine, [1, 5, self.told, *(self.other or mine[3:5]), 3.0]]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Worker:
    one = Worker(LoggedSteps(tmp_path))
    monkeypatch.setattr(one.steps.progress, "members", (4, 5))
    monkeypatch.setattr(log_module, "current_worker", lambda: one)
    return one


def test_rank_0_writes_the_mean(worker: Any) -> None:
    written: list[tuple[int, dict[str, float]]] = []

    def write(step: int, values: dict[str, float]) -> None:
        written.append((step, values))

    assert log({"loss": 1.0}, write, weight=1) == {"loss": 2.0}
    assert log({"loss": 1.0}, write, weight=1) == {"loss": 2.0}  # the same step
    log({"loss": 1.0}, write, step=9, weight=1)
    assert worker.exchanges == 5  # two for a point, one for a step that was written
    worker.rank, worker.told = 1, 11
    log({"loss": 1.0}, write, step=11, weight=1)
    assert written == [(7, {"loss": 2.0}), (9, {"loss": 2.0})]


def test_the_next_rank_0_writes_what_the_dead_one_has_not(worker: Any) -> None:
    written: list[int] = []
    worker.rank, worker.dies = 1, True
    log({"loss": 1.0}, lambda at, _: written.append(at), weight=1)
    assert written == [7]


def test_a_newcomer_that_logs_at_steps_of_its_own_writes_nothing(worker: Any) -> None:
    worker.rank, worker.is_apart, worker.steps.progress.members = 1, True, (5, 4)
    assert log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), weight=1) == {"loss": 1.0}
    assert worker.exchanges == 1


def test_what_the_dead_one_has_told_is_not_written_again(worker: Any) -> None:
    worker.rank, worker.told = 1, 7
    log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), weight=1)
    worker.rank, worker.told = 0, -1  # that one has died, and a newcomer knows nothing
    log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), weight=1)


def test_a_restarted_job_goes_on_behind_what_it_has_written(worker: Any, tmp_path: Path) -> None:
    LoggedSteps(tmp_path).put("loss", 8)
    written: list[int] = []
    for step in (7, 8, 9):
        log({"loss": 1.0}, lambda at, _: written.append(at), step=step, weight=1)
    assert written == [9]
    assert LoggedSteps(tmp_path).read() == {"loss": 9}
    LoggedSteps(tmp_path).forget()
    assert LoggedSteps(tmp_path).read() == {}


def test_a_restarted_worker_reads_it_after_its_warm_up(worker: Any, tmp_path: Path) -> None:
    LoggedSteps(tmp_path).put("loss", 8)
    worker.warming_up = True
    log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), step=0, weight=1)
    worker.warming_up = False
    log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), step=7, weight=1)


def test_a_damaged_record_counts_as_none(tmp_path: Path) -> None:
    for text in ("", "[1]", '{"loss": "x"}'):
        (tmp_path / "logged.json").write_text(text)
        assert LoggedSteps(tmp_path).read() == {}


def test_a_file_server_that_is_away_holds_up_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The training thread does not wait for the write, and the newest step is written later."""
    monkeypatch.setattr(store, "LOOK_S", 0.0, raising=False)
    is_back, write_text = threading.Event(), Path.write_text

    def away(path: Path, text: str, encoding: str) -> int:
        if not is_back.wait(10.0):
            raise OSError("the training thread waits for it")
        return write_text(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", away)
    steps = LoggedSteps(tmp_path)
    for step in (1, 2, 3):
        steps.put("loss", step)
        steps.put("accuracy", 1)
    (thread,) = (one for one in threading.enumerate() if one.name == "edl-checkpoint-look")
    assert not (tmp_path / "logged.json").exists()
    assert "was not written in 0 s" in caplog.text
    is_back.set()
    thread.join(10.0)
    assert json.loads((tmp_path / "logged.json").read_text()) == {"loss": 3, "accuracy": 1}


def test_a_file_server_that_is_away_holds_up_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_back, read_text = threading.Event(), Path.read_text
    LoggedSteps(tmp_path).put("loss", 8)

    def away(path: Path, encoding: str) -> str:
        assert is_back.wait(10.0), "the training thread waits for it"
        return read_text(path, encoding)

    monkeypatch.setattr(Path, "read_text", away)
    monkeypatch.setattr(store, "LOOK_S", 0.0, raising=False)
    assert LoggedSteps(tmp_path).read() == {}
    is_back.set()


def test_nothing_is_written_in_a_warm_up(worker: Any) -> None:
    worker.warming_up = True
    log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), weight=1)


@pytest.mark.parametrize("step", [1.5, 3.0, "7", -1])
def test_a_step_that_is_none_is_refused(worker: Any, step: Any) -> None:
    """A step of 1.5 would never count as written, and be written for ever."""
    with pytest.raises(UsageError, match=r"edl\.log: the step is .* give a whole number from 0"):
        log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), step=step, weight=1)
    assert worker.exchanges == 0


@pytest.mark.parametrize("weight", [-1, float("nan"), "x"])
def test_a_weight_that_is_none_is_refused(worker: Any, weight: Any) -> None:
    with pytest.raises(UsageError, match=r"edl\.log"):
        log({"loss": 1.0}, lambda *_: None, weight=weight)
    assert worker.exchanges == 0


@pytest.mark.parametrize(
    ("other", "said"),
    [([8, zlib.crc32(b"loss")], "gave steps 7, 8;"), ([7, zlib.crc32(b"lr")], "different names;")],
)
def test_workers_that_log_other_points_are_told(worker: Any, other: list[float], said: str) -> None:
    """Else one would wait for the word of a rank 0 that has gone on."""
    worker.other = other
    with pytest.raises(UsageError, match=said):
        log({"loss": 1.0}, lambda *_: pytest.fail("it was written"), weight=1)


@pytest.mark.parametrize("values", [3.0, {}, {3: 1.0}, {"a": 1.0, 3: 1.0}, {"loss": "high"}])
def test_what_is_no_dict_of_numbers_is_refused(worker: Any, values: Any) -> None:
    with pytest.raises(UsageError, match=r"edl\.log takes"):
        log(values, lambda *_: None, weight=1)
    with pytest.raises(UsageError, match="a function that writes"):
        log({"loss": 1.0}, None, weight=1)  # type: ignore[arg-type]
