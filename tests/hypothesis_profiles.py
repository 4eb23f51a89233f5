"""Profiles of hypothesis: `ci` repeats the same examples every time, `quick` is for the desk.

Only the folders whose tests draw examples import this module: it takes a process of pytest 0.4 s.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=12,
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
settings.register_profile(  # to see a failure again without minutes of shrinking
    "replay",
    settings.get_profile("quick"),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "quick")
)
