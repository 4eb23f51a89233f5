"""Membership under anything: deaths, freezes, late news, changes of mind; then it settles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from made import make_job
from model import LIMITS, Model

from edl.records import Desired, JobState, Request, RequestKind, Stage

HOSTS = ("a", "b", "c")
PICK = st.integers(0, 9)
SOME = st.sets(st.integers(0, 8), max_size=4)


class Membership(RuleBasedStateMachine):
    """Rules are events at the worst moment; ``calm`` lets time pass as it should."""

    model: Model

    @initialize(
        np=st.sampled_from([2, 3, 1, 4]),
        allowed=st.sampled_from([{}, {"sizes": (1, 2, 4)}, {"size_step": 2}]),
        below=st.integers(0, 2),
        above=st.integers(0, 3),
        rounds=st.integers(0, 5).map(lambda n: 5 - n),
    )
    def start(self, np: int, allowed: dict[str, Any], below: int, above: int, rounds: int) -> None:
        job = make_job(
            "job", np=np, command=("true",), min_np=max(1, np - below), max_np=np + above
        )
        self.model = Model(job, Desired({"a": np, "b": 0, "c": 0}))
        self.calm(rounds)

    def worker(self, pick: int):  # type: ignore[no-untyped-def]
        running = self.model.running()
        return running[-1 - pick % len(running)] if running else None

    def on(self, pick: int, event, *args) -> None:  # type: ignore[no-untyped-def]
        if (w := self.worker(pick)) is not None:
            event(w, *args)

    # --- time passes ---

    @rule(rounds=st.integers(1, 6))
    def calm(self, rounds: int) -> None:
        for _ in range(rounds):
            self.model.agents()
            self.model.round()

    @rule(rounds=st.integers(1, 3), late=SOME)
    def some_are_late(self, rounds: int, late: set[int]) -> None:
        """Time passes, but some workers hear nothing, say nothing and arrive nowhere."""
        running = self.model.running()
        ids = frozenset(running[-1 - i % len(running)].id for i in late if running)
        for _ in range(rounds):
            self.model.agents()
            self.model.round(ids)

    @rule(seconds=st.sampled_from([0.5, 5.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.model.time += seconds

    @rule()
    def agents_start_workers(self) -> None:
        self.model.agents()

    @rule(pick=PICK)
    def warmed_up(self, pick: int) -> None:
        self.on(pick, self.model.warmed_up)

    @rule(pick=PICK)
    def node_is_written(self, pick: int) -> None:
        self.on(pick, self.model.write)

    @rule()
    def all_nodes_are_written(self) -> None:
        self.model.each(self.model.write)

    @rule(pick=PICK)
    def learns_the_generation(self, pick: int) -> None:
        self.on(pick, self.model.learn)

    @rule(pick=PICK)
    def notices_the_break(self, pick: int) -> None:
        self.on(pick, self.model.notice)

    @rule(pick=PICK)
    def goes_to_the_rendezvous(self, pick: int) -> None:
        self.on(pick, self.model.go)

    @rule()
    def all_go(self) -> None:
        self.model.each(self.model.go)

    @rule(back=st.integers(1, 3))
    def ring_is_built(self, back: int) -> None:
        if len(self.model.generations) >= back:
            self.model.build(self.model.generations[-back].number)

    @rule(back=st.integers(1, 3))
    def ring_steps(self, back: int) -> None:
        if len(self.model.generations) >= back:
            self.model.train(self.model.generations[-back].number)

    @rule()
    def ring_agrees(self) -> None:
        self.model.each(self.model.learn)
        for generation in self.model.generations[-3:]:
            self.model.agree(generation.number)

    @rule(runs=st.booleans())
    def an_epoch_begins_or_ends(self, runs: bool) -> None:
        self.model.in_epoch = runs

    @rule()
    def a_newcomer_steps_back_when_a_ring_breaks(self) -> None:
        self.model.steps_back = True

    @rule()
    def leader_looks(self) -> None:
        self.model.look()

    @rule()
    def leader_acts(self) -> None:
        self.model.lead()

    # --- people ---

    @rule(data=st.data())
    def scale_or_migrate(self, data: st.DataObject) -> None:
        job = self.model.job
        hosts = dict.fromkeys(HOSTS, 0)
        sizes = [n for n in range(1, 8) if job.sizes.allows(n)]
        for _ in range(data.draw(st.sampled_from(sizes), "workers")):
            hosts[data.draw(st.sampled_from(HOSTS), "host")] += 1
        self.model.want(hosts)

    @rule(old=st.sampled_from(HOSTS), new=st.sampled_from(HOSTS), np=st.integers(1, 3))
    def migrate(self, old: str, new: str, np: int) -> None:
        hosts = self.model.desired
        np = min(np, hosts[old])
        hosts[old] -= np
        hosts[new] += np
        self.model.want(hosts)

    @rule(slots=st.integers(1, 3))
    def borrow(self, slots: int) -> None:
        self.model.borrow(slots)

    @rule(slots=st.sampled_from([None, 1, 2]), within_s=st.sampled_from([1.0, 5.0, 60.0]))
    def reclaim(self, slots: int | None, within_s: float) -> None:
        self.model.reclaim(slots, within_s)

    @rule(pick=PICK, kind=st.sampled_from(RequestKind))
    def drain_or_replace(self, pick: int, kind: RequestKind) -> None:
        number = len(self.model.requests) + len(self.model.answered)
        if (w := self.worker(pick)) is not None:
            self.model.requests[number] = Request(kind, w.id, number)

    @rule(pick=PICK)
    def sigterm(self, pick: int) -> None:
        self.on(pick, self.model.sigterm)

    @rule(host=st.sampled_from(HOSTS))
    def sigterm_to_all_workers_of_a_host(self, host: str) -> None:
        for w in self.model.running():
            if w.member.host == host:
                self.model.sigterm(w)

    @precondition(lambda self: len(self.model.generations) > 3)
    @rule()
    def stop(self) -> None:
        self.model.job = replace(self.model.job, state=JobState.STOPPING)

    # --- faults ---

    @rule(pick=PICK, ahead=SOME)
    def kill(self, pick: int, ahead: set[int]) -> None:
        self.on(pick, self.model.kill, ahead)

    @rule(pick=PICK, ahead=SOME)
    def freeze(self, pick: int, ahead: set[int]) -> None:
        self.on(pick, self.model.freeze, ahead)

    @rule(pick=PICK)
    def thaw(self, pick: int) -> None:
        self.on(pick, self.model.thaw)

    @rule(pick=st.integers(0, 40))
    def session_expires(self, pick: int) -> None:
        if self.model.nodes:
            node = sorted(self.model.nodes)[-1 - pick % len(self.model.nodes)]
            self.model.expire(self.model.workers[node])

    @rule(picks=SOME)
    def zookeeper_is_cut_off_from(self, picks: set[int]) -> None:
        """For longer than a session lasts; who works goes on."""
        running = self.model.running()
        cut_off = [running[-1 - pick % len(running)] for pick in picks if running]
        self.model.cut_off = {w.id for w in cut_off}
        for w in cut_off:
            self.model.expire(w)

    @rule()
    def the_dead_are_proven(self) -> None:
        self.model.each(self.model.prove)

    @rule()
    def sessions_of_the_dead_expire(self) -> None:
        self.model.each(lambda w: None if w.works else self.model.expire(w))

    @rule(pick=PICK)
    def rendezvous_times_out(self, pick: int) -> None:
        self.on(pick, self.model.give_up)

    @rule(host=st.sampled_from(HOSTS), how=st.sampled_from(["well", "hangs", "sleeps"]))
    def another_newcomer(self, host: str, how: str) -> None:
        self.model.spawn(host, hangs=how == "hangs", sleeps=how == "sleeps")

    @rule(host=st.sampled_from(HOSTS))
    def an_agent_goes_or_comes_back(self, host: str) -> None:
        self.model.agentless ^= {host}

    @rule()
    def new_leader(self) -> None:
        self.model.new_leader()

    @precondition(lambda self: self.model.deposed)
    @rule()
    def a_deposed_leader_acts(self) -> None:
        """On what it had read in its term; it finds out that this is over."""
        before = (len(self.model.generations), dict(self.model.evicted), self.model.wanted)
        self.model.act(self.model.deposed.pop())
        now = (len(self.model.generations), self.model.evicted, self.model.wanted)
        assert now == before

    @invariant()
    def terms_only_grow_and_everybody_is_in_or_out(self) -> None:
        generations = self.model.generations
        assert [g.number for g in generations] == [*range(1, len(generations) + 1)]
        terms = [g.term for g in generations]
        assert terms == sorted(terms)
        for g in generations:
            assert not set(g.worker_ids) & set(g.left)
            assert len(set(g.worker_ids)) == len(g.worker_ids)

    # --- and in the end ---

    def teardown(self) -> None:
        """Stop the faults, and assert that the world then reaches what is desired.

        The number of rounds in which it has to is bounded.
        """
        if not hasattr(self, "model"):
            return
        model = self.model
        model.in_epoch = False
        model.agentless.clear()
        model.cut_off.clear()
        model.each(lambda w: None if w.works else model.expire(w))
        model.each(model.prove)
        for rounds in range(40):
            if rounds == 25:
                model.each(model.thaw)  # the frozen wake up, too late
            model.time += LIMITS.prepare_s / 4
            model.agents()
            model.round()
            model.each(model.prove)
        assert model.settled() == "", model.settled()


@given(
    np=st.integers(1, 4),
    data=st.data(),
    ready=st.lists(st.integers(1, 12), min_size=4, max_size=4),
    deaths=st.sets(st.integers(0, 12), max_size=3),
)
def test_a_migration_is_one_switch(
    np: int, data: st.DataObject, ready: list[int], deaths: set[int]
) -> None:
    """However late each newcomer is, and whoever of them dies on the way, before all are ready.

    The ring never shrinks. When all workers move, one brings the state and goes with the next.
    """
    moved = data.draw(st.integers(1, np), "moved")
    job = make_job("job", np=np, command=("true",), max_np=np)
    world = Model(job, Desired({"a": np, "b": 0}))
    for _ in range(6):
        world.agents()
        world.round()
    (first,) = world.generations
    assert len(first.members) == np
    old = {w.id for w in world.running()}
    world.want({"a": np - moved, "b": moved})
    ready_at: dict[int, int] = {}
    for time in range(30):
        world.agents()
        newcomers = [w for w in world.running() if w.id not in old]
        for w in newcomers:
            w.hangs = time < ready_at.setdefault(w.id, time + ready[w.member.slot])
        unready = [w for w in newcomers if w.member.stage is Stage.PREPARING]
        if time in deaths and unready:
            world.kill(unready[0])
            world.prove(unready[0])
            world.expire(unready[0])
        world.round()
    assert world.settled() == "", world.settled()
    changes = world.generations[1:]
    assert len(changes) == (1 if moved < np else 2), changes
    assert all(len(g.members) >= np for g in changes)


@given(
    here=st.integers(1, 4),
    others=st.integers(1, 3),
    signalled_at=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    agent_at=st.none() | st.integers(0, 4),
)
def test_a_host_that_is_signalled_leaves_in_one_switch(
    here: int, others: int, signalled_at: list[int], agent_at: int | None
) -> None:
    """Its workers get SIGTERM at any tenths of a second, and perhaps its agent, too."""
    np = here + others
    job = make_job("job", np=np, command=("true",), max_np=np)
    model = Model(job, Desired({"a": others, "b": here}))
    for _ in range(6):
        model.agents()
        model.round()
    workers = [w for w in model.running() if w.member.host == "b"]
    for tenth in range(12):
        for w, at in zip(workers, signalled_at, strict=False):
            if tenth == at:
                model.sigterm(w)
                model.write(w)
        if tenth == agent_at:
            model.want({**model.desired, "b": 0})
        model.round(seconds=0.1)
        model.agents()
    assert [len(g.members) for g in model.generations] == [np, others]
    assert model.desired == {"a": others, "b": 0}
    assert model.settled() == "", model.settled()


TestMembership = Membership.TestCase
TestMembership.settings = settings(max_examples=3 * settings().max_examples)
