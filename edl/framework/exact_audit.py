"""Compare what two workers compute for the same logical workers, on request (``--exact-audit``).

:class:`ExactAudit` is told the digests of each pass, and compares them at the end of the step;
:mod:`edl.core.step.exact_audit` says what is trained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from edl.core.events import ExactAuditDetails
from edl.core.plural import counted
from edl.core.step.aligned import AlignedSource
from edl.core.step.batch import Batch
from edl.core.step.exact_audit import AuditMismatch, AuditResult, AuditTable, Pass
from edl.errors import UsageError
from edl.worker.worker import Worker

DIFFERS = (
    "exact audit: in step {step} {name} of logical worker {logical} is not the same when {by} "
    "computes it again, from the same weights, samples and seeds. Something else enters the "
    "result: the section Audit of docs/guides/exact.md says what to look for"
)


class ExactAudit:
    """The comparison of the passes of audited steps, in one worker.

    Args:
        worker: the worker of this process.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._step = -1  # that the passes are of
        self._passes: dict[Pass, Mapping[str, int]] = {}
        self._steps = self._compared = self._apart = 0  # since the last event
        self._newest: Batch | None = None
        self._found: AuditResult | None = None

    @property
    def is_on(self) -> bool:
        """Whether the open step is audited; the same on all workers."""
        return self._worker.loader.sampler.audits > 0 and not self._worker.warming_up

    def begin_pass(self, step: int) -> None:
        """Note the batch that the script gets now, in the open step with the number ``step``."""
        if step != self._step:
            self._step, self._passes = step, {}
        self._newest = self._worker.loader.engine.batches.newest

    def end_pass(self, digests: Callable[[], Mapping[str, int]]) -> None:
        """Note the results of the pass that has ended, if its step is audited.

        A padding batch has none.

        Args:
            digests: returns for each value that the pass has computed its digest, by its name.
        """
        batch, loader = self._newest, self._worker.loader
        if batch is None or not self.is_on or not (batch.repeats or loader.batch_weight):
            return
        source = loader.progress.source
        logical = batch.position % source.batch_size // source.units.at(batch.position)
        self._passes[Pass(logical, batch.repeats)] = digests()

    def compare(
        self, names: Sequence[str], logical: int, together: Callable[[list[float], str], Any]
    ) -> None:
        """Compare the passes of all workers; do nothing in a step that is not audited.

        All workers call it at the end of the step, and :meth:`finish` afterwards. Where a ring
        breaks, the repaired step is not audited.

        Args:
            names: the names of all values, the same on all workers and in the same order.
            logical: the number of logical workers that train in the step.
            together: a function that returns the element-wise sum ("sum") of all workers' lists.

        Raises:
            RingBroken: ``together`` has raised it.
        """
        self._found = None
        if self.is_on:
            table = AuditTable(logical, names)
            own = table.filled(self._worker.id, self._passes)
            self._found = table.compare(together(own, "sum"))

    def finish(self) -> None:
        """Draw the conclusion from the comparison, if there was one.

        Raises:
            UsageError: a result differs; all workers raise it.
        """
        found, self._found = self._found, None
        if found is None:
            return
        if found.difference is not None:
            raise UsageError(self._describe(found.difference))
        self._steps, self._compared = self._steps + 1, self._compared + found.compared
        self._apart += found.on_two_workers
        if self._worker.loader.sampler.audits == 1 or self._is_last_of_epoch():
            self._log()

    def _describe(self, found: AuditMismatch) -> str:
        """Return the error message about a difference."""
        first, second = f"w{found.worker}", f"w{found.repeated_by}"
        by = first if first == second else f"{second} and not {first}"
        step, logical = self._worker.step + 1, found.logical
        return DIFFERS.format(step=step, name=found.name, logical=logical, by=by)

    def _is_last_of_epoch(self) -> bool:
        """Return whether no global batch of the epoch is left after the open step."""
        source, batches = self._worker.loader.progress.source, self._worker.loader.engine.batches
        assert isinstance(source, AlignedSource)
        positions = [batch.position for batch in batches.untrained]
        return (
            bool(positions)
            and max(positions) // source.batch_size == -(-source.total // source.batch_size) - 1
        )

    def _log(self) -> None:
        """Add an event about the audited steps since the last one."""
        steps, compared, apart = self._steps, self._compared, self._apart
        self._steps = self._compared = self._apart = 0
        if not compared:
            return
        by = "another worker" if apart else "the only worker"
        twice = f"{by} has trained {counted(compared, 'logical worker')} a second time"
        reason = f"in {counted(steps, 'step')} {twice}, with the same bits"
        self._worker.log_event(ExactAuditDetails(steps, compared, apart), reason)
