"""A job that saves no checkpoint: who may halt it, what is said of what it loses, and its price."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_world import Hints, World, running
from clusters import Steps, decide, job, nodes

from edl.cluster.lifecycle import LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.policies.edl import EdlPolicy

LONG = {"min": 2, "max": 2, "hints": Hints(duration_s=100_000.0)}
SHORT = {"min": 2, "max": 2, "hints": Hints(duration_s=100.0)}


def trains(saves: bool, preemptible: bool | None) -> World:
    world = running(2, policy="edl", long={**LONG, "preemptible": preemptible})
    one = world.jobs["long"]
    assert one.run is not None
    one.run.saves = saves
    one.measured = replace(one.measured, done_steps=500)
    world.now_s += 60.0
    return world


@pytest.mark.parametrize(
    ("saves", "preemptible", "priority", "is_halted"),
    [
        (False, None, 0, False),
        (False, None, 1, True),
        (False, True, 0, True),
        (True, None, 0, True),
        (False, False, 1, False),
    ],
)
def test_who_halts_a_job(
    saves: bool, preemptible: bool | None, priority: int, is_halted: bool
) -> None:
    world = trains(saves, preemptible)
    world.submit("short", **SHORT)
    world.want("short", priority=priority)
    world.rounds(60)
    lost = "it saves no checkpoint, and loses 500 steps"
    story = [line for line in world.story if line.startswith("long: running -> halting")]
    assert bool(story) is is_halted, world
    if is_halted and not saves:
        assert lost in story[0]
        [after] = [line for line in world.story if line.startswith("long: halting -> queued")]
        assert after.endswith("; it saves no checkpoint: 500 steps were lost")
        assert "loses" not in after
        assert "preempted: waits" not in story[0]
    elif is_halted:
        assert lost not in story[0]
    else:
        assert world.state("long") is LifeState.RUNNING


def test_what_a_halt_costs_is_in_the_price() -> None:
    cheap = job("a", 2, min_slots=2, max_slots=2, arrival_s=100.0, model=Steps(100_000.0))
    short = job("b", 2, min_slots=2, max_slots=2, arrival_s=100.0, model=Steps(1000.0))
    present = {"a": (("n0", 2),)}

    def has(a: object) -> set[str]:
        return set(decide(EdlPolicy(), [a, short], nodes(2), present).placements)  # type: ignore[list-item]

    assert has(cheap) == {"b"}
    assert has(replace(cheap, lost_s=3000.0)) == {"a"}
    assert has(replace(cheap, start_s=3000.0)) == {"a"}


def test_a_long_start_is_work_that_is_left() -> None:
    quick = job("quick", 1, max_slots=1, arrival_s=100.0)
    slow = replace(quick, name="slow", start_s=600.0)
    assert set(decide(EdlPolicy(), [slow, quick], nodes(1)).placements) == {"quick"}


def test_an_older_edl_reads_the_default() -> None:
    manifest = JobManifest("j", ("python",), 1, 1, cwd="/")
    assert "preemptible" not in manifest.to_json()
    assert JobManifest.from_json(manifest.to_json()) == manifest
    written = JobManifest.from_json({**manifest.to_json(), "preemptible": True})
    assert written.to_json()["preemptible"] is True
