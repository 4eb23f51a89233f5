"""Play the same jobs in the simulator, with the measured step times and costs.

A policy predicts a job's speed by the model that it has of a live job (:class:`LiveModel`), made of
the curve that the job's manifest supplies. How fast the job really is, is measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cluster_jobs.costs import Costs
from benchmarks.cluster_jobs.live import LiveRun, PolicyChoice
from benchmarks.cluster_jobs.profiling import Profiles
from benchmarks.cluster_jobs.workload import BATCH, HOSTS, MOST, SLOTS, WorkloadJob
from edl.cluster.candidates import LiveModel, StepTimeModels, sourced_samples
from edl.cluster.manifest import PolicyHints
from edl.cluster.policies.registry import with_parameters
from edl.cluster.records import ClusterRecord
from edl.cluster.state import ClusterPolicy, Node, TrainingModel
from edl.cluster.view import JobMeasurements
from edl.policy.step_time import StepTimeSample
from edl.simulator.costs import ResizeCost
from edl.simulator.engine import Rules, simulate
from edl.simulator.results import Result
from edl.simulator.workload import Observation, SubmittedJob
from edl.step.batching import Batching

TRAINS, ENDS = 0, 1  # the epochs of the work


@dataclass(frozen=True)
class MeasuredWork:
    """The work of a job whose step times were measured (:class:`edl.simulator.workload.JobWork`).

    In its second epoch the job has trained all steps, and ends.

    Attributes:
        steps: the number of steps.
        step_s: the seconds of a step, by number of workers.
        ends_s: the seconds of its end.
    """

    steps: int
    step_s: Mapping[int, float]
    ends_s: float

    @property
    def epochs(self) -> int:
        """The number of epochs."""
        return 2

    def end_of(self, epoch: int) -> float:
        """Return the progress at the end of an epoch: steps, and one more for the end."""
        return float(self.steps + (epoch == ENDS))

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the steps per second; of the end, its part per second."""
        return 1.0 / (self.ends_s if epoch == ENDS else self.step_s[sum(slots)])

    def model(self, epoch: int, progress: float) -> TrainingModel:
        """Return the model that policies have of a live job with this curve."""
        hints = PolicyHints(throughput={str(n): BATCH / each for n, each in self.step_s.items()})
        known = sourced_samples(JobMeasurements(), hints, Batching(global_batch=BATCH))
        samples = tuple(sample for sample, _ in known)
        return LiveModel(
            samples=samples,
            left=max(0.0, self.steps - progress) * BATCH,
            left_slot_s=0.0,
            fewest=1,
            noise_scale=None,
            smallest_batch=BATCH,
            batching=None,
            models=StepTimeModels(),
        )

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time that the job measures; its noise scale is not known."""
        workers = sum(slots)
        return StepTimeSample(workers, len(slots), batch / workers, self.step_s[workers]), None


def submitted(
    job: WorkloadJob, step_s: Mapping[int, float], costs: Costs, arrival_s: float
) -> SubmittedJob:
    """Return a job as the simulator gets it.

    Args:
        job: the job.
        step_s: its measured step times, by number of workers.
        costs: the measured costs.
        arrival_s: when it was submitted to the live cluster.
    """
    work = MeasuredWork(job.steps, step_s, costs.end)
    kind = f"{job.framework}, {job.scaling.name}"
    return SubmittedJob(
        job.name, arrival_s, work, job.np, 1, MOST, batch=BATCH, batches=(BATCH, BATCH), kind=kind
    )


def play_again(
    run: LiveRun, jobs: Sequence[WorkloadJob], profiles: Profiles, costs: Costs
) -> Result:
    """Simulate the jobs of a live run under its policy, from the same submissions.

    The result has them in the order of ``jobs``, that of the run.
    """
    live = {job.name: job for job in run.jobs}
    given = [submitted(job, profiles[job.name], costs, live[job.name].submitted_s) for job in jobs]
    nodes = [Node(host, SLOTS) for host in HOSTS]
    return simulate(given, nodes, policy_of(run.policy), rules(costs))


def policy_of(choice: PolicyChoice) -> ClusterPolicy:
    """Return the policy with its parameters, as the live cluster makes it."""
    return with_parameters(choice.name, choice.parameters)


def rules(costs: Costs) -> Rules:
    """Return the rules by which virtual time moves."""
    resize = ResizeCost(
        start=costs.start,
        restart=costs.start,
        join=costs.join,
        leave=costs.leave,
        migrate=costs.join,
        prepare=costs.prepare,
    )
    return Rules(interval_s=ClusterRecord().interval_s, resize=resize, live=True)
