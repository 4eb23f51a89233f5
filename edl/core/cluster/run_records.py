"""Describe a run to the plan, from the records of an ordinary edl job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edl.core.cluster.job_life import run_order
from edl.core.cluster.view import AgentView, JobMeasurements, RunView
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.policy.step_time import StepTimeSample
from edl.core.progress import TrainingStatus
from edl.core.records import Assigned, Generation, Host, Job


@dataclass(frozen=True)
class RunRecords:
    """The records of the present run of a job, as the leader of its cluster has read them.

    Attributes:
        token: the token of the run.
        job: the job's record.
        assigned: which workers the run has, and which devices it may use.
        version: the version of that record.
        generation: the newest generation; None: there was none yet.
        status: the progress of the training.
        learned: what the job has measured.
        agents: the records of its agents.
    """

    token: str
    job: Job
    assigned: Assigned
    version: int = 0
    generation: Generation | None = None
    status: TrainingStatus = field(default_factory=TrainingStatus)
    learned: ScalingProfile = field(default_factory=ScalingProfile)
    agents: tuple[Host, ...] = ()

    @property
    def view(self) -> RunView:
        """The run as a plan reads it."""
        return RunView(
            token=self.token,
            state=self.job.state,
            reason=self.job.reason,
            exit_code=self.job.exit_code,
            trains=self.generation is not None and _has_trained(self.status),
            devices={host: tuple(own) for host, own in sorted(self.assigned.devices.items())},
            version=self.version,
            agents={
                agent.name: AgentView(frozenset(agent.devices), frozenset(agent.busy))
                for agent in self.agents
            },
        )

    def measured(self, order: int) -> JobMeasurements:
        """Return what is known of the training of the job that was submitted as number ``order``.

        A run of a job that had the name before only says how fast the job is.
        """
        steps = tuple(_samples(self.learned))
        if run_order(self.token) != order:
            return JobMeasurements(curve=_curve(steps))
        return JobMeasurements(
            steps=steps,
            left=self.status.left,
            done_steps=self.status.step,
            global_batch=self.status.global_batch,
            noise_scale=self.status.noise_scale,
        )


def _has_trained(status: TrainingStatus) -> bool:
    """Return whether a ring whose leader has written ``status`` has trained a step.

    A run that was resumed counts the steps of former runs, too, so their number says nothing.
    """
    sample = status.progress_sample
    return status.median_step_s > 0 or (sample is not None and sample.samples > 0)


def _samples(learned: ScalingProfile) -> Iterable[StepTimeSample]:
    """Yield the measured step times in ``learned``, for each combination the newest one."""
    found = {}
    for workers, one in learned.by_batch:
        if one.samples_per_s > 0 and one.batch > 0:
            step_s = one.batch * workers / one.samples_per_s
            found[workers, one.hosts, one.batch] = step_s
    for (workers, hosts, batch), step_s in found.items():
        yield StepTimeSample(workers, hosts, batch, step_s)


def _curve(steps: Iterable[StepTimeSample]) -> dict[int, float]:
    """Return the highest measured throughput in samples a second, by number of workers."""
    found: dict[int, float] = {}
    for one in steps:
        rate = one.workers * one.batch / one.step_s
        found[one.workers] = max(rate, found.get(one.workers, 0.0))
    return found
