"""Each setting of Horovod's, while the ring changes: right sums, no crash, no stand-still.

What a process keeps of a setting over `hvd.shutdown()` and `hvd.init()` is not what a newcomer
begins with, so a setting that is harmless in one ring may end the next one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod
import pytest
from ring_settings import PLAN, STEPS, TRIED, VICTIM, VICTIM_STEP, RingSettings

pytestmark = pytest.mark.integration

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "horovod-settings.md"
ROWS = dict(re.findall(r"^\| `(\w+)` \| [^|]*\| ([^|]+) \|$", PAGE.read_text("utf-8"), re.M))
NOT_SETTINGS = re.compile("HOROVOD_(PROCESS_SET_ERROR|BOOL|U?INT|FLOAT|WITH_|SPARK_).*")
CASES = [
    pytest.param(settings, id=f"{name}-{number}")
    for name, tried in TRIED.items()
    for number, settings in enumerate(tried)
]


@pytest.fixture(scope="module")
def rings() -> Iterator[RingSettings]:
    with RingSettings() as one:
        yield one


@pytest.mark.long
@pytest.mark.parametrize("settings", CASES)
def test_rings_that_change_under_a_setting(
    rings: RingSettings, settings: dict[str, str], tmp_path: Path
) -> None:
    check(rings.run(settings, tmp_path))


def check(results: dict[int, Any]) -> None:
    """Nobody but VICTIM has died, and all sums were right in all rings."""
    for worker in sorted({worker for planned in PLAN for worker in planned.workers}):
        expected = [
            {"ring": number, "wrong": 0, "steps": VICTIM_STEP + 1 if planned.dies else STEPS}
            for number, planned in enumerate(PLAN, 1)
            if worker in planned.workers
        ]
        assert results.get(worker) == ("killed" if worker == VICTIM else expected)


def test_each_ring_is_tuned_and_writes_its_own_files(rings: RingSettings, tmp_path: Path) -> None:
    """Neither the next ring nor a newcomer that warms up empties them."""
    names = {"HOROVOD_TIMELINE": "timeline.json", "HOROVOD_AUTOTUNE_LOG": "tuning.csv"}

    check(rings.run(TRIED["HOROVOD_AUTOTUNE"][0] | names, tmp_path))

    timelines = sorted(tmp_path.glob("timeline.*"), key=number_of)
    check_timelines(timelines)
    assert len(list(tmp_path.glob("tuning.g*.csv"))) == len(list(tmp_path.glob("t*.csv")))
    assert len(list(tmp_path.glob("tuning.g*.csv"))) == len(PLAN)


@pytest.mark.long
def test_a_timeline_that_is_started_in_each_ring(rings: RingSettings, tmp_path: Path) -> None:
    """What another rank has sent before rank 0 starts it is not in there."""
    check(rings.run({"HOROVOD_TIMELINE": "DYNAMIC"}, tmp_path))

    check_timelines(sorted(tmp_path.glob("started.*"), key=number_of), ranks=1)


def check_timelines(timelines: list[Path], ranks: int | None = None) -> None:
    """There is one for each ring, and it tells of its first ``ranks`` ranks; None: of all."""
    assert len(timelines) == len(PLAN)
    for timeline, planned in zip(timelines, PLAN, strict=True):
        if not planned.dies:  # whoever wrote it was killed
            events = json.loads(timeline.read_text())
            ready = {event["name"] for event in events if event.get("ph") == "X"}
            assert ready >= {str(rank) for rank in range(ranks or len(planned.workers))}


def number_of(file: Path) -> int:
    return int(file.name.split(".")[1].removeprefix("g"))


def test_the_docs_have_a_row_for_each_variable() -> None:
    folder = Path(horovod.__file__).parent
    known = {
        name.decode()
        for library in folder.rglob("mpi_lib*.so")
        for name in re.findall(rb"HOROVOD_[A-Z0-9_]+", library.read_bytes())
    }
    for module in folder.rglob("*.py"):
        known |= set(re.findall(r"['\"](HOROVOD_[A-Z0-9_]+)['\"]", module.read_text("utf-8")))
    assert {name for name in known if not NOT_SETTINGS.fullmatch(name)} <= set(ROWS)
    works = {name for name, said in ROWS.items() if said.startswith("works")}
    assert works == set(TRIED)
