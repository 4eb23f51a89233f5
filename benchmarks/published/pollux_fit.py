"""Fit the model of a job's step time as the simulator of Pollux does: :func:`fit_parts`.

:mod:`edl.policy.step_time` has the model and the fit. The details of the fit (such as
its loss) are those of the artifact of Pollux (OSDI 2021, ``goodput.py``; section 4.1 of the paper
has the reasons), so that completion times can be compared with the published ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from edl.policy.step_time import StepTime, StepTimeSample
from edl.policy.step_time_fit import FitOptions, Loss, fit

PUBLISHED = FitOptions(
    loss=Loss.RMSLE,
    constant_share=0.5,
    far_factor=1.1,
    separable=False,
    # A simulation fits thousands of models. Objectives that differ by less than the tolerance are
    # equally good, and the search goes on after each reweighting.
    rounds=10,
    tolerance=1e-6,
)


def fit_parts(measured: Sequence[StepTimeSample]) -> StepTime:
    """Return the step-time model whose parameters explain the measurements of one job best."""
    # each with its time for computing (`compute_s`)
    return fit(measured, PUBLISHED)
