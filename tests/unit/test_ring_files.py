"""What Horovod's own settings are while a ring is built."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from edl.errors import ConfigError
from edl.ring.gloo import GlooConnection, files_of_ring, refuse_other_libraries
from edl.ring.ring import WorkerTopology

USER = {"HOROVOD_TIMELINE": "/logs/timeline.json", "HOROVOD_AUTOTUNE_LOG": "tuning"}


def test_the_files_of_a_ring_have_its_generation_in_their_names() -> None:
    assert files_of_ring(USER, 3) == {
        "HOROVOD_TIMELINE": "/logs/timeline.g3.json",
        "HOROVOD_AUTOTUNE_LOG": "tuning.g3",
    }


def test_a_world_of_one_opens_no_file_that_a_ring_may_write_just_now() -> None:
    assert files_of_ring(USER, None) == {
        "HOROVOD_TIMELINE": "DYNAMIC",  # hvd.start_timeline() still finds it enabled
        "HOROVOD_AUTOTUNE_LOG": None,
    }


@pytest.mark.parametrize("generation", [None, 3])
def test_what_is_not_set_stays_so_and_a_timeline_may_wait_for_its_start(
    generation: int | None,
) -> None:
    nothing = {"HOROVOD_TIMELINE": None, "HOROVOD_AUTOTUNE_LOG": None}
    assert files_of_ring({}, generation) == nothing
    waits = {"HOROVOD_TIMELINE": "DYNAMIC"}
    assert files_of_ring(waits, generation) == nothing | waits


@pytest.mark.parametrize("name", ["HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"])
def test_only_gloo_can_change_a_ring(name: str) -> None:
    refuse_other_libraries({name: "GLOO"})
    refuse_other_libraries({})
    with pytest.raises(ConfigError, match=f"{name} is mpi, .*: unset it"):
        refuse_other_libraries({name: "mpi"})


@pytest.mark.parametrize(("asked", "level"), [(None, "fatal"), ("warning", "warning")])
def test_horovod_logs_no_error_at_a_death_unless_it_is_asked_to(
    asked: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", {} if asked is None else {"HOROVOD_LOG_LEVEL": asked})
    levels: list[str] = []
    binding: Any = SimpleNamespace(init=lambda: levels.append(os.environ["HOROVOD_LOG_LEVEL"]))
    GlooConnection(binding, "127.0.0.1", 1.0).open(WorkerTopology(0, 1, 0, 1, 0, 1, 0), None)
    assert levels == [level]
