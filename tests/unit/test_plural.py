from __future__ import annotations

from edl.text import counted, names, workers, workers_train


def test_workers_are_counted_in_english() -> None:
    assert [workers(n) for n in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert [counted(n, "slot") for n in (0, 1, 2)] == ["0 slots", "1 slot", "2 slots"]
    assert [workers_train(n) for n in (1, 2)] == ["1 worker trains", "2 workers train"]


def test_workers_are_named_as_edl_status_does() -> None:
    assert (names(()), names((3,)), names((1, 3))) == ("", "w3", "w1, w3")
