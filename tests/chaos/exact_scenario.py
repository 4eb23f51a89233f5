"""A job of logical workers under faults, whose state is proven bit by bit after each step."""

from __future__ import annotations

from typing import Any, ClassVar

from fault_scenario import FAULTY, FaultScenario
from logical_runs import EPOCH, LOGICAL, alone, digests
from test_tensorflow_logical import EPOCH as TF_EPOCH
from test_tensorflow_logical import SCRIPT as TF_LOGICAL
from test_tensorflow_logical import alone as alone_in_tensorflow

LOGICAL_WORKERS = 8


class ExactScenario(FaultScenario):
    """A job of logical workers, whose state is proven step by step."""

    samples = 200  # those of scripts/logical.py
    script = FAULTY
    options = ("--logical", str(LOGICAL_WORKERS))
    trains = LOGICAL
    logical_workers: ClassVar[int] = LOGICAL_WORKERS
    steps_of_epoch: ClassVar[int] = EPOCH[LOGICAL_WORKERS]

    def begin(self, np: int, max_np: int, min_np: int = 1) -> None:
        self.environment |= {"EDL_TEST_SCRIPT": self.trains.name}
        super().begin(np, max_np, min_np)

    def words(self) -> list[str]:
        return ["--out", str(self.reports_in), "--epochs", str(self.epochs)]

    def expected(self) -> dict[int, str]:
        """Return the digests by step of one process, which nothing disturbs."""
        return alone(self.directory / "alone", self.logical_workers, self.epochs, self.end_s)

    def prove(self, workers: int | None = None, code: int = 0) -> list[dict[str, Any]]:
        """Let the job end, and compare each step with that of one process."""
        self.hurry()
        assert self.end(self.end_s) == code, self.describe("it failed")
        found, expected = digests(self.reports_in), self.expected()
        wrong = sorted(step for step in expected if found.get(step) != expected[step])
        assert not wrong, self.describe(f"other bits, or none, in the steps {wrong}")
        self._nobody_is_left()
        return [{"steps": len(found)}]


class TensorFlowExactScenario(ExactScenario):
    """The same in TensorFlow, by a loop with a ``tf.function``."""

    way: ClassVar[str] = "function"
    samples = 46  # those of scripts/tf_logical.py
    options = ("--logical", "4")
    trains = TF_LOGICAL
    logical_workers = 4
    steps_of_epoch = TF_EPOCH

    def words(self) -> list[str]:
        return [*super().words(), "--way", self.way]

    def expected(self) -> dict[int, str]:
        """Return the digests by step of one process, which nothing disturbs."""
        directory = self.directory / "alone"
        return alone_in_tensorflow(directory, self.way, self.epochs, self.end_s)


class FitExactScenario(TensorFlowExactScenario):
    """The same by Keras' ``fit``."""

    way = "fit"
