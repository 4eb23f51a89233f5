"""Submit jobs and change running jobs from Python, for schedulers and notebooks.

::

    from edl.client import Cluster, Job, submit

    with Job("digits") as job:
        job.scale_out(2, timeout_s=300)
        job.migrate("a", "b")
        print(job.profile([1, 2, 4]).figures())

    with submit(["python", "train.py"], {"a": 2, "b": 2}, name="letters", max_np=8):
        ...  # run `edl join --job letters --host a` on host a, and likewise on b

    with Cluster("lab") as cluster:
        name = cluster.submit("job.yaml", key="letters-7")
        cluster.wait(name, timeout_s=3600)

The commands of the command line make these calls and print the results. No framework (PyTorch,
TensorFlow) is imported.
"""

from typing import TYPE_CHECKING, Any

from edl.client.changes import Reclaimed, Resize
from edl.client.job import Job
from edl.client.submitting import submit
from edl.job.placement import Migration
from edl.job.profile import Curve, Point
from edl.status import JobStatus

if TYPE_CHECKING:
    from edl.cluster.client.client import Cluster

__all__ = [
    "Cluster",
    "Curve",
    "Job",
    "JobStatus",
    "Migration",
    "Point",
    "Reclaimed",
    "Resize",
    "submit",
]


def __getattr__(name: str) -> Any:
    # The import takes 50 ms, which programs that use no cluster save.
    if name == "Cluster":
        from edl.cluster.client.client import Cluster

        return Cluster
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
