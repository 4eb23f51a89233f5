"""Let a newcomer wait, warmed up, until a generation of the job has it as a member.

:class:`Newcomer` does that. A fit is one call of Keras' ``fit``; a script *passes over* a fit when
it calls ``fit`` for one that the job has done, which returns without training.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from edl.core.job.fits import FitIsDone, ScriptFits, ended_before
from edl.core.records import Generation, Stage
from edl.errors import NewcomerDiffers
from edl.ring.ring import Ring
from edl.worker.activity import waits
from edl.worker.coordinator import Coordinator
from edl.worker.progress import TrainingProgress
from edl.worker.shared_state import SharedState

NEWS_SLICE_S = 1.0  # after so long a waiting worker looks at other news


class Newcomer:
    """The wait of one worker for its first generation; it runs in the training thread."""

    def __init__(
        self,
        shared: SharedState,
        ring: Ring,
        progress: TrainingProgress,
        coordinator: Coordinator,
        exit: Callable[[str], NoReturn],
    ) -> None:
        self._shared = shared
        self._ring = ring
        self._progress = progress
        self._coordinator = coordinator
        self._exit = exit  # ends the process, for a reason
        # from the first worker in the ring that answers; no fits if none does
        self.fits_of_job: Callable[[], ScriptFits] = ScriptFits

    @waits("waiting for the others to switch")
    def wait_for_membership(self, worker: int, fits: int, after: int = 0) -> Generation:
        """Wait for a generation with this newcomer, whose ring the old members enter now."""

        def ready() -> None:
            self._coordinator.set_stage(Stage.READY, 0, newest_generation=after, fits=fits)

        if after:  # else the leader would take this worker to be stuck
            ready()
        while True:
            newest = self._shared.wait_for_generation(after, slice_s=NEWS_SLICE_S)
            if self._shared.job_state.over or (newest is not None and not newest.members):
                self._exit("the job ended before this worker joined")
            if newest is None:
                self.look_for_a_later_fit(worker)
                continue
            is_member = newest.rank_of(worker) is not None
            is_member &= newest.repairs or newest.fits == fits  # else the others do not enter it
            if is_member and (newest.repairs or self._ring.wait_for_announcement(newest)):
                return newest
            if is_member:
                self.look_for_a_later_fit(worker)
            if not is_member or newest.state_source in self._shared.evicted:
                # The others go on without this worker, or no state source will announce the switch
                # to it: it is a newcomer like any other again.
                after = newest.number
                ready()

    def look_for_a_later_fit(self, worker: int) -> None:
        """Raise an error if the job is in a later fit than this newcomer."""
        mine = self._shared.fits
        if not mine.begun:  # the script has no fits
            return
        theirs = self.fits_of_job()
        if mine.begun == len(mine.done) < theirs.begun:
            raise NewcomerDiffers(ended_before(worker, mine.begun, theirs.begun))
        if len(theirs.done) > self._progress.fits_done:
            self._coordinator.set_stage(Stage.PREPARING, fits=len(theirs.done))
            raise FitIsDone(theirs.done)
