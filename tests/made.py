"""Records for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from edl.records import Assigned, Desired, Job
from edl.spec import JobSettings, JobSpec, Sizes

SIZES = {one.name for one in fields(Sizes)}
SETTINGS = {one.name for one in fields(JobSettings)}
COMMAND = ("python", "train.py")


def make_job(name: str = "digits", **changes: Any) -> Job:
    """Return a job of 1 to 4 workers that starts with 2, unless ``changes`` say otherwise."""
    return changed(Job(name, JobSpec(COMMAND, 2, Sizes(1, 4))), **changes)


def changed(job: Job, **changes: Any) -> Job:
    """Return the job with other values of any of its fields, those of its spec included."""
    sizes = {k: changes.pop(k) for k in SIZES & changes.keys()}
    settings = {k: changes.pop(k) for k in SETTINGS & changes.keys()}
    spec = {k: changes.pop(k) for k in {"command", "np", "cwd"} & changes.keys()}
    new = replace(
        job.spec,
        sizes=replace(job.spec.sizes, **sizes),
        settings=replace(job.spec.settings, **settings),
        **spec,
    )
    return replace(job, spec=new, **changes)


def wanted(hosts: Mapping[str, int], by_slot: bool = False) -> dict[str, Any]:
    """Return the fields of a snapshot for so many desired and assigned workers on each host."""
    return {"desired": Desired(dict(hosts)), "assigned": Assigned(dict(hosts), by_slot)}


class Clock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s
