"""Track which fits the script of one worker has done, if the script trains in phases.

A fit is one call of Keras' ``fit``. The script of a newcomer, or of a resumed job, also calls it
for the fits that the job has done already; these calls return without training, and so the script
*passes over* these fits (:mod:`edl.core.job.fits`). :class:`FitProgress` has a worker's record.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.core.job.fits import DoneFit, FitIsDone, ScriptFits
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.finishing import Finishing
from edl.worker.loader_steps import LoaderSteps
from edl.worker.shared_state import SharedState
from edl.worker.state_check import StateCheck
from edl.worker.switching import Switching

RESYNCS = 3  # at the end of a fit; what cannot be resynced shows in each whole comparison


class FitProgress:
    """One worker's record of its script's fits (calls of Keras' `fit`)."""

    def __init__(
        self,
        shared: SharedState,
        coordinator: Coordinator,
        checkpointing: Checkpointing,
        finishing: Finishing,
        loader: LoaderSteps,
        switching: Switching,
        check: StateCheck,
        exchange: Callable[[bytes], list[bytes]],
    ) -> None:
        self._shared = shared
        self._coordinator = coordinator
        self._checkpointing = checkpointing
        self._finishing = finishing
        self._loader = loader
        self._switching = switching
        self._check = check
        self._exchange = exchange
        self.passes_over = False  # the job had done the script's last fit before

    @property
    def begun(self) -> int:
        """The number of fits that the script has begun or passed over."""
        return self._shared.fits.begun

    @property
    def has_trained(self) -> bool:
        """Whether any worker has trained a sample in the fit that this script is in."""
        done = self._loader.progress.fits
        return self._loader.ledger.epochs_begun > (done[-1].until if done else 0)

    def of_job(self) -> ScriptFits:
        """Return the fits of another worker's script: it asks the ring, and waits."""
        return self._coordinator.script_of_job().fits

    def begin(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that the script begins a fit."""
        self._loader.progress.fits, self._loader.progress.stop = done, ""
        self._loader.progress.fit_stopped = ""
        self._loader.wants_to_stop = False
        self._finishing.has_trained_all = self.passes_over = False
        self._shared.fits = ScriptFits(done, len(done) + 1)

    def compare_states(self) -> None:
        """Compare and correct the states after a fit, for the script uses the model then."""
        for _ in range(RESYNCS):
            if self._check.is_same(self._exchange):
                return
            self._switching.between_steps(self._check.compare_all)

    def end(self, done: tuple[DoneFit, ...], stopped: str, rank: int, generation: int) -> None:
        """Record that a fit is over, and let rank 0 save a checkpoint; all workers call it."""
        self._leave(done)
        self._loader.progress.fit_stopped = stopped
        self._checkpointing.save_now(rank, generation)
        # A checkpoint is resumed only in the fit in which it was saved: another one follows between
        # the first two steps of the next.
        self._checkpointing.save_soon()

    def pass_over(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that a fit is over, which the job has trained before."""
        self._loader.progress.fits, self.passes_over = done, True
        self._leave(done)

    def check(self, theirs: ScriptFits) -> None:
        """Raise an error if the job has completed the fit that this newcomer's script is in."""
        if self.begun and len(theirs.done) > self._loader.progress.fits_done:
            raise FitIsDone(theirs.done)

    def _leave(self, done: tuple[DoneFit, ...]) -> None:
        self._finishing.has_trained_all = True
        self._shared.fits = ScriptFits(done, len(done))
