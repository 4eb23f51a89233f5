"""What a scheduler outside of edl is told of a job."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from cluster_world import Batches, Request

from edl.cli.jobs import hint_lines
from edl.cluster.status import SchedHints, SchedulerHints, scheduler_hints
from edl.cluster.view import JobMeasurements, JobView
from edl.policy.step_time import StepTimeSample

STEPS = (
    StepTimeSample(1, 1, 64, 0.9),
    StepTimeSample(2, 1, 32, 0.6),
    StepTimeSample(4, 2, 16, 0.5),
)


def hints(request: Request, **known: object) -> SchedulerHints:
    measured = JobMeasurements(**known)  # type: ignore[arg-type]
    return scheduler_hints(JobView("a", 1, request, measured=measured), 100.0)


def test_the_fields_are_adaptdl_s() -> None:
    """Its jobs send no other fields, and assert so (`post_sched_hints`)."""
    assert {one.name for one in fields(SchedHints)} == {
        "initBatchSize",
        "localBszBounds",
        "globalBatchSize",
        "maxBatchSize",
        "maxProfiledReplicas",
        "gradientAccumulation",
        "gradParams",
        "perfParams",
    }


def test_what_was_measured_is_told() -> None:
    batch = Batches(32, 512, set_by_policy=True)
    found = hints(Request(batch=batch), steps=STEPS, noise_scale=320.0, global_batch=64, left=6400)
    told = found.sched_hints
    assert (told.initBatchSize, told.globalBatchSize, told.maxBatchSize) == (32, 64, 512)
    assert told.maxProfiledReplicas == 4
    assert (found.min, found.max, found.noise_scale, found.samples_left) == (1, 4, 320.0, 6400)
    assert [(one.np, one.samples_per_s) for one in found.throughput] == [
        (1, pytest.approx(64 / 0.9)),
        (2, pytest.approx(64 / 0.6)),
        (4, pytest.approx(64 / 0.5)),
    ]
    params = told.perfParams
    assert params is not None
    computed = params.alpha_c + params.beta_c * 64
    assert computed == pytest.approx(0.9, rel=0.05)
    reduced = params.alpha_r**params.gamma
    two = ((params.alpha_c + params.beta_c * 32) ** params.gamma + reduced) ** (1 / params.gamma)
    assert two == pytest.approx(0.6, rel=0.05)
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("scale", [1, 2, 8])
def test_adaptdl_s_efficiency_is_edl_s(scale: int) -> None:
    told = hints(Request(batch=Batches(32, 512)), noise_scale=320.0).sched_hints.gradParams
    assert told is not None
    theirs = (told.var + told.norm) / (told.var / scale + told.norm) / scale
    assert theirs == pytest.approx((320 + 32) / (320 + 32 * scale))


def test_nothing_is_known_of_a_new_job() -> None:
    found = hints(Request(min=2, max=4), noise_scale=float("inf"))
    told = found.sched_hints
    assert (told.perfParams, told.gradParams, told.maxProfiledReplicas) == (None, None, 0)
    assert (told.maxBatchSize, told.globalBatchSize, found.noise_scale) == (None, None, None)
    assert hint_lines(found)[0] == "workers      2 to 4; it asks for 4"
    assert "not known" in hint_lines(found)[2]
    json.dumps(found.to_json(), allow_nan=False)
