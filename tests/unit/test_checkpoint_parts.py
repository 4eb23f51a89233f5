"""All workers write a checkpoint together, each a part of the state."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_checkpoints import Start

from edl.checkpoint import format as files
from edl.checkpoint import format as parts_module
from edl.checkpoint import writer
from edl.checkpoint.location import Location, location
from edl.checkpoint.weights import checkpoint_at, newest, weights
from edl.errors import CheckpointError
from edl.job import state_share
from edl.job.state_share import WHOLE_STATE, RankArray, StateArray, StateShare, divide

Arrays = Mapping[str, np.ndarray[Any, Any]]


class Replica:
    framework = "torch"

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.own = dict(arrays), 7

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        sizes = [StateArray(array.nbytes, True) for array in self.arrays.values()]
        ranks = divide(sizes, share.size)
        return {
            "own": self.own if share.rank == 0 else None,
            "model": {
                name: array.copy() if rank == share.rank else RankArray(rank)
                for (name, array), rank in zip(self.arrays.items(), ranks, strict=True)
            },
        }

    def restore(self, state: Any) -> None:
        self.arrays, self.own = state["model"], state["own"]


def arrays(step: int, frozen: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    large = {f"layer{n}": np.arange(10_000, dtype=np.float32) * n + step for n in range(6)}
    still = {f"frozen{n}": np.arange(200_000.0) + n for n in range(frozen)}
    return {**large, **still, "bias": np.full(3, float(step))}


def workers(directory: Location, size: int, run: str = "r1") -> list[Start]:
    found = [Start(directory, run, sharded=True) for _ in range(size)]
    for one in found:
        one.checkpoints.writer.generation = 1
    found[0].checkpoints.writer.take_over(1)
    return found


def begin(ring: Sequence[Start], step: int, model: Arrays, write: Sequence[int]) -> None:
    for rank, one in enumerate(ring):
        one.progress.step = step
        if rank in write:
            share, replica = StateShare(rank, len(ring)), Replica(model)
            one.checkpoints.writer.save(one.at, replica, share)


def saved(ring: Sequence[Start], step: int, model: Arrays | None = None) -> None:
    begin(ring, step, arrays(step) if model is None else model, range(len(ring)))
    assert all(one.checkpoints.writer.wait(10) for one in ring)


def same(path: Location, model: Arrays) -> None:
    found = Replica({})
    found.restore(files.read_checkpoint(path).state)
    assert found.own == 7
    assert list(found.arrays) == list(model)
    for name, array in model.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)


def parts(directory: Path, step: int) -> list[Path]:
    return sorted(directory.glob(f"part-{step:012d}-*.safetensors"))


def part_of_rank_1(ring: Sequence[Start], directory: Path) -> Path:
    begin(ring, 10, arrays(10), [1])
    assert ring[1].checkpoints.writer.wait(10)
    (part,) = parts(directory, 10)
    return part


def reasons(one: Start) -> list[tuple[str, str]]:
    return [(kind, reason) for kind, _, reason in one.logged]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_parts_make_one_checkpoint(tmp_path: Path, size: int) -> None:
    ring = workers(tmp_path, size)
    saved(ring, 10)
    path = files.path_of(tmp_path, 10)
    same(path, arrays(10))
    assert newest(tmp_path).path == path
    assert path.stat().st_size < 10_000, "it only names the parts"
    written = [load_file(part) for part in parts(tmp_path, 10)]
    assert sorted(name for part in written for name in part) == sorted(
        f"model.{name}" for name in arrays(10)
    )
    assert len(written) == size
    assert all(written)
    assert ring[0].saved == [10]
    assert [reasons(one) for one in ring[1:]] == [[]] * (size - 1)
    ((kind, reason),) = reasons(ring[0])
    assert kind == "checkpoint"
    assert ": 0.2 MB, " in reason


def test_old_ones_are_removed_with_their_parts(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    for step in (10, 20, 30, 40, 50):
        saved(ring, step)
    assert len(list(tmp_path.glob("part-*"))) == 6
    for step in (30, 40, 50):
        same(files.path_of(tmp_path, step), arrays(step))


def test_a_part_that_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 says so, saves the next one alone and at once, and the one after it in parts."""
    monkeypatch.setattr(state_share, "WAIT_S", 0.3)
    monkeypatch.setattr(state_share, "WAIT_FACTOR", 0.0)
    ring = workers(tmp_path, 3)
    saved(ring, 10)
    begin(ring, 20, arrays(20), [0, 2])
    assert all(one.checkpoints.writer.wait(10) for one in ring)
    ((_, _), (kind, reason)) = reasons(ring[0])
    assert kind == "checkpoint_failed"
    assert reason.startswith(
        f"the checkpoint of step 20 was not written: the part of rank 1 was not in {tmp_path} "
        "after 0.3 s; all hosts must share this directory, and a worker that dies writes no part"
    )
    first, model = ring[0], arrays(21)
    first.progress.step = 21
    first.checkpoints.save_if_due(first.at, Replica(model), size=3)  # which sets when one is due
    assert not first.checkpoints.wants_parts(3)
    assert first.checkpoints.writer.wait(10)
    same(files.path_of(tmp_path, 21), model)
    first.checkpoints.hasten()
    assert first.checkpoints.wants_parts(3)
    assert not first.checkpoints.wants_parts(1)
    saved(ring, 30)
    same(files.path_of(tmp_path, 30), arrays(30))


def test_nobody_saves_in_parts_before_all_agree(tmp_path: Path) -> None:
    one = workers(tmp_path, 2)[0]
    one.progress.step = 5
    assert not one.checkpoints.wants_parts(2), "it is not known when one is due"
    one.checkpoints.save_if_due(one.at, Replica(arrays(5)), size=2)
    assert one.checkpoints.wants_parts(2)
    assert not one.checkpoints.writer.is_writing
    assert not files.checkpoint_files(tmp_path)
    one.checkpoints.save_if_due(one.at, Replica(arrays(5)), size=2, agreed=True)
    assert one.checkpoints.writer.is_writing, "it waits for the part of rank 1"
    assert not one.checkpoints.wants_parts(2)
    one.checkpoints.writer.hurry()
    assert one.checkpoints.writer.wait(10)


def test_the_state_before_the_first_step_is_saved_by_rank_0(tmp_path: Path) -> None:
    one = workers(tmp_path, 2)[0]
    one.progress.step = 0
    one.checkpoints.save_if_due(one.at, Replica(arrays(0)), size=2)
    assert one.checkpoints.writer.wait(10)
    same(files.path_of(tmp_path, 0), arrays(0))
    assert not list(tmp_path.glob("part-*"))


def test_parts_of_another_start_are_never_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that dies leaves a part of step 20; the job that goes on comes to step 20, too."""
    monkeypatch.setattr(state_share, "WAIT_S", 0.2)
    old = workers(tmp_path, 2)
    begin(old, 20, arrays(999), [1])
    assert old[1].checkpoints.writer.wait(10)
    (left_behind,) = parts(tmp_path, 20)
    ring = workers(tmp_path, 2, run="r2")
    begin(ring, 20, arrays(20), [0])
    assert ring[0].checkpoints.writer.wait(10)
    assert reasons(ring[0])[-1][0] == "checkpoint_failed"
    saved(ring, 20)
    same(files.path_of(tmp_path, 20), arrays(20))
    assert not left_behind.exists()
    same(files.path_of(tmp_path, 20), arrays(20))


def test_the_end_of_the_job_does_not_wait_for_parts(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    begin(ring, 20, arrays(20), [0])
    began = time.monotonic()
    first = ring[0]
    assert first.checkpoints.save_last(first.at, Replica(arrays(20)), timeout_s=20) == ""
    assert time.monotonic() - began < 10
    same(files.path_of(tmp_path, 20), arrays(20))
    assert [kind for kind, _ in reasons(first)] == ["checkpoint"]


def test_the_last_checkpoint_is_written_together(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    first, second = ring
    second.progress.step = first.progress.step = 20
    replica = Replica(arrays(20))
    second.checkpoints.save_last_part(second.at, replica, StateShare(1, 2), timeout_s=10)
    assert first.checkpoints.save_last(first.at, replica, timeout_s=20, size=2) == ""
    same(files.path_of(tmp_path, 20), arrays(20))
    assert len(parts(tmp_path, 20)) == 2


def test_the_last_checkpoint_is_whole_if_a_part_does_not_come(tmp_path: Path) -> None:
    first = workers(tmp_path, 2)[0]
    first.progress.step = 20
    replica = Replica(arrays(20))
    assert first.checkpoints.save_last(first.at, replica, timeout_s=2, size=2) == ""
    same(files.path_of(tmp_path, 20), arrays(20))
    assert [kind for kind, _ in reasons(first)] == ["checkpoint"]
    assert not any(one.file for one in files.read_records(files.path_of(tmp_path, 20)).values())


def test_a_damaged_part_is_a_sentence_and_the_checkpoint_before_is_used(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    for step in (10, 20):
        saved(ring, step)
    part = parts(tmp_path, 20)[1]
    content = bytearray(part.read_bytes())
    content[-5] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{part.name} is damaged: .* its checksum"):
        files.read_checkpoint(files.path_of(tmp_path, 20))
    again = Start(tmp_path, resume=tmp_path)
    again.replica = Replica({})
    assert again.restore() == 10
    part.unlink()
    with pytest.raises(CheckpointError, match=f"needs {part.name}, which is not beside it"):
        files.read_manifest(files.path_of(tmp_path, 20))


def test_a_torn_part_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system without a whole rename, such as some behind URLs."""
    monkeypatch.setattr(state_share, "WAIT_S", 0.2)
    monkeypatch.setattr(state_share, "WAIT_FACTOR", 0.0)
    ring = workers(tmp_path, 2)
    part = part_of_rank_1(ring, tmp_path)
    part.write_bytes(part.read_bytes()[:-1])
    begin(ring, 10, arrays(10), [0])
    assert ring[0].checkpoints.writer.wait(10)
    ((kind, reason),) = reasons(ring[0])
    assert kind == "checkpoint_failed"
    assert f"after 0.2 s ({part} is not whole); all hosts must share" in reason
    assert not files.checkpoint_files(tmp_path)
    assert ring[0].checkpoints.writer.parts_failed


def test_a_part_that_is_still_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it is seen where a file system shows half a file; rank 0 waits for the rest."""
    ring = workers(tmp_path, 2)
    part = part_of_rank_1(ring, tmp_path)
    whole = part.read_bytes()
    part.write_bytes(whole[:200])
    seen = threading.Event()

    def look(path: Location) -> parts_module.Part:
        try:
            return part_at(path)
        finally:
            seen.set()

    part_at = parts_module.part_at
    monkeypatch.setattr(parts_module, "part_at", look)
    begin(ring, 10, arrays(10), [0])
    assert seen.wait(10)
    assert ring[0].checkpoints.writer.is_writing
    part.write_bytes(whole)
    assert ring[0].checkpoints.writer.wait(10)
    same(files.path_of(tmp_path, 10), arrays(10))


def test_workers_that_hold_other_tensors(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    more = {**arrays(10), "adapter": np.zeros(100_000)}
    begin(ring, 10, more, [1])
    begin(ring, 10, arrays(10), [0])
    assert ring[0].checkpoints.writer.wait(10)
    ((kind, reason),) = reasons(ring[0])
    assert kind == "checkpoint_failed"
    assert "rank 0 and rank 1 hold different tensors: model." in reason


def test_half_written_and_given_up_parts_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed worker leaves half a file; a checkpoint that is torn keeps no part but its own."""
    monkeypatch.setattr(state_share, "WAIT_S", 0.1)
    ring = workers(tmp_path, 2)
    saved(ring, 10)
    (tmp_path / ".part-000000000005-00000000-00002-of-00002.safetensors.1.tmp").touch()
    begin(ring, 20, arrays(20), [1])
    assert ring[1].checkpoints.writer.wait(10)
    later = files.path_of(tmp_path, 9999)
    later.write_bytes(b"torn")
    damaged = files.path_of(tmp_path, 10)
    damaged.write_bytes(damaged.read_bytes()[:100])
    kept = parts(tmp_path, 10)
    for step in (30, 40, 50, 60):
        saved(ring, step)
    assert not list(tmp_path.glob(".part-*"))
    assert not parts(tmp_path, 20)
    assert len(list(tmp_path.glob("part-*"))) == 6
    assert kept[0] not in parts(tmp_path, 10), "keep=3: its checkpoint went, and so did its parts"


def test_hosts_that_share_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt fails; the parts of earlier ones do not fill the disk of the other host."""
    monkeypatch.setattr(state_share, "WAIT_S", 0.05)
    monkeypatch.setattr(state_share, "WAIT_FACTOR", 0.0)
    first, second = workers(tmp_path / "a", 2)[0], workers(tmp_path / "b", 2)[1]
    for step in (10, 20, 30):
        begin([first, second], step, arrays(step), [0, 1])
        assert first.checkpoints.writer.wait(10)
        assert second.checkpoints.writer.wait(10)
    assert [kind for kind, _ in reasons(first)] == ["checkpoint_failed"] * 3
    assert len(list((tmp_path / "b").glob("part-*"))) == 1
    assert reasons(second) == []


def test_a_state_that_cannot_be_stored_is_not_tried_at_each_boundary(tmp_path: Path) -> None:
    one = workers(tmp_path, 2)[0]
    one.progress.step = 5
    one.checkpoints.writer.parts_failed = True
    wrong: Any = Replica({})
    wrong.own = object()
    for _ in range(3):
        one.checkpoints.save_if_due(one.at, wrong, size=2)
    assert [kind for kind, _ in reasons(one)] == ["checkpoint_failed"]


def test_after_a_difference_rank_0_saves_alone_and_at_once(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    saved(ring, 10)
    first = ring[0]
    first.progress.step = 11
    first.checkpoints.save_if_due(first.at, Replica(arrays(11)), size=2)
    assert not first.checkpoints.writer.is_writing, "not due"
    first.checkpoints.distrust_parts()
    first.checkpoints.save_if_due(first.at, Replica(arrays(11)), size=2)
    assert first.checkpoints.writer.wait(10)
    assert not any(one.file for one in files.read_records(files.path_of(tmp_path, 11)).values())
    same(files.path_of(tmp_path, 11), arrays(11))


def test_old_files_that_cannot_be_removed_are_no_failed_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_directory: object, _step: int) -> None:
        raise PermissionError(1, "Operation not permitted", "part")

    ring = workers(tmp_path, 2)
    monkeypatch.setattr(writer, "remove_parts", denied)
    saved(ring, 10)
    assert [kind for kind, _ in reasons(ring[0])] == ["checkpoint"]
    assert not ring[0].checkpoints.writer.parts_failed


def test_a_part_that_is_written_again_after_the_same_step_stays_until_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job stops just after a checkpoint in parts: rank 0 may be about to name the first one."""
    ring = workers(tmp_path, 2)
    part = part_of_rank_1(ring, tmp_path)
    removed: list[Path] = []
    unlink = Path.unlink

    def noted(path: Path, missing_ok: bool = False) -> None:
        removed.append(path)
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", noted)
    begin(ring, 10, arrays(10), [1])
    assert ring[1].checkpoints.writer.wait(10)
    assert part not in removed
    assert part.exists()


def test_a_part_that_cannot_be_stored_is_no_event_of_the_job(tmp_path: Path) -> None:
    """Rank 0, which misses the part, records that."""
    second = workers(tmp_path, 2)[1]
    second.progress.step = 10
    wrong: Any = Replica(arrays(10))
    wrong.capture = lambda _share: {"own": object()}
    second.checkpoints.save_part(second.at, wrong, StateShare(1, 2))
    assert reasons(second) == []


def test_a_part_is_not_taken_for_the_model(tmp_path: Path) -> None:
    """It is a safetensors file, and its tensors alone would be read without a word."""
    ring = workers(tmp_path, 2)
    for step in (10, 20):
        saved(ring, step, arrays(step, frozen=2))
    for path in (parts(tmp_path, 20)[0], next(tmp_path.glob("unchanged-*"))):
        for read in (weights, checkpoint_at):
            with pytest.raises(
                CheckpointError, match=f"only some tensors .* give the .*{tmp_path}"
            ):
                read(path)


def test_what_does_not_change_lies_once_beside_the_parts(tmp_path: Path) -> None:
    ring = workers(tmp_path, 2)
    for step in (10, 20, 30):
        saved(ring, step, arrays(step, frozen=2))
    assert len(list(tmp_path.glob("unchanged-*"))) == 2, "each worker has written one"
    assert all(part.stat().st_size < 200_000 for part in parts(tmp_path, 30))
    same(files.path_of(tmp_path, 30), arrays(30, frozen=2))
    again = Start(tmp_path, run="r2", resume=tmp_path, sharded=True)
    again.replica = Replica({})
    assert again.restore() == 30


def test_it_is_written_to_a_url(tmp_path: Path) -> None:
    directory = location("memory://parts/17")
    ring = workers(directory, 3)
    for step in (10, 20, 30, 40):
        saved(ring, step)
        same(files.path_of(directory, step), arrays(step))
    assert len([name for name in files.names_in(directory) if name.startswith("part-")]) == 9
