"""Waiting for a job, and holding its size, while ZooKeeper comes and goes; none is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made import changed, make_job

from edl.client.changes import (
    drain_host,
    drain_worker,
    migrate,
    place,
    preempt,
    resize,
    stop,
    wait_for_size,
)
from edl.client.profiling import HeldSize, profile
from edl.client.waiting import ClientLimits, Messages, poll_job
from edl.errors import (
    CoordinationError,
    HostLost,
    JobEnded,
    RequestError,
    Superseded,
    TimedOut,
    UsageError,
)
from edl.events import CheckpointDetails, Event
from edl.job.borrowing import NO_TERMS, ReclaimTerms
from edl.job.decision import DesiredChange, set_desired
from edl.job.placement import NO_DEVICES, DeviceSets, Placement
from edl.job.profile import Curve, ProfileHold
from edl.job.run import HALTED_EXIT, UNSAVED_EXIT
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    JobState,
    Member,
    ProgressSample,
    Request,
    RequestedBy,
    RingMember,
    SlotRecord,
    Stage,
    TrainingStatus,
)
from edl.zookeeper.events import EventNodes
from edl.zookeeper.store import HostNodes, JobStore, ProfileNode, RequestNodes

JOB = make_job(command=("true",))
HOSTS = (Host("a", 2, "::1"), Host("b", 2, "::2"))
AWAY = CoordinationError("ZooKeeper is away")
LIMITS = ClientLimits(poll_s=0.0)


class Store(JobStore):
    """A job with as many workers as are desired, which make a step of 0.1 s between two looks.

    ``away``: numbers of the calls that ZooKeeper does not answer.
    """

    def __init__(self, **job: Any) -> None:
        self.name = "digits"
        self.requests, self.hosts = Requests(self), Hosts(self)
        self.profile, self.events = Profile(self), Events(self)
        self.job = changed(JOB, **job)
        self.desired = Desired({"a": 2})
        self.by_slot = False
        self.devices: DeviceSets = {}
        self.agents = HOSTS
        self.edl_workers: tuple[SlotRecord, ...] = ()
        self.request: Request | None = None
        self.where: list[str] = []  # hosts of the workers, if they are not as desired
        self.hold: ProfileHold | None = None
        self.away: set[int] = set()
        self.calls = self.step = self.samples = 0
        self.sizes: list[int] = []
        self.curves: list[Curve] = []
        self.log: list[Any] = []
        self.asked: list[str] = []
        self.before_look: Callable[[Store], None] = lambda _store: None

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.away:
            raise AWAY

    @property
    def now(self) -> dict[str, int]:
        return dict(self.desired.hosts)

    @now.setter
    def now(self, hosts: dict[str, int]) -> None:
        self.desired = Desired(hosts)

    def snapshot(self) -> Snapshot:
        self._call()
        self.before_look(self)
        size = self.desired.np
        if self.sizes[-1:] != [size]:
            self.sizes.append(size)
        self.step += 1
        self.samples += 8 * size
        number = len(self.sizes)
        counted = ProgressSample(0, number, size, 0, self.step, self.samples, 0.1 * self.step)
        where = self.where or [host for host, count in self.now.items() for _ in range(count)]
        members = tuple(
            Member(i, host, i, "::1", 1, 1, f"t-{i}", Stage.ACTIVE, number)
            for i, host in enumerate(where)
        )
        ring_members = tuple(RingMember(m.id, m.host, m.slot, m.address, m.port) for m in members)
        status = TrainingStatus(step=self.step, reason="they train", progress_sample=counted)
        generation = Generation(number, 1, ring_members, 0, (), (), "")
        return Snapshot(
            self.job,
            self.agents,
            members,
            self.desired,
            Assigned(self.now, self.by_slot, self.devices),
            generation=generation,
            status=status,
            slots=self.edl_workers,
        )

    def set_desired(
        self,
        change: Callable[[dict[str, int]], Placement],
        by: RequestedBy,
        why: str,
        terms: ReclaimTerms = NO_TERMS,
        devices: DeviceSets = NO_DEVICES,
    ) -> DesiredChange:
        self._call()
        assigned = Assigned(devices=self.devices)
        hosts = change(self.now)
        done = set_desired(self.desired, assigned, hosts, by, why, self.calls, terms, devices)
        if done.assigned is not None:
            self.devices = done.assigned.devices
        if by is RequestedBy.PERSON and self.hold is not None:
            self.hold = replace(self.hold, asked=True)
        if done:
            self.desired = done.desired
            self.asked.append(str(done))
        return done

    def set_job_state(
        self,
        state: JobState,
        reason: str,
        exit_code: int = 0,
        only_from: tuple[JobState, ...] = (JobState.RUNNING,),
        end_within_s: float = 0.0,
        event: Event | None = None,
    ) -> bool:
        self._call()
        self.job = replace(self.job, state=state, reason=reason)
        return True


class Requests(RequestNodes):
    def __init__(self, store: Store) -> None:
        self.store = store

    def add(self, request: Request) -> int:
        self.store._call()
        self.store.request = request
        return 0

    def get(self, number: int) -> Request:
        self.store._call()
        assert self.store.request is not None
        return self.store.request

    def cancel(self, number: int) -> Request | None:
        self.store._call()
        request = self.store.request
        if request is not None and request.done:
            return request
        self.store.request = None
        return None


class Hosts(HostNodes):
    def __init__(self, store: Store) -> None:
        self.store = store

    def ask_to_leave(self, name: str) -> bool:
        self.store._call()
        self.store.agents = tuple(host for host in self.store.agents if host.name != name)
        return True


class Profile(ProfileNode):
    def __init__(self, store: Store) -> None:
        self.store = store

    def hold(self, hold: ProfileHold) -> bool:
        self.store._call()
        if self.store.hold is not None and self.store.hold.token != hold.token:
            return False
        self.store.hold = hold
        return True

    def held(self) -> ProfileHold | None:
        self.store._call()
        return self.store.hold

    def release(self, token: str) -> None:
        self.store._call()
        if self.store.hold is not None and self.store.hold.token == token:
            self.store.hold = None

    def put(self, curve: Curve) -> None:
        self.store.curves.append(curve)


class Events(EventNodes):
    def __init__(self, store: Store) -> None:
        self.store = store

    def add(self, event: Any) -> int:
        self.store._call()
        self.store.log.append(event)
        return len(self.store.log) - 1

    def newest_step(self) -> int:
        return 0

    def read_known(self, after: int = -1) -> list[tuple[int, Any]]:
        self.store._call()
        return list(enumerate(self.store.log))[after + 1 :]

    def newest(self, count: int, kinds: Any) -> list[Any]:
        return self.store.log[-count:]


def measure(store: Store, *sizes: int, timeout_s: float = 5.0) -> Curve:
    return profile(store, sizes, 20, timeout_s, lambda _message: None, LIMITS)


# --- waiting ---


def test_a_look_that_is_not_answered_is_made_again() -> None:
    store = Store()
    store.away = {1, 2, 4}
    seen = poll_job(store, 5.0, "this", Messages(), limits=LIMITS)
    assert [next(seen).status.step for _ in range(3)] == [1, 2, 3]


def test_a_time_out_has_the_last_message_and_what_stands() -> None:
    messages = Messages()
    messages("w3 is preparing")
    seen = poll_job(Store(), 0.0, "moving it", messages, "it goes on", LIMITS)
    next(seen)
    with pytest.raises(TimedOut) as caught:
        next(seen)
    assert str(caught.value) == "moving it is not done after 0 s; w3 is preparing; it goes on"
    assert caught.value.job == "digits"


def test_a_time_out_names_zookeeper_when_that_is_away() -> None:
    store = Store()
    store.away = {1}
    with pytest.raises(TimedOut, match=r"not done after 0 s; ZooKeeper is away"):
        next(poll_job(store, 0.0, "it", Messages(), limits=LIMITS))


def test_nobody_waits_for_a_job_that_has_ended() -> None:
    store = Store(state=JobState.FAILED, reason="w0 died")
    with pytest.raises(
        JobEnded, match="scaling job digits to 3 is not done: job digits has failed"
    ):
        wait_for_size(store, 3, 5.0, limits=LIMITS)
    with pytest.raises(UsageError, match="cannot scale job digits: it has failed"):
        resize(store, lambda now: now + 1, limits=LIMITS)


def test_the_hosts_of_horovodrun_must_be_those_of_edl_discover() -> None:
    limits = replace(LIMITS, discovery_s=0.0)
    store = Store()
    store.now, store.by_slot = {}, True
    with pytest.raises(UsageError, match="cannot migrate workers of job digits: it is for the ho"):
        moved(store, limits)
    with pytest.raises(UsageError, match="cannot drain host a: job digits was started by horovodr"):
        drain_host(store, "a", 5.0, limits)


def test_a_size_that_may_be_written_or_not_is_named_so() -> None:
    store = Store()
    store.away = {2}
    with pytest.raises(CoordinationError) as caught:
        resize(store, lambda now: now + 1, limits=LIMITS)
    assert str(caught.value) == "ZooKeeper is away"  # nothing was read, so nothing is written

    class Deaf(Store):
        def set_desired(self, *asked: Any, **more: Any) -> DesiredChange:
            super().set_desired(*asked, **more)
            raise AWAY

    with pytest.raises(CoordinationError, match="may have been written or not, see `edl status di"):
        resize(Deaf(), lambda now: now + 1, limits=LIMITS)
    with pytest.raises(CoordinationError, match="may have been written or not, see `edl status di"):
        place(Deaf(), {"b": 1}, limits=LIMITS)


def test_workers_and_devices_are_placed_in_one_write_and_other_hosts_keep_their_devices() -> None:
    store = Store()
    done = place(store, {"b": 2}, {"b": (0, 1)}, timeout_s=5.0, limits=LIMITS)
    assert str(done) == "job digits: 2 -> 2 workers (a: 0, b: 2)"
    assert store.asked == [
        "placed by a program: 2 workers wanted (a: 2 -> 0, b: 0 -> 2; devices of b: 0, 1)"
    ]
    place(store, {"a": 1, "b": 1}, {"a": (3,)}, limits=LIMITS)
    assert store.devices == {"a": (3,), "b": (0, 1)}
    place(store, {"a": 1, "b": 1}, limits=LIMITS)  # changes nothing
    assert len(store.asked) == 2
    place(store, {"a": 1, "b": 1}, {"b": (1,)}, limits=LIMITS)
    assert store.asked[2:] == ["placed by a program: 2 workers wanted (devices of b: 1)"]


def test_who_waits_for_a_placement_is_told_what_trains_where() -> None:
    store = Store()
    store.where = ["a", "a"]
    with pytest.raises(TimedOut, match=r"placing job digits is not done .* workers by host: a: 2;"):
        place(store, {"b": 2}, timeout_s=1e-9, limits=LIMITS)
    assert store.now == {"a": 0, "b": 2}  # still desired


def test_horovodrun_places_its_workers_itself() -> None:
    store = Store()
    store.by_slot = True
    with pytest.raises(UsageError, match="started by horovodrun, which places its workers itself"):
        place(store, {"b": 1}, limits=LIMITS)
    assert not store.asked


# --- draining and stopping ---

GRANTED = Request("drain", 1, 0, True, True, "w1 leaves with the next switch")


def test_a_drain_waits_for_zookeeper() -> None:
    store = Store()
    store.away = {3, 4, 6}

    def answer(now: Store) -> None:
        if now.calls > 6:
            now.request = GRANTED

    store.before_look = answer
    assert drain_worker(store, 1, 5.0, LIMITS) == GRANTED.outcome


def test_a_request_without_an_answer_is_taken_back() -> None:
    store = Store()
    with pytest.raises(TimedOut) as caught:
        drain_worker(store, 1, 0.0, LIMITS)
    assert str(caught.value) == (
        "draining w1 is not done after 0 s; no leader of job digits has answered; the request is "
        "taken back (see `edl status digits`)"
    )
    assert store.request is None


def test_a_request_that_cannot_be_taken_back_is_reported() -> None:
    store = Store()
    store.away = {5}  # running, request, look, answer, withdraw
    with pytest.raises(TimedOut, match="cannot be taken back now, and w1 may still leave"):
        drain_worker(store, 1, 0.0, LIMITS)


def test_a_request_that_may_be_written_or_not_is_reported() -> None:
    store = Store()
    store.away = {2}
    with pytest.raises(CoordinationError, match="; w1 may be asked to leave or not, see `edl st"):
        drain_worker(store, 1, 5.0, LIMITS)


def test_an_answer_at_the_last_moment_counts() -> None:
    class Late(Requests):
        def cancel(self, number: int) -> Request | None:
            self.store.request = GRANTED
            return super().cancel(number)

    store = Store()
    store.requests = Late(store)
    assert drain_worker(store, 1, 0.0, LIMITS) == GRANTED.outcome


def test_an_interrupted_drain_is_taken_back() -> None:
    store = Store()

    def interrupt(now: Store) -> None:
        if now.request is not None:
            raise KeyboardInterrupt

    store.before_look = interrupt
    with pytest.raises(KeyboardInterrupt) as interrupted:
        drain_worker(store, 1, 5.0, LIMITS)
    assert interrupted.value.__notes__ == ["the request is taken back (see `edl status digits`)"]
    assert store.request is None


def test_a_host_is_drained_though_zookeeper_goes_away() -> None:
    store = Store()
    store.now = {"a": 2, "b": 1}
    store.away = {2, 3, 5, 7, 8}
    assert drain_host(store, "b", 5.0, LIMITS) == "host b has left job digits"
    assert store.now == {"a": 2, "b": 0}


def test_edl_stop_waits_for_zookeeper_and_for_slots_between_two_starts() -> None:
    limits = replace(LIMITS, settle_s=0.0)
    store = Store(state=JobState.STOPPING, reason="edl stop")
    store.now, store.agents, store.edl_workers = {}, (), (SlotRecord("a", 0),)
    store.away = {1, 3, 4}
    with pytest.raises(TimedOut, match="still there: the edl-worker of slot a:0; it goes on"):
        stop(store, 0.3, limits)
    assert store.job.state is JobState.STOPPING
    store.away = {store.calls + 1}
    with pytest.raises(CoordinationError):
        stop(store, 0.0, limits)
    store.edl_workers = ()
    at = store.calls
    store.away = {at + 1, at + 3, at + 6}  # the request, a look, and the end that we write
    assert stop(store, 5.0, limits) == (
        "job digits is stopped: edl stop; none of its processes is alive"
    )
    assert store.job.state is JobState.STOPPED


def test_a_job_is_preempted_only_if_it_has_something_to_go_on_from() -> None:
    store = Store()
    with pytest.raises(UsageError, match="job digits has no checkpoint, so all"):
        preempt(store, 30.0)
    with pytest.raises(UsageError, match="a job cannot save within nan s"):
        preempt(store, float("nan"))
    assert store.job.state is JobState.RUNNING
    store.job = changed(JOB, saved_step=8, state=JobState.STOPPED, reason="edl stop")
    with pytest.raises(UsageError, match="cannot preempt job digits: it is stopped"):
        preempt(store, 30.0)


@pytest.mark.parametrize("exit_code", [HALTED_EXIT, UNSAVED_EXIT])
def test_a_preempted_job_says_whether_its_last_step_is_saved(exit_code: int) -> None:
    store = Store(saved_step=8)
    save = CheckpointDetails("/c/8", 1000, capture_s=0.5, write_s=8.5)
    store.log = [SimpleNamespace(details=save)]
    said: list[str] = []

    def end(now: Store) -> None:
        if now.job.state is JobState.STOPPING:
            now.job = changed(
                now.job, state=JobState.STOPPED, exit_code=exit_code, reason=f"{now.job.reason}: so"
            )

    store.before_look = end
    sentence = "job digits is stopped: edl preempt --within 2s: so"
    if exit_code == HALTED_EXIT:
        assert preempt(store, 2.0, on_message=said.append) == sentence
    else:
        with pytest.raises(RequestError, match=sentence):
            preempt(store, 2.0, on_message=said.append)
    [warning] = said
    assert warning.startswith("the newest checkpoint took 9.0 s to save, and a bound of 2 s")


# --- holding the size ---


def test_a_profile_steps_downwards_and_gives_the_size_back() -> None:
    store = Store()
    curve = measure(store, 1, 2, 3)
    assert store.sizes == [2, 3, 2, 1]
    assert store.now == {"a": 2}
    assert [(p.np, round(p.throughput, 6)) for p in curve.points] == [(1, 80), (2, 160), (3, 240)]
    assert [[p.np for p in kept.points] for kept in store.curves] == [[3], [2, 3], [1, 2, 3]]
    assert [event.kind for event in store.log] == ["profiling", *["profile"] * 3]
    assert store.log[0].reason == "2 workers are wanted; profiled with 3, 2, 1"
    assert store.hold is None


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_whatever_happens_the_size_is_given_back(error: BaseException) -> None:
    store = Store()

    def strike(now: Store) -> None:
        if now.now == {"a": 1}:
            raise error

    store.before_look = strike
    with pytest.raises(type(error)):
        measure(store, 1, 2)
    assert store.now == {"a": 2}
    assert [p.np for p in store.curves[-1].points] == [2]


def test_the_size_is_given_back_when_zookeeper_is_back() -> None:
    store = Store()

    def strike(now: Store) -> None:
        if now.now == {"a": 1}:
            now.away = set(range(now.calls + 1, now.calls + 9))
            raise KeyboardInterrupt

    store.before_look = strike
    with pytest.raises(KeyboardInterrupt):
        measure(store, 1, 2)
    assert store.now == {"a": 2}


def test_a_size_that_cannot_be_given_back_is_reported() -> None:
    store = Store()
    hold = HeldSize(store, store.snapshot(), replace(LIMITS, restore_s=0.0))
    hold.__enter__()
    hold.take(1)
    store.away = {store.calls + 1}
    with pytest.raises(RequestError, match="does not have its size back; `edl scale digits --np 2"):
        hold.give_back()
    assert store.hold is None


def test_a_size_that_somebody_else_has_changed_stays() -> None:
    store = Store()

    def scale(now: Store) -> None:
        if now.now == {"a": 1}:
            now.set_desired(lambda _: {"a": 2, "b": 1}, RequestedBy.PERSON, "edl scale")

    store.before_look = scale
    with pytest.raises(Superseded) as caught:
        measure(store, 1, 2)
    assert str(caught.value) == (
        "somebody has asked for 3 workers while job digits was profiled; that "
        "stays; it had 2 before, `edl scale digits --np 2`; measured with 2 workers"
    )
    assert store.now == {"a": 2, "b": 1}


def test_a_size_that_somebody_asks_for_stays_also_when_it_is_measured_just_then() -> None:
    store = Store()

    def scale(now: Store) -> None:
        if now.now == {"a": 1}:
            now.set_desired(lambda same: same, RequestedBy.PERSON, "edl scale")

    store.before_look = scale
    measure(store, 1)
    assert store.now == {"a": 1}


def arrives(hosts: Placement) -> dict[str, int]:
    return {**hosts, "c": 1}


def test_a_host_that_comes_is_added_to_the_size_that_the_job_had() -> None:
    """Its own workers it keeps, as if nobody had profiled."""
    store = Store(max_np=5)
    store.now = {"a": 2, "b": 2}

    def arrive(now: Store) -> None:
        if now.now == {"a": 1, "b": 0}:
            now.agents = (*HOSTS, Host("c", 1, "::3"))
            now.now = arrives(now.now)

    store.before_look = arrive
    with pytest.raises(Superseded) as caught:
        measure(store, 1, 4)
    assert store.now == {"a": 2, "b": 2, "c": 1}
    assert str(caught.value) == (
        "hosts or workers came or left while job digits was profiled: 5 workers are wanted now; "
        "it had 4 before, `edl scale digits --np 4`; measured with 4 workers"
    )


def test_a_worker_that_leaves_takes_nobody_with_it() -> None:
    """SIGTERM while 2 of 4 train: the leader asks for one fewer, and 3 are wanted afterwards."""
    store = Store()
    store.now = {"a": 2, "b": 2}

    def leave(now: Store) -> None:
        if now.now == {"a": 2, "b": 0}:
            now.now = {"a": 1, "b": 0}

    store.before_look = leave
    with pytest.raises(Superseded, match="3 workers are wanted now; it had 4 before"):
        measure(store, 2)
    assert store.now == {"a": 1, "b": 2}


def test_a_host_that_leaves_while_it_has_no_worker_gets_none_back() -> None:
    store = Store()
    store.now = {"a": 2, "b": 2}

    def drain(now: Store) -> None:
        if now.now == {"a": 1, "b": 0}:  # its agent has nothing to change
            now.agents = (HOSTS[0], Host("b", 0, "::2"))

    store.before_look = drain
    assert [point.np for point in measure(store, 1).points] == [1]
    assert store.now == {"a": 2, "b": 0}


def test_an_answer_that_is_lost_does_not_give_back_twice() -> None:
    store = Store(max_np=9)
    store.now = {"a": 2, "b": 2}

    hold = HeldSize(store, store.snapshot(), LIMITS)
    with hold:
        hold.take(2)
        store.agents = (*HOSTS, Host("c", 2, "::3"))
        store.now = arrives(store.now)
        store.now = dict(hold._restored(store.now))  # written, and then the connection broke
    assert store.now == {"a": 2, "b": 2, "c": 1}


def test_what_was_changed_while_the_session_was_lost_stays() -> None:
    """Nobody can know any more whether it was asked for."""
    store = Store()

    def lose(now: Store) -> None:
        if now.now == {"a": 1}:
            now.hold, now.now = None, {"a": 1, "b": 2}

    store.before_look = lose
    with pytest.raises(Superseded, match="asked for 3 workers while job digits was profiled; that"):
        measure(store, 1)


def test_a_lost_session_alone_does_not_end_a_profile() -> None:
    store = Store()

    def lose(now: Store) -> None:
        if now.now == {"a": 2} and now.step == 10:
            now.hold = None

    store.before_look = lose
    assert [point.np for point in measure(store, 1, 2).points] == [1, 2]
    assert store.now == {"a": 2}


def test_one_profile_at_a_time() -> None:
    store = Store()
    store.hold = other = ProfileHold("t", "process 7 on c", {"a": 2})
    with pytest.raises(UsageError, match="job digits is profiled by process 7 on c; wait until"):
        measure(store, 1)
    assert (store.now, store.hold) == ({"a": 2}, other)


def test_an_interrupted_profile_says_what_is_left_of_it() -> None:
    store = Store()

    def interrupt(store: Store) -> None:
        if store.step == 40:
            raise KeyboardInterrupt

    store.before_look = interrupt
    with pytest.raises(KeyboardInterrupt) as interrupted:
        measure(store, 3, 1)
    assert store.now == {"a": 2}
    (note,) = interrupted.value.__notes__
    assert note.startswith("the job has the size back that it had; what was measured is kept")


class Interrupted(Store):
    """Ctrl-C while the size is changed for the second time."""

    changes = 0

    def set_desired(self, *asked: Any) -> DesiredChange:
        self.changes += 1
        if self.changes == 2:
            raise KeyboardInterrupt
        return super().set_desired(*asked)


def test_an_interrupt_while_the_size_is_given_back_says_how_to() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted:
        measure(Interrupted(), 3)
    assert interrupted.value.__notes__ == [
        "job digits does not have its size back; `edl scale digits --np 2`"
    ]


def test_a_size_that_is_not_reached_in_time_is_reported_and_given_back() -> None:
    store = Store()
    with pytest.raises(
        TimedOut, match=r"with 3 workers is not done after 1e-09 s; .*nothing was meas"
    ):
        measure(store, 3, timeout_s=1e-9)
    assert store.now == {"a": 2}


# --- migrating ---


def moved(store: Store, limits: ClientLimits = LIMITS) -> str:
    return str(migrate(store, "a", "b", 1, 5.0, lambda _message: None, limits))


class WrittenThenInterrupted(Store):
    """The server has the new size when Ctrl-C comes, and the client not yet its answer."""

    def set_desired(self, *asked: Any, **more: Any) -> DesiredChange:
        super().set_desired(*asked, **more)
        raise KeyboardInterrupt


def test_a_migration_that_ctrl_c_may_have_begun_says_so() -> None:
    store = WrittenThenInterrupted()
    store.now = {"a": 2, "b": 0}
    with pytest.raises(KeyboardInterrupt) as interrupted:
        moved(store)
    assert interrupted.value.__notes__ == [
        "the migration goes on, unless it had not begun: see `edl status digits`"
    ]


def test_a_migration_is_done_also_when_its_events_cannot_be_read() -> None:
    store = Store()
    store.away = {4}  # the log
    assert moved(store).startswith("moved 1 worker of digits from a to b")
    assert store.now == {"a": 1, "b": 1}
    assert store.asked == ["edl migrate from a to b: 2 workers wanted (a: 2 -> 1, b: 0 -> 1)"]


@pytest.mark.parametrize("is_written", [False, True])
def test_a_migration_is_taken_back_as_soon_as_zookeeper_is_back(is_written: bool) -> None:
    """The target's agent has gone; the first answer of ZooKeeper is lost."""

    class Hiccup(Store):
        changes = 0

        def set_desired(self, *asked: Any) -> DesiredChange:
            self.changes += 1
            self.agents, self.where = HOSTS[:1], ["a", "a"]  # b has gone, and nobody had moved
            before = self.desired
            done = super().set_desired(*asked)
            if self.changes != 2:
                return done
            self.desired = self.desired if is_written else before
            raise AWAY

    store = Hiccup()
    with pytest.raises(HostLost, match="1 of 1 worker of job digits stay on a"):
        moved(store, replace(LIMITS, agent_gone_s=0.0))
    assert store.now == {"a": 2, "b": 0}
