"""The counting model in TensorFlow, in all three ways to train: the same deaths as PyTorch's.

Many in one job, one after the other, for a worker takes seconds to import TensorFlow.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from fault_scenario import START_S, Fault, even, fault, fault_scenario, refilled, survives, training

from edl import failpoints

pytestmark = [pytest.mark.chaos]

MODES = ("function", "fit", "fits", "graph")


class Case(NamedTuple):
    """Faults, and a job for them; it is scaled out when ``max_np`` is larger than ``np``."""

    faults: Sequence[Sequence[Fault]]
    np: int
    max_np: int
    min_np: int = 1


CASES = {
    "in an exchange": Case(
        [
            [fault("exchange", "plain", size=2)],
            [fault("exchanged", "leader", size=2)],
            [fault("answered", "plain", signal="MISS"), fault("exchanged", "leader", size=3)],
        ],
        np=3,
        max_np=3,
    ),
    "in a step": Case(
        [
            [fault("boundary", "plain", size=2)],
            [fault("step", "leader", size=2)],
            [fault("gradient", "plain", size=2)],
            [fault("records", "leader", size=2)],
            [fault("averaged", "leader", size=2, signal="MISS")],
            [fault("reduced", "plain", size=2)],
            [fault("applied", "leader", size=2)],
        ],
        np=4,
        max_np=4,
    ),
    "in a switch": Case(
        [
            [fault("build", "first"), fault("built", "first")],
            [fault("agreed", "plain", after=1, size=3)],
            [fault("closed", "leader", after=1)],
            refilled(4),
            [fault("build", "plain", after=1)],
            [fault("built", "leader", after=1)],
            refilled(4),
            [fault("broadcast", "plain", after=1)],
        ],
        np=3,
        max_np=4,
    ),
    "as a newcomer, below min_np": Case(
        [
            [fault("gradient")],
            [fault("warmed_up", "new")],
            [fault("build", "new")],
            [fault("built", "new")],
            [fault("broadcast", "new")],
        ],
        np=3,
        max_np=3,
        min_np=3,
    ),
    "in the repair of another": Case(
        [
            group
            for number, point in enumerate(("broken", "reported", "build", "built", "broadcast"))
            for first, second in [("plain", "leader") if number % 2 else ("leader", "plain")]
            for group in ([fault("gradient", first, size=3)], [fault(point, second, after=0)])
        ],
        np=4,
        max_np=4,
    ),
    "leader while it decides, two at once, other signals": Case(
        [
            [fault("deciding", "leader")],
            [fault("gradient", "plain", size=3)],
            [fault("decided", "leader", after=0)],
            [fault("records", "leader", size=3), fault("records", "plain", size=3)],
            [fault("gradient", "plain", signal="STOP", size=2)],
            [fault("gradient", "leader", signal="TERM", size=3)],
            [fault("finish", "plain")],
        ],
        np=3,
        max_np=4,
    ),
}


def test_every_named_point_has_its_death() -> None:
    tried = {one["point"] for case in CASES.values() for group in case.faults for one in group}
    # Keras adds up gradients by itself; PyTorch's deaths there are in test_points.py.
    assert tried == {*failpoints.NAMES, "answered"} - {"accumulated"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_deaths(case: Case, mode: str, tmp_path: Path, zk_hosts: str) -> None:
    at_the_end = case.faults[-1][0]["point"] == "finish"
    with fault_scenario(
        tmp_path,
        zk_hosts,
        np=case.np,
        min_np=case.min_np,
        max_np=case.max_np,
        faults=case.faults,
        environment=training(mode),
        epochs=4,
        throttled=even(0.3),
        end_s=400.0,
    ) as job:
        job.wait_for_step(3, START_S)
        if case.max_np > case.np:
            job.wait_for_size(case.np)  # who died as it began is replaced: a switch of its own
            job.scale(case.max_np)
        job.wait_for_strikes(to_come=int(at_the_end))
        job.wait_for_ends()  # or one that leaves would be taken off what is wanted afterwards
        job.scale(max(2, case.min_np))  # no more replacements
        job.prove(code=137 if at_the_end else 0)


@pytest.mark.parametrize("mode", ["function", "fit"])
@pytest.mark.parametrize("words", [("--accumulate", "3"), ("--stream", "shards")], ids="".join)
def test_deaths_while_keras_accumulates_or_reads_a_stream(
    words: tuple[str, str], mode: str, tmp_path: Path, zk_hosts: str
) -> None:
    """`gradient_accumulation_steps`: what it has added up travels, and each batch counts once."""
    settings = {"faults": CASES["in a step"].faults, "environment": training(mode)}
    more = ("--exchange", "2", *words)
    survives(tmp_path, zk_hosts, np=4, max_np=4, more=more, throttled=even(0.3), **settings)
