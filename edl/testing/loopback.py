"""Run a whole job in one process: real workers on a loopback ring, in an order that a test chooses.

::

    script = Counting(epochs=2)
    job = LoopbackJob(script, np=3, max_np=4, seed=7)
    job.at(worker=1, point=40, act=lambda job: job.kill(1))
    job.after_step(3, lambda job: job.scale({"a": 4}))
    job.run()
    script.prove(job.results)

The workers are edl's own (:class:`edl.worker.worker.Worker` and its switching, progress, leases),
and so are the leader's decisions. Simulated in memory are the ring (:mod:`edl.ring.loopback`), the
data of ZooKeeper (:mod:`edl.testing.memory`), and time. The same arguments give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edl import failpoints
from edl.binding.reduction import StepReduction
from edl.config import Config
from edl.errors import EdlError, NewcomerDiffers, RingBroken, StepsBack
from edl.policy.file import PolicyFile
from edl.policy.stragglers import Stragglers
from edl.records import Generation, Job, JobState, Member, RequestKind
from edl.ring.loopback import CollectivePoint, Killed, LoopbackMember, LoopbackNetwork, Phase
from edl.ring.ring import CollectiveFailed
from edl.spec import JobSettings, JobSpec, Sizes
from edl.step.engine import StepState
from edl.step.weighting import Weights
from edl.testing.memory import ADDRESS, MemoryCoordinator, MemoryJob
from edl.testing.schedule import MAX_DECISIONS, BackgroundTask, Random, Task, TaskScheduler
from edl.worker.shared_state import SharedState
from edl.worker.worker import Worker

FROZEN_S = 40.0  # longer than anybody waits for a frozen worker
MAX_WORKERS = 24  # that a job may start in all
Act = Callable[["LoopbackJob"], None]


@dataclass(eq=False)
class LoopbackWorker:
    """One worker of a loopback job, which runs in a thread as its process; scripts get this object.

    Attributes:
        id: the id of the worker, which is its number in order of starts, from 0.
        worker: the :class:`edl.worker.worker.Worker` that the thread runs.
        member: its place in the loopback network.
        coordinator: the worker's access to the records of the job, in place of ZooKeeper.
        shared: the state that its training thread and its daemon share.
        result: what the script stores here at its end; None: nothing yet.
        model: the model that the script trains, if the script stores it here; else None.
        points: the number of points (see :class:`PassedPoint`) that the worker has passed.
        ended: whether its process is gone.
        error: the exception that ended its script; None: the script has not ended by one.
    """

    id: int
    host: str
    slot: int
    worker: Worker
    member: LoopbackMember
    schedule: TaskScheduler
    coordinator: MemoryCoordinator
    shared: SharedState
    result: Any = None
    model: Any = None
    points: int = 0
    fails_next: bool = False
    task: Task | None = None
    ended: bool = False
    error: BaseException | None = None

    def compute(self, seconds: float) -> None:
        """Let ``seconds`` of virtual time pass in the worker's thread, as a step takes them."""
        self.schedule.sleep(seconds)

    @property
    def holds_state(self) -> bool:
        """Whether the worker has the state of the job; False for a newcomer before it joins."""
        return self.worker.loader.progress.has_state


class PassedPoint(NamedTuple):
    """A failpoint (:mod:`edl.failpoints`), or phase of a collective, that a worker passed."""

    worker: int
    number: int  # among the worker's points, from 1
    name: str


class LoopbackJob:
    """A job in one process, from its start to its end, with the faults that a test causes.

    The constructor starts nothing; :meth:`run` runs the job, once. Tests call the methods that
    change something in the actions of :meth:`at` and :meth:`after_step`.

    Args:
        script: is called with each worker once it has started, in the worker's thread, and trains
            as a script does after ``edl.init()``.
        np: the number of workers to start with, all on the host "a".
        min_np: the smallest number of workers.
        max_np: the largest number of workers; None: ``np``.
        slots: the slots of each host.
        seed: determines the order in which everything happens; 0: the tasks run one after the
            other, without interruptions.
        restart_s: how long a host's agent waits after the end of a worker before it starts another
            one, in virtual seconds.
        elastic_timeout_s: how long too few workers wait for others, in virtual seconds.
        state_check_steps: the number of steps over which the workers' whole states are compared; 0:
            they are not compared.
        noise_scale_steps: the steps from one measurement of the gradient noise scale to the next;
            0: it is measured only where something needs it.
        on_divergence: "end" the job or "resync" workers whose states differ from most others'.
        stragglers: the job's policy for stragglers (slow workers); None: it has none.
        logical: the number of logical workers; 0: the job has none.
        most_decisions: the run fails if the schedule chooses the next task more often than this.

    Attributes:
        workers: all workers that were started; the index is the id of the worker.
        passed: all points that workers have passed, in order.
        state_lost: whether at some time all workers that held the job's state had died.
        schedule: the scheduler of all threads, which has the virtual time.
        network: the loopback network of the job's rings.
        memory: the job's records, as ZooKeeper would hold them.
    """

    def __init__(
        self,
        script: Callable[[LoopbackWorker], None],
        *,
        np: int,
        min_np: int = 1,
        max_np: int | None = None,
        slots: int = 8,
        seed: int = 0,
        restart_s: float = 0.0,
        elastic_timeout_s: float = 120.0,
        state_check_steps: int = 1,
        noise_scale_steps: int = 1,
        on_divergence: str = "end",
        stragglers: Stragglers | None = None,
        logical: int = 0,
        most_decisions: int = MAX_DECISIONS,
    ) -> None:
        self._script = script
        self._policy = None if stragglers is None else PolicyFile("", stragglers=stragglers)
        self.schedule = TaskScheduler(Random(seed), most_decisions)
        self.network = LoopbackNetwork(self.schedule, self.schedule.chance.below, self._moment)
        spec = JobSpec(
            command=("script",),
            np=np,
            sizes=Sizes(min_np, max_np or np),
            settings=JobSettings(
                elastic_timeout_s=elastic_timeout_s,
                state_check_steps=state_check_steps,
                noise_scale_steps=noise_scale_steps,
                on_divergence=on_divergence,
                logical=logical,
            ),
        )
        record = Job("loopback", spec)
        self.memory = MemoryJob(record, {"a": np}, self.schedule, self.network)
        self.memory.on_generation = lambda new: _check_state(self, new)
        self.workers: list[LoopbackWorker] = []
        self._of: dict[Task, LoopbackWorker] = {}
        self.passed: list[PassedPoint] = []
        # (worker id, number of its point) -> the actions when it passes that
        self._at_points: dict[tuple[int, int], list[Act]] = {}
        # in order of the steps that the first worker must have completed
        self._after_steps: list[tuple[int, Act]] = []
        self.state_lost = False  # all who held the job's state died
        self._agents = _Agents(self, slots, restart_s)

    # --- what is to happen

    def at(self, worker: int, point: int, act: Act) -> None:
        """Have ``act(job)`` called once, in the worker's thread, when it passes this point.

        Nothing happens if the worker has passed the point before, or never reaches it.
        """
        self._at_points.setdefault((worker, point), []).append(act)

    def after_step(self, step: int, act: Act) -> None:
        """Have ``act(job)`` called once, at the next point of the first worker at ``step``."""
        self._after_steps.append((step, act))
        self._after_steps.sort(key=lambda order: order[0])

    # --- what people do

    def scale(self, hosts: Mapping[str, int]) -> None:
        """Set the desired number of workers of each host (others get none), as ``edl scale`` does.

        Each host in ``hosts`` gets an agent if it has none. The workers start and leave later.
        """
        self.memory.set_desired(hosts)
        self._agents.come()

    def drain(self, worker: int) -> None:
        """Request that a worker leaves for good, as ``edl drain``; the leader decides later."""
        self.memory.ask(RequestKind.DRAIN, worker)

    def replace(self, worker: int) -> None:
        """Request that a new worker replaces this one in one switch, as a leader's policy does."""
        self.memory.ask(RequestKind.REPLACE, worker)

    def terminate(self, worker: int) -> None:
        """Ask worker number ``worker`` to leave, as SIGTERM does.

        It leaves at the next switch (change to a new ring), or at once when it is not in the ring.

        Raises:
            SystemExit: the worker leaves at once, and the call is made in its own thread.
        """
        one = self.workers[worker]
        if one.ended:
            return
        try:
            one.worker.request_leave()
        except SystemExit:
            if one.task is self.schedule.current:
                raise
            self.kill(worker)  # it ends where it is; nobody waits for it

    def stop(self, reason: str = "a test stops it") -> None:
        """Ask all workers to stop the job for ``reason``, as ``edl stop`` does."""
        self.memory.set_state(JobState.STOPPING, reason)

    # --- faults

    def kill(self, worker: int) -> None:
        """End the process of worker number ``worker`` at once, as SIGKILL does.

        Raises:
            Killed: the call is made in that worker's own thread, which it ends.
        """
        one = self.workers[worker]
        if one.ended:
            return
        self._end(one)
        assert one.task is not None
        self.schedule.kill(one.task)

    def freeze(self, worker: int, seconds: float = FROZEN_S) -> None:
        """Freeze worker number ``worker``, as SIGSTOP does, and wake it after virtual ``seconds``.

        A worker that freezes itself goes on to its next wait or point. One that is frozen at the
        end of the job is killed.
        """
        one = self.workers[worker]
        if one.ended or worker in self.memory.frozen:
            return
        self.memory.frozen[worker] = self.schedule.now_s()
        self.network.freeze(worker)
        self.memory.changed()
        self._agents.thaws[worker] = self.schedule.now_s() + seconds
        assert one.task is not None
        self.schedule.freeze(one.task)

    def thaw(self, worker: int) -> None:
        """Wake worker number ``worker``, as SIGCONT does; do nothing if it is not frozen."""
        one = self.workers[worker]
        if one.ended or worker not in self.memory.frozen:
            return
        del self.memory.frozen[worker]
        self.network.thaw(worker)
        self.memory.changed(news=True)
        assert one.task is not None
        self.schedule.thaw(one.task)

    def cut(self, worker: int) -> None:
        """Break the ring connections of worker number ``worker``; no process ends."""
        if not self.workers[worker].ended:
            self.network.member(worker).cut()

    def fail(self, worker: int) -> None:
        """Make the worker's next collective or rendezvous raise CollectiveFailed."""
        self.workers[worker].fails_next = True

    def delay(self, worker: int, seconds: float = 5.0) -> None:
        """Let the worker, in whose thread this is called, sleep for virtual ``seconds``."""
        if self.workers[worker].task is self.schedule.current:
            self.schedule.sleep(seconds)

    def expire(self, worker: int) -> None:
        """End the ZooKeeper session of worker number ``worker``; its daemon opens another one."""
        self.memory.drop_session(worker)

    def disconnect(self, seconds: float) -> None:
        """Cut all workers off from ZooKeeper now, for ``seconds`` of virtual time."""
        self.memory.away = True
        self.memory.changed()
        back_at = self.schedule.now_s() + seconds

        def back() -> None:
            self.memory.away = False
            self.memory.changed()

        def due() -> bool:
            return self.memory.away and self.schedule.now_s() >= back_at

        def due_at() -> float | None:
            return back_at if self.memory.away else None

        self.schedule.actors.append(BackgroundTask("zookeeper", due, back, due_at, starts=True))

    # --- the run

    def run(self) -> None:
        """Run the job to its end, in the calling thread and one thread for each worker.

        Errors of edl that end a script are not raised; they are in :attr:`errors`.

        Raises:
            ScheduleError: the job does not end within the limits of decisions and virtual time.
            Exception: any other error that has ended a script, such as an AssertionError.
        """
        failpoints.subscribe(self._point)
        try:
            for _ in range(self.memory.job.spec.np):
                self.start_worker("a")
            self.schedule.run()
        finally:
            failpoints.unsubscribe(self._point)

    @property
    def results(self) -> dict[int, Any]:
        """The ``result`` of each worker whose script has stored one, by the worker's id."""
        return {one.id: one.result for one in self.workers if one.result is not None}

    @property
    def errors(self) -> dict[int, BaseException]:
        """The error that ended each failed script, by worker id; kills and leaves do not count."""
        quiet = (Killed, SystemExit)
        found = {one.id: one.error for one in self.workers}
        return {w: error for w, error in found.items() if error and not isinstance(error, quiet)}

    def describe(self) -> str:
        """Return a text about the run: job, tasks, generations, workers, the last 20 decisions."""
        generations = "\n".join(
            f"  {g.number}: {g.worker_ids} ({g.reason})" for g in self.memory.generations
        )
        ends = "\n".join(
            f"  w{one.id} on {one.host}: {one.points} points, {one.error or one.result}"
            for one in self.workers
        )
        job = self.memory.job
        said = "\n".join(f"  {at:.2f} s: {reason}" for at, reason in self.memory.reasons[-20:])
        return (
            f"job {job.state} ({job.reason}); wanted {self.memory.hosts}\n"
            f"{self.schedule.table()}\ngenerations:\n{generations}\nworkers:\n{ends}\n"
            f"decisions:\n{said}"
        )

    # --- processes

    def start_worker(self, host: str) -> None:
        """Start one more worker on ``host``, in its lowest free slot, as the host's agent does."""
        number = len(self.workers)
        used = {one.slot for one in self.workers if one.host == host and not one.ended}
        slot = next(n for n in range(99) if n not in used)
        ring = self.network.ring(number)
        shared = SharedState(number, self.schedule, policy=self._policy)
        member = Member(number, host, slot, ADDRESS, 1000 + number, number, f"launch{number}")
        coordinator = MemoryCoordinator(self.memory, member, shared, ring)
        config = Config(job=self.memory.job.name, host=host, slot=slot)
        worker = Worker(config, ring, shared, coordinator)
        one = LoopbackWorker(
            number,
            host,
            slot,
            worker,
            self.network.member(number),
            self.schedule,
            coordinator,
            shared,
        )
        self.workers.append(one)
        self.memory.changed()
        one.task = self.schedule.start(f"w{number}", lambda: self._live(one))
        self._of[one.task] = one

    def _live(self, one: LoopbackWorker) -> None:
        try:
            try:
                one.worker.start()
                self._script(one)
                one.worker.finishing.script_ended()  # as at the end of a process
            finally:
                if not one.ended:
                    one.worker.close()
        except (EdlError, SystemExit, Killed) as error:
            one.error = error
            if isinstance(error, NewcomerDiffers) and not isinstance(error, StepsBack):
                self._agents.want_fewer(one.host)
        except BaseException as error:
            self.schedule.fail(error)
            raise
        finally:
            if not one.ended:
                self._end(one)

    def _end(self, one: LoopbackWorker) -> None:
        one.ended = True
        left = [other for other in self.workers if not other.ended]
        if not any(other.holds_state for other in left) and (
            one.holds_state or not any(other.worker.generation for other in left)
        ):
            self.state_lost = True
        self._agents.note_end()
        self.memory.frozen.pop(one.id, None)
        self.memory.gone[one.id] = self.schedule.now_s()
        self.network.lose(one.id)
        self.memory.changed()
        if not left and self.memory.job.state is JobState.STOPPING:
            self.memory.set_state(JobState.STOPPED, self.memory.job.reason)  # as its agents do

    # --- points

    def _moment(self, moment: CollectivePoint) -> None:
        if moment.phase is Phase.BEFORE and moment.name.startswith("edl.gradient"):
            return  # right after a point of the step
        self._point(f"{moment.name} {moment.phase.value}")
        one = self.workers[moment.worker]
        if one.fails_next:
            one.fails_next = False
            raise CollectiveFailed(f"{moment.name}: a test lets it fail")

    def _point(self, name: str) -> None:
        task = self.schedule.current
        if task is None:
            return
        one = self._of[task]
        one.points += 1
        self.passed.append(PassedPoint(one.id, one.points, name))
        while self._after_steps and one.worker.step >= self._after_steps[0][0]:
            self._after_steps.pop(0)[1](self)
        for act in self._at_points.pop((one.id, one.points), ()):
            act(self)
        self.schedule.pause()


class _Agents:
    """The agents of all hosts: they start missing workers, and wake frozen ones."""

    def __init__(self, job: LoopbackJob, slots: int, restart_s: float) -> None:
        self._job = job
        self._slots = slots
        self._restart_s = restart_s
        self._restart_at = 0.0
        self._lacks = (-1, False)  # whether a worker was lacking after so many changes
        self.thaws: dict[int, float] = {}  # when each frozen worker is woken
        job.schedule.actors += [
            BackgroundTask("agents", self._may_start, self._start, self._starts_at, starts=True),
            BackgroundTask("thaw", self._may_wake, self._wake, self._wakes_at),
        ]
        self.come()

    def come(self) -> None:
        """Register an agent on each host that has an entry in the desired numbers of workers."""
        memory = self._job.memory
        memory.agents |= dict.fromkeys(memory.hosts, self._slots)

    def want_fewer(self, host: str) -> None:
        """Lower the desired number of workers on `host` by one, after the job refused a worker."""
        memory = self._job.memory
        # Another one on that host would have a state that differs from the others', too.
        memory.set_desired({**memory.hosts, host: memory.hosts[host] - 1})

    def note_end(self) -> None:
        """Record that a worker's process has ended: no host starts one for `restart_s`."""
        self._restart_at = self._job.schedule.now_s() + self._restart_s

    def _lacking(self) -> str | None:
        job, memory = self._job, self._job.memory
        current = memory.generation
        ended = memory.job.state is not JobState.RUNNING or (current and not current.members)
        if ended or memory.away or len(job.workers) >= MAX_WORKERS:
            return None
        for host, wanted in sorted(memory.hosts.items()):
            replaced = {
                request.worker
                for request in memory.requests.values()
                if request.kind == RequestKind.REPLACE
            }
            here = [
                one
                for one in job.workers
                if one.host == host and not one.ended and one.id not in replaced
            ]
            if sum(one.id not in memory.evicted for one in here) < wanted:
                return host
        return None

    def _may_start(self) -> bool:
        changes = self._job.memory.changes
        if self._lacks[0] != changes:
            self._lacks = changes, self._lacking() is not None
        return self._lacks[1] and self._job.schedule.now_s() >= self._restart_at

    def _start(self) -> None:
        host = self._lacking()
        assert host is not None
        self._job.start_worker(host)

    def _starts_at(self) -> float | None:
        self._may_start()
        return self._restart_at if self._lacks[1] else None

    def _frozen(self) -> list[tuple[float, int]]:
        if not (frozen := self._job.memory.frozen):
            return []
        over = self._job.memory.job.state.over
        return sorted((0.0 if over else self.thaws[worker], worker) for worker in frozen)

    def _may_wake(self) -> bool:
        if not self._job.memory.frozen:
            return False
        return self._frozen()[0][0] <= self._job.schedule.now_s()

    def _wake(self) -> None:
        """Wake the frozen worker whose time comes first; kill it if the job is over."""
        _, worker = self._frozen()[0]
        if self._job.memory.job.state.over:
            self._job.kill(worker)
        else:
            self._job.thaw(worker)

    def _wakes_at(self) -> float | None:
        return next((at for at, _ in self._frozen()), None)


def _check_state(job: LoopbackJob, new: Generation) -> None:
    """Assert that no generation begins the job anew while a working member holds its state."""
    if new.number == 1 or not new.members or {*new.joined} != {*new.worker_ids}:
        return
    out = job.memory.evicted.keys() | job.memory.frozen.keys()
    working = (one for one in job.workers if not one.ended and one.id not in out)
    holders = [one.id for one in working if one.holds_state]
    assert not holders, f"{holders} hold the state, and generation {new.number} begins anew"


# ------------------------------------------------------------
# Reduce gradients that are arrays on a loopback ring (`LoopbackReducer`).


Vector = npt.NDArray[np.float64]


class LoopbackReducer:
    """The gradients of one optimizer on arrays, as a `Reducer`."""

    def __init__(self, worker: Worker, member: LoopbackMember, size: int) -> None:
        self._worker, self._member, self._size = worker, member, size
        self.reduction = StepReduction(worker, self)  # the optimizer's part of each step
        self._name = f"edl.gradient{self.reduction.number or '.w'}"
        # the worker's own gradient of the open step; None: it has computed none
        self.local: Vector | None = None
        # the mean gradient over the global batch; None: there is none
        self.mean: Vector | None = None
        self.mean_in = -1  # the number of the step in which `mean` was reduced
        self._handle: int | None = None
        self._failed: RingBroken | None = None

    def reduce(self, local: Vector) -> None:
        """Set `mean` to the mean of all workers' gradients; `local` is this worker's."""
        self.local, self.mean = local, None
        self.send_early()
        self.reduction.reduce()

    def send_early(self) -> None:
        """Send the local gradient if its weight is known; `allreduce` raises what fails."""
        if self.reduction.part.sends_early and not self.reduction.done:
            try:
                self._send()
            except RingBroken as error:
                self._failed = error

    def allreduce(self, weights: Weights, again: bool) -> None:
        """Send the gradient, unless it is sent, and keep the mean of all workers' gradients."""
        if self._failed is not None:
            raise self._failed
        if self._handle is None:
            self._send()
        assert self._handle is not None
        try:
            average: Vector = self._member.average_finish(self._handle)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        self._handle = None
        self.mean, self.mean_in = average * weights.received, self.reduction.step.number

    def place_result(self, again: bool) -> None:
        """Keep the local gradient as the mean, if the worker is alone."""
        agreed = self.reduction.part.agreed
        is_reduced = self.reduction.step.state is StepState.REDUCED
        if is_reduced and agreed is not None and not agreed.sends and self.local is not None:
            self.mean = self.local * self.reduction.part.local_scale
            self.mean_in = self.reduction.step.number

    def forget(self) -> None:
        """Drop the gradient that was being sent, and the error, after a repair of the ring."""
        self._handle = self._failed = None

    def _send(self) -> None:
        local = np.zeros(self._size) if self.local is None else self.local
        try:
            sent = self.reduction.part.sent * local
            self._handle = self._member.average_start(sent, self._name)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        self.reduction.sending()
