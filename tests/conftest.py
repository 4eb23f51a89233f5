"""Hypothesis profiles: `ci` repeats the same examples every time, `quick` is for the desk."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    database=None,
    suppress_health_check=SLOW_MACHINE,
)
settings.register_profile(
    "quick",
    deadline=None,
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=SLOW_MACHINE,
)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5000,
    stateful_step_count=80,
    suppress_health_check=SLOW_MACHINE,
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "quick")
)
