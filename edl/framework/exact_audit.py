"""Compare what two workers compute for the same logical workers, on request (``--exact-audit``).

:class:`ExactAudit` is told the digests of each pass, and compares them at the end of the step;
:mod:`edl.core.step.exact_audit` says what is trained twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from edl.core.events import ExactAuditDetails, StateDiffersDetails
from edl.core.plural import counted
from edl.core.step.aligned import AlignedSource
from edl.core.step.batch import Batch
from edl.core.step.exact_audit import AuditMismatch, AuditTable, Pass
from edl.framework.exact_mean import Together, check_alike
from edl.worker.mismatch import let_leave
from edl.worker.worker import Worker

DIFFERS = (
    "exact audit of step {step}, logical worker {logical}: {workers} computed different values of "
    "{name} from the same weights, samples and seeds. Something else enters the result: the "
    "section Audit of docs/guides/exact.md says what to look for"
)


class ExactAudit:
    """The comparison of the passes of audited steps, in one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._step = -1  # that the passes are of
        self._passes: dict[Pass, Mapping[str, int]] = {}
        self._steps = self._compared = self._apart = 0  # since the last event
        self._has_said = False  # that this audit goes well so far
        self._newest: Batch | None = None

    @property
    def is_on(self) -> bool:
        """Whether the open step is audited; the same on all workers."""
        return self._worker.loader.sampler.audit.left > 0 and not self._worker.warming_up

    def begin_pass(self, step: int) -> None:
        """Note the batch that the script gets now, in the open step with the number `step`."""
        if step != self._step:
            self._step, self._passes = step, {}
        self._newest = self._worker.loader.engine.batches.newest

    def end_pass(self, digests: Callable[[], Mapping[str, int]]) -> None:
        """Note the results of the pass that has ended, if its step is audited."""
        batch, loader = self._newest, self._worker.loader
        if batch is None or not self.is_on or not (batch.repeats or loader.batch_weight):
            return  # a padding batch has no results
        source = loader.progress.source
        logical = batch.position % source.batch_size // source.units.at(batch.position)
        self._passes[Pass(logical, batch.repeats)] = digests()

    def compare(
        self,
        names: Sequence[str],
        logical: int,
        alike: Sequence[tuple[int, str]],
        together: Together,
    ) -> None:
        """Compare the passes of all workers in an audited step, before gradients are added up."""
        if not self.is_on:
            return
        check_alike(alike, together)  # first, because a difference here explains others
        table = AuditTable(logical, names)
        found = table.compare(together(table.filled(self._worker.id, self._passes), "sum"))
        if found.difference is not None:
            self._end(found.difference)
        self._steps, self._compared = self._steps + 1, self._compared + found.compared
        self._apart += found.on_two_workers
        left = self._worker.loader.sampler.audit.left - 1
        if left == 0 or not self._has_said or self._is_last_of_epoch():
            self._log(left)
            self._has_said = left > 0

    def _end(self, found: AuditMismatch) -> NoReturn:
        """End a newcomer whose result differs, or the job; see `compare`."""
        worker, loader = self._worker, self._worker.loader
        first, second = f"w{found.worker}", f"w{found.repeated_by}"
        by = f"{first} has twice" if first == second else f"{first} and {second} have"
        text = DIFFERS.format(
            step=worker.step + 1, name=found.name, logical=found.logical, workers=by
        )
        newcomer = found.differing_newcomer(loader.sampler.audit.newcomers)
        if newcomer is not None:
            worker.log_event(StateDiffersDetails((f"w{newcomer}",)), text)
            let_leave(worker.ring, loader.progress.members, [newcomer], text)
        worker.checkpointing.fail_together(text, worker.rank)  # rank 0 saves the state before

    def _is_last_of_epoch(self) -> bool:
        """Return whether no global batch of the epoch is left after the open step."""
        source, batches = self._worker.loader.progress.source, self._worker.loader.engine.batches
        assert isinstance(source, AlignedSource)
        positions = [batch.position for batch in batches.untrained]
        return (
            bool(positions)
            and max(positions) // source.batch_size == -(-source.total // source.batch_size) - 1
        )

    def _log(self, left: int) -> None:
        """Add an event about the audited steps since the last one; `left` more are to come."""
        steps, compared, apart = self._steps, self._compared, self._apart
        self._steps = self._compared = self._apart = 0
        if not compared:
            return
        by = "another worker" if apart else "the only worker"
        twice = f"{by} has trained {counted(apart or compared, 'logical worker')} a second time"
        reason = f"in {counted(steps, 'step')} {twice}, with the same bits"
        more = f"; {counted(left, 'audited step')} to come" if left else ""
        self._worker.log_event(ExactAuditDetails(steps, compared, apart), reason + more)
