"""The ring breaks, and each worker has got another part of the step: all go on alike.

What a survivor of a break was in the midst of: it *missed* the step that others completed; it
*completed* it, and met the break in the records of the next; it had *not begun*, between two steps;
it was in the *records only*, its gradients not sent; or *amid the gradients*, and nobody completed.
A step that some complete is over, so the first three can meet each other, and the last three. Every
such pair happens here, in each way to train, and the counting model proves what came of it.

The ring is cut without a death, so one job goes through all of them; the last ones are a death.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from fault_scenario import START_S, even, training
from horovodrun import HorovodrunScenario
from scenario import Scenario, scenario

pytestmark = [pytest.mark.chaos]

SCRIPT = Path(__file__).resolve().parent / "scripts" / "histories.py"
GAP = 3  # steps between two histories
FIRST = 4  # the step of the first one
HAPPEN_S = 240.0


class Place(NamedTuple):
    """Where a worker is when the ring breaks, and its part in that; see scripts/histories.py."""

    point: str
    later: int
    action: str

    @property
    def met(self) -> tuple[int, ...]:
        """How many steps later the break may be met."""
        if self.point == "gradient":  # PyTorch's are sent before the records are awaited, so all
            return 0, 1  # of them may arrive, although the others miss the records
        return (1 if self.point == "applied" else self.later,)


LAST = -1  # the last step of an epoch


class History(NamedTuple):
    """A place for each rank; ``step``: another than the next one in line, or LAST."""

    places: Sequence[Place]
    step: int | None = None


MISSES = Place("averaged", 0, "miss")
NEXT_RECORDS = Place("records", 1, "pass")
NOT_BEGUN = Place("boundary", 1, "hold")
UNCOUNTED = Place("applied", 0, "hold")
NEXT_BATCH = Place("step", 1, "hold")
RECORDS_ONLY = Place("records", 0, "miss")
GRADIENTS = Place("gradient", 0, "pass")
APPLIES = Place("applied", 0, "pass")

# A worker that missed the step has no business beside one that is amid its gradients. 3 workers.
HISTORIES = {
    "not begun, in records, batch in hand": History(
        [Place("boundary", 0, "cut"), Place("records", 0, "pass"), Place("step", 0, "hold")]
    ),
    "missed, next records, next records": History([NEXT_RECORDS, MISSES, NEXT_RECORDS]),
    "missed, not begun, not counted": History([MISSES, NOT_BEGUN, UNCOUNTED]),
    "missed twice, next records": History([NEXT_RECORDS, MISSES, MISSES]),
    "missed, next records, not begun": History([NOT_BEGUN, NEXT_RECORDS, MISSES]),
    "missed, next records, next batch": History([MISSES, NEXT_BATCH, NEXT_RECORDS]),
    "missed by all": History([MISSES, MISSES, MISSES]),
    "records only, amid gradients, batch in hand": History(
        [RECORDS_ONLY, GRADIENTS, Place("step", 0, "hold")]
    ),
    "records only twice, amid gradients": History([GRADIENTS, RECORDS_ONLY, RECORDS_ONLY]),
    "amid gradients, all": History(
        [GRADIENTS, Place("gradient", 0, "cut"), Place("gradient", 0, "hold")]
    ),
    "missed the last of an epoch": History([APPLIES, MISSES, APPLIES], step=LAST),
    "missed, next records, dead": History(
        [NEXT_RECORDS, MISSES, Place("averaged", 0, "kill")], step=60
    ),
}  # fmt: skip


STEPS = [
    FIRST + GAP * number if history.step is None else history.step
    for number, history in enumerate(HISTORIES.values())
]


class RingFailure(Scenario):
    """A job whose ring breaks as :data:`HISTORIES` say."""

    samples = 500  # an epoch has 42 steps; the last one is uneven
    epochs = 2
    throttled = even(0.0)
    script = SCRIPT

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.places = self.directory / "places"
        self.places.mkdir()
        histories = [
            {"step": "last" if step == LAST else step, "places": history.places}
            for step, history in zip(STEPS, HISTORIES.values(), strict=True)
        ]
        self.environment |= {
            "EDL_TEST_HISTORIES": json.dumps(histories),
            "EDL_TEST_AVERAGES": "1",
            "EDL_TEST_PLACES": str(self.places),
        }
        super().begin(np, max_np, min_np)

    def check(self) -> None:
        for number, (name, history) in enumerate(HISTORIES.items()):
            if STEPS[number] == LAST:
                continue
            for rank, place in enumerate(history.places):
                if place.action != "kill":
                    met = json.loads((self.places / f"{number}.{rank}.broken").read_text())
                    later = met["step"] - STEPS[number]
                    assert later in place.met, self.describe(f"{name}: rank {rank} {met}")


class HorovodrunBroken(RingFailure, HorovodrunScenario):
    """The same, started by `horovodrun`."""


MODES = ("function", "fit", "graph", "eager", "plain", "hook")
WAYS = {
    "torch": {"EDL_TEST_SCRIPT": "counting.py"},
    **{mode: training(mode) for mode in MODES},
    **{f"{mode}, clipped": training(mode) | {"EDL_TEST_CLIP": "0.2"} for mode in MODES[:4]},
}
SHORT = ("function",)  # those of PyTorch are on loopback rings in `make test`


def met_alike(kind: type[RingFailure], way: str, directory: Path, zookeeper: str) -> None:
    environment = WAYS[way] | {"EDL_SWITCH_TIMEOUT_S": "30"}
    with scenario(directory, zookeeper, np=3, kind=kind, environment=environment) as job:
        job.wait_for_step(STEPS[0], START_S)
        last = job.places / f"{len(STEPS) - 1}.0.broken"
        job.wait(lambda _: last.exists(), "break after break", HAPPEN_S)
        job.prove()
        job.check()


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=[pytest.mark.chaos_short] * (way in SHORT)) for way in WAYS]
)
def test_whatever_each_had_of_the_step(way: str, tmp_path: Path, zk_hosts: str) -> None:
    met_alike(RingFailure, way, tmp_path, zk_hosts)


@pytest.mark.parametrize("way", ["torch", "function", "fit", "graph"])
def test_started_by_horovodrun(way: str, tmp_path: Path, zk_hosts: str) -> None:
    met_alike(HorovodrunBroken, way, tmp_path, zk_hosts)
