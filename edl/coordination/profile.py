"""The newest profile of a job, and who profiles it now: one at a time."""

from __future__ import annotations

from edl.coordination.nodes import JobNodes, record_or_none
from edl.coordination.reads import delete, get
from edl.core.job.profile import Curve
from edl.core.job.profile_hold import ProfileHold


class ProfileNode:
    """The profile of a job, and its hold."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, curve: Curve) -> None:
        """Keep the newest profile of the job with it; also of one that has ended."""
        self._nodes.compare_and_set(self._nodes.paths.profile, lambda _: curve.to_json())

    def get(self) -> Curve | None:
        """The newest profile; None before the first."""
        path = self._nodes.paths.profile
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record_or_none(Curve, path, answer)

    def hold(self, hold: ProfileHold) -> bool:
        """Profile the job from now on, as long as this session lives; False: another one does."""
        path = self._nodes.paths.profile_hold
        return self._nodes.put_ephemeral(path, hold, lambda held: held["token"] == hold.token)

    def held(self) -> ProfileHold | None:
        """Who profiles the job now, if anybody does."""
        path = self._nodes.paths.profile_hold
        return record_or_none(ProfileHold, path, self._nodes.read(get(path))[0])

    def release(self, token: str) -> None:
        """Profile the job no longer; nothing happens when it was another one."""
        hold = self.held()
        if hold is not None and hold.token == token:
            node = self._nodes.paths.profile_hold
            self._nodes.session.read_all("end a profile", [delete(node)])
