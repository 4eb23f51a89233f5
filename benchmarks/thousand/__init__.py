"""What a thousand workers cost, measured with stand-ins.

They do what a worker does to the part that is measured, and nothing else: one machine is enough.

``python -m benchmarks --only thousand`` writes benchmarks/results/thousand.md, a section from each
module of this package. A further one is a module with ``measure``, and ``section``, which makes a
:class:`~benchmarks.page.Section` of what was found; both stand in MEASUREMENTS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.page import Section
from benchmarks.thousand import rendezvous, step_record, zookeeper

TITLE, COMMAND = "What a thousand workers cost", 'make bench ARGS="--only thousand"'
HOW = "Stand-ins take the place of workers, on the same machine."

MEASUREMENTS: dict[str, tuple[Callable[[Callable[[str], None]], Any], Callable[[Any], Section]]] = {
    "rendezvous": (rendezvous.measure, rendezvous.section),
    "zookeeper": (zookeeper.measure, zookeeper.section),
    "step_record": (step_record.measure, step_record.section),
}
