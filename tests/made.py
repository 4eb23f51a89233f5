"""Records for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edl.core.records import Job
from edl.core.sizes import Sizes

SIZES = ("min_np", "max_np", "sizes", "size_step")


def make_job(name: str = "digits", np: int = 2, **changes: Any) -> Job:
    """A job of 1 to 4 workers, unless ``changes`` say otherwise."""
    sizes = {"min_np": 1, "max_np": 4} | {k: changes.pop(k) for k in SIZES if k in changes}
    changes.setdefault("command", ("python", "train.py"))
    return Job(name=name, np=np, sizes=Sizes(**sizes), **changes)


def resized(job: Job, **changes: Any) -> Job:
    """The job with other ``changes``, those of its sizes included."""
    sizes = {k: changes.pop(k) for k in SIZES if k in changes}
    return replace(job, sizes=replace(job.sizes, **sizes), **changes)
