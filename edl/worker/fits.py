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
    """One worker's record of its script's fits (calls of Keras' ``fit``).

    It is the attribute ``fits`` of :class:`edl.worker.worker.Worker`. Newcomers ask for the record,
    and a checkpoint contains the fits that were done before the one in which it is saved.

    Args:
        shared: publishes the fits that are done and begun, for newcomers.
        coordinator: asks another worker for its fits.
        checkpointing: saves the job's state at the end of a fit.
        finishing: is told that a fit has begun (``has_trained_all`` is False) or is over (True).
        loader: this worker's steps, whose position has the fits that are done.
        switching: repairs the ring if it breaks while states are compared.
        check: compares the workers' states and corrects those that differ.
        exchange: sends bytes to all workers, and returns what all have sent, in rank order.
    """

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
        """The number of fits (calls of Keras' ``fit``) that the script has begun or passed over."""
        return self._shared.fits.begun

    @property
    def has_trained(self) -> bool:
        """Whether any worker has trained a sample in the call of ``fit`` that this script is in.

        It is True, too, if the job is in a later call already, which the script of this newcomer
        has yet to reach.
        """
        done = self._loader.progress.fits
        return self._loader.ledger.epochs_begun > (done[-1].until if done else 0)

    def of_job(self) -> ScriptFits:
        """Return the fits (calls of ``fit``) that the script of another worker has done and begun.

        The coordinator asks the workers of the ring one by one, and the call waits for an answer.
        If none answers, the result has no fits done and 0 begun.
        """
        return self._coordinator.script_of_job().fits

    def begin(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that the script begins a fit (a call of Keras' ``fit``).

        An earlier wish of the script to stop training is dropped. A checkpoint that is loaded then
        may say that this fit is over.

        Args:
            done: all fits that the script has done or passed over, in order; the new one follows.
        """
        self._loader.progress.fits, self._loader.progress.stop = done, ""
        self._loader.progress.fit_stopped = ""
        self._loader.wants_to_stop = False
        self._finishing.has_trained_all = self.passes_over = False
        self._shared.fits = ScriptFits(done, len(done) + 1)

    def compare_states(self) -> None:
        """Compare the whole state of all workers after the last step of a fit, and correct it.

        It is called before ``fit`` returns, since the script uses the model then. If the job's
        setting ``on_divergence`` is "resync", workers that differ get the state of most workers,
        and all are compared again. After three corrections (:data:`RESYNCS`) the call returns
        without another comparison. With another setting a difference ends the job. If the ring
        breaks, it is repaired.

        Raises:
            StateDiffers: states differ, and the job does not resync, or no majority holds the same
                state; the job ends.
            NewcomerDiffers: this worker is a newcomer whose state differs; the others go on.
        """
        for _ in range(RESYNCS):
            if self._check.is_same(self._exchange):
                return
            self._switching.between_steps(self._check.compare_all)

    def end(self, done: tuple[DoneFit, ...], stopped: str, rank: int, generation: int) -> None:
        """Record that a fit (a call of Keras' ``fit``) is over, and let rank 0 save a checkpoint.

        All workers call it. The call does not wait until the file is written. A job resumes a
        checkpoint only in the fit in which it was saved, so rank 0 saves another one between the
        first two steps of the next fit.

        Args:
            done: the fits that are over, with the one that has just ended as the last.
            stopped: why callbacks have stopped it, for the checkpoint; empty: they have not.
            rank: this worker's rank in its ring.
            generation: the number of the ring's generation.
        """
        self._leave(done)
        self._loader.progress.fit_stopped = stopped
        self._checkpointing.save_now(rank, generation)
        self._checkpointing.save_soon()

    def pass_over(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that a fit (a call of Keras' ``fit``) is over, untrained here.

        The job has trained it before. ``done`` are all fits that are over, with this one as the
        last.
        """
        self._loader.progress.fits, self.passes_over = done, True
        self._leave(done)

    def check(self, theirs: ScriptFits) -> None:
        """Raise an error if the job has completed the fit that this newcomer's script is in.

        Otherwise, or if this script has begun no fit (call of Keras' ``fit``), nothing happens.
        ``theirs`` are the fits that the script of the other workers has done and begun.

        Raises:
            FitIsDone: the other workers have done the fit in which this worker is.
        """
        if self.begun and len(theirs.done) > self._loader.progress.fits_done:
            raise FitIsDone(theirs.done)

    def _leave(self, done: tuple[DoneFit, ...]) -> None:
        """Record, for newcomers too, that the fits ``done`` are over and that no other has begun.

        A fit is one call of Keras' ``fit``.
        """
        self._finishing.has_trained_all = True
        self._shared.fits = ScriptFits(done, len(done))
