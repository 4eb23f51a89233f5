"""Describe a run to the plan, from the records of an ordinary edl job."""

from __future__ import annotations

from dataclasses import dataclass, field

from edl.core.cluster.job_life import is_token_of
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.view import AgentView, RunView
from edl.core.excerpt import printable
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.progress import TrainingStatus
from edl.core.records import Assigned, Desired, Generation, Host, Job

STATUSES_PER_S = 100.0  # written by all runs of a cluster together, once there are many
RESUME = "auto"  # the setting of a run that continues from the newest checkpoint, if there is one


@dataclass(frozen=True)
class RunRecords:
    """The records of the present run of a job, as the leader of its cluster has read them."""

    token: str
    job: Job  # the job's record
    assigned: Assigned  # which workers the run has, and which devices it may use
    version: int = 0  # the version of the record `assigned` in ZooKeeper
    # which workers are desired, and the batch that the cluster has chosen
    desired: Desired = field(default_factory=Desired)
    generation: Generation | None = None  # the newest generation; None: there was none yet
    status: TrainingStatus = field(default_factory=TrainingStatus)  # the progress of the training
    # the throughput that the run has measured, by number of workers and batch
    learned: ScalingProfile = field(default_factory=ScalingProfile)
    agents: tuple[Host, ...] = ()

    @property
    def trains(self) -> bool:
        """Whether a ring of the run has trained a step."""
        return self.generation is not None and _has_trained(self.status)

    @property
    def view(self) -> RunView:
        """The run as a `RunView`, the shorter form that the plan of the cluster reads."""
        return RunView(
            token=self.token,
            state=self.job.state,
            # The job's code can write it, and it goes to logs and terminals of administrators.
            reason=printable(self.job.reason),
            exit_code=self.job.exit_code,
            trains=self.trains,
            devices={host: tuple(own) for host, own in sorted(self.assigned.devices.items())},
            version=self.version,
            agents={
                agent.name: AgentView(
                    devices=frozenset(agent.devices),
                    busy=frozenset(agent.busy),
                    leaving=agent.leaving,
                    disabled=len(agent.disabled),
                    failing=sum(
                        bool(w) and s not in agent.disabled for s, w in agent.failing.items()
                    ),
                    why=next(filter(None, (*agent.disabled.values(), *agent.failing.values())), ""),
                )
                for agent in self.agents
            },
            batch=self.desired.batch or None,
            workers=dict(self.assigned.hosts),
            saves=bool(self.job.checkpoint) or self.job.saved_step >= 0,
        )


def _has_trained(status: TrainingStatus) -> bool:
    # A run that was resumed counts the steps of former runs, too: their number says nothing.
    sample = status.progress_sample
    return status.median_step_s > 0 or (sample is not None and sample.samples > 0)


def status_period_s(own_s: float, runs: int) -> float:
    """Return how often a new run writes its status, in seconds, so that all together write few."""
    return max(own_s, runs / STATUSES_PER_S)


def resume_setting(manifest: JobManifest, order: int, last: RunRecords | None) -> str:
    """Return the setting `resume` of a job's next run: "auto", or empty to begin anew."""
    if manifest.checkpoint:
        return RESUME
    if last is None or not is_token_of(last.token, order):
        return ""
    # A script that calls no `edl.checkpoint` is refused with "auto".
    continued = last.job.spec.settings.resume == RESUME
    return RESUME if last.job.checkpoint or continued else ""
