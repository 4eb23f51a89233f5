"""A job of logical workers under faults, whose state is proven bit by bit after each step."""

from __future__ import annotations

from typing import Any

from fault_scenario import FAULTY, FaultScenario
from logical_runs import LOGICAL, alone, digests

LOGICAL_WORKERS = 8


class ExactScenario(FaultScenario):
    """A job of logical workers, whose state is proven step by step."""

    samples = 200  # those of scripts/logical.py
    script = FAULTY
    options = ("--logical", str(LOGICAL_WORKERS))

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.environment |= {"EDL_TEST_SCRIPT": LOGICAL.name}
        super().begin(np, max_np, min_np)

    def words(self) -> list[str]:
        return ["--out", str(self.reports_in), "--epochs", str(self.epochs)]

    def prove(self, workers: int | None = None, code: int = 0) -> list[dict[str, Any]]:
        """Let the job end, and compare each step with that of one process."""
        self.hurry()
        assert self.end(self.end_s) == code, self.describe("it failed")
        found = digests(self.reports_in)
        expected = alone(self.directory / "alone", LOGICAL_WORKERS, self.epochs, self.end_s)
        wrong = sorted(step for step in expected if found.get(step) != expected[step])
        assert not wrong, self.describe(f"other bits, or none, in the steps {wrong}")
        self._nobody_is_left()
        return [{"steps": len(found)}]
