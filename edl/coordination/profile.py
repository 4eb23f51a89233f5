"""Read and write the newest profile of a job, and let one process at a time profile the job.

:class:`ProfileNode` is the ``profile`` of a job's ``JobStore``.
"""

from __future__ import annotations

from edl.coordination.nodes import JobNodes, record_or_none
from edl.coordination.reads import delete_node, get
from edl.core.job.profile import Curve
from edl.core.job.profile_hold import ProfileHold


class ProfileNode:
    """The nodes of one job that hold its profile and its hold, the right to profile the job."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, curve: Curve) -> None:
        """Replace the profile of the job by `curve`, the throughput by number of workers."""
        self._nodes.compare_and_set(self._nodes.paths.profile, lambda _: curve.to_json())

    def get(self) -> Curve | None:
        """Return the newest profile of the job; None without one."""
        path = self._nodes.paths.profile
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record_or_none(Curve, path, answer)

    def hold(self, hold: ProfileHold) -> bool:
        """Take the right to profile the job for as long as this session lives."""
        path = self._nodes.paths.profile_hold
        return self._nodes.put_ephemeral(path, hold, lambda held: held["token"] == hold.token)

    def held(self) -> ProfileHold | None:
        """Return the record of the process that profiles the job now; None without one."""
        path = self._nodes.paths.profile_hold
        return record_or_none(ProfileHold, path, self._nodes.read(get(path))[0])

    def release(self, token: str) -> None:
        """Give up the right to profile the job; do nothing if another process or none has it."""
        hold = self.held()
        if hold is not None and hold.token == token:
            node = self._nodes.paths.profile_hold
            self._nodes.session.read_all("end a profile", [delete_node(node)])
