"""The program that calls Ray: what it says of leases, also when it was started anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.fleet.ray_program import RayCalls

ASKED = ("asked", "", "waits for a node with edl_host")
RUNNING = ("running", "n1", "running")


class RayError(Exception):
    """An error of Ray."""


class RayActorError(RayError):
    """The error that an actor has died."""


class ActorUnavailableError(RayActorError):
    """The error that an actor cannot be reached."""


@dataclass
class Actor:
    """An actor, and what Ray knows of it; it answers if ``answer`` is there."""

    name: str
    word: str = "ALIVE"
    answer: tuple[str, int | None, str] | RayError | None = None
    signals: int = 0

    @property
    def state(self) -> Any:
        return SimpleNamespace(remote=lambda: self)

    @property
    def leave(self) -> Any:
        def remote() -> None:
            self.signals += 1

        return SimpleNamespace(remote=remote)

    @property
    def _actor_id(self) -> Any:
        return SimpleNamespace(hex=lambda: self.name)


@dataclass
class StandInRay:
    """The calls of Ray that the program makes.

    Attributes:
        actors: the actors by name.
        forgets: whether Ray forgets what it was told to kill.
        killed: the names of the actors that it was told to kill.
        free: how many hosts each living node has left, by its id, which is "id of HOST".
        options: the options of the last actor that was created.
        exceptions: the classes of Ray's errors.
    """

    actors: dict[str, Actor] = field(default_factory=dict)
    forgets: bool = False
    killed: list[str] = field(default_factory=list)
    free: dict[str, float] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    exceptions: Any = field(
        default_factory=lambda: SimpleNamespace(
            RayError=RayError,
            RayActorError=RayActorError,
            ActorUnavailableError=ActorUnavailableError,
        )
    )

    def __post_init__(self) -> None:
        def table(actor: str) -> dict[str, str]:
            return {"State": self.actors[actor].word}

        def available() -> dict[str, dict[str, float]]:
            return {node: {"edl_host": hosts} for node, hosts in self.free.items()}

        strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, **_: node)
        self.util = SimpleNamespace(
            list_named_actors=lambda: list(self.actors), scheduling_strategies=strategies
        )
        state = SimpleNamespace(actors=table, available_resources_per_node=available)
        self._private = SimpleNamespace(state=state)

    def init(self, **_: object) -> None:
        pass

    def nodes(self) -> list[dict[str, Any]]:
        hosts = [(node, node.removeprefix("id of ")) for node in self.free]
        return [{"NodeID": n, "NodeManagerHostname": h, "Alive": True} for n, h in hosts]

    def remote(self, _: object) -> Any:
        def options(**given: Any) -> Any:
            self.options = given
            return SimpleNamespace(remote=lambda *_: None)

        return SimpleNamespace(options=options)

    def get_actor(self, name: str) -> Actor:
        if name not in self.actors:
            raise ValueError(name)
        return self.actors[name]

    def wait(self, asked: Sequence[Actor], **_: object) -> tuple[list[Actor], list[Actor]]:
        done = [one for one in asked if one.answer is not None]
        return done, [one for one in asked if one.answer is None]

    def get(self, asked: Actor, timeout: float) -> tuple[str, int | None, str]:
        if isinstance(asked.answer, RayError):
            raise asked.answer
        assert asked.answer is not None
        return asked.answer

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor.name)
        if not self.forgets:
            del self.actors[actor.name]


@pytest.fixture
def ray() -> StandInRay:
    return StandInRay()


def program(ray: StandInRay) -> RayCalls:
    return RayCalls(ray, "auto", "edl-lab-x-")


def test_a_lease_waits_runs_and_ends(ray: StandInRay) -> None:
    calls = program(ray)
    ray.actors["l1"] = Actor("l1", "PENDING_CREATION")
    assert calls.leases() == {"l1": ASKED}
    ray.actors["l1"].word = "ALIVE"
    assert calls.leases() == {"l1": ("running", "", "running")}, "it has not said where"
    ray.actors["l1"].answer = ("n1", None, "")
    assert calls.leases() == {"l1": RUNNING}
    ray.actors["l1"].answer = None
    assert calls.leases() == {"l1": RUNNING}, "its node is busy"
    ray.actors["l1"].answer = ("n1", 1, "no such cluster\n")
    assert calls.leases() == {"l1": ("ended", "n1", "failed with 1")}
    assert calls.log("l1") == "no such cluster\n"
    assert "l1" not in ray.actors
    assert calls.leases() == {"l1": ("ended", "n1", "failed with 1")}


def test_a_program_that_is_started_anew_takes_no_lease_from_a_busy_node(ray: StandInRay) -> None:
    """An actor that has not answered this program runs or waits as Ray says."""
    ray.actors |= {"l1": Actor("l1"), "l2": Actor("l2", "DEPENDENCIES_UNREADY")}
    found = program(ray).leases()
    assert found == {"l1": ("running", "", "running"), "l2": ASKED}


def test_what_ray_does_not_tell_is_not_known(ray: StandInRay) -> None:
    ray.actors["l1"] = Actor("l1", "RESTARTING")
    assert program(ray).leases() == {"l1": ("unknown", "", "its actor does not answer")}
    ray.actors["l1"] = Actor("l1", answer=ActorUnavailableError("cut off"))
    assert program(ray).leases()["l1"][0] == "running"
    ray._private = SimpleNamespace()  # another release of Ray
    ray.actors["l1"].answer = None
    assert program(ray).leases()["l1"][0] == "unknown"


def test_an_actor_that_has_died_ends_its_lease(ray: StandInRay) -> None:
    ray.actors["l1"] = Actor("l1", "DEAD", RayActorError("its node has died\nand more"))
    assert program(ray).leases() == {"l1": ("ended", "", "its node has died")}


def test_a_host_is_told_to_leave_by_a_program_that_is_started_anew(ray: StandInRay) -> None:
    ray.actors |= {"l1": Actor("l1"), "l2": Actor("l2", "PENDING_CREATION")}
    for name in ("l1", "l2", "l3"):
        program(ray).give_back(name, 60.0)
    assert list(ray.actors) == ["l1"], "what waits for a node ends"
    assert ray.actors["l1"].signals == 1
    program(ray).give_back("l1", 0.0)
    assert not ray.actors


def test_a_host_that_runs_is_told_again(ray: StandInRay) -> None:
    ray.actors["l1"] = Actor("l1", answer=("n1", None, ""))
    calls = program(ray)
    calls.leases()
    calls.give_back("l1", 60.0)
    calls.give_back("l1", 0.0)
    assert ray.actors["l1"].signals == 2


def test_what_has_ended_is_remembered_with_its_first_reason(ray: StandInRay) -> None:
    ray.forgets = True  # it lists the actor for a while
    ray.actors["l1"] = Actor("l1", answer=("n1", 0, ""))
    calls = program(ray)
    ended = {"l1": ("ended", "n1", "completed")}
    assert calls.leases() == ended
    for later in (RayActorError("it was killed"), None):
        ray.actors["l1"].answer = later
        assert calls.leases() == ended


def test_an_actor_that_ray_has_not_killed_is_killed_again(ray: StandInRay) -> None:
    """Its head died: the actor would keep its node from all later leases."""
    ray.forgets = True
    ray.actors["l1"] = Actor("l1", answer=("n1", 0, ""))
    calls = program(ray)
    calls.leases()
    calls.leases()
    assert ray.killed == ["l1", "l1"]


def test_a_lease_that_was_asked_for_again_is_not_taken_for_the_ended_one(ray: StandInRay) -> None:
    """Another controller led meanwhile, which did not know the end."""
    ray.actors["l1"] = Actor("l1", answer=("n1", 0, ""))
    calls = program(ray)
    calls.leases()
    ray.actors["l1"] = Actor("l1", answer=("n1", None, ""))
    assert calls.leases() == {"l1": RUNNING}
    ray.actors.clear()
    assert calls.leases() == {"l1": ("ended", "n1", "its actor has died")}


def test_an_actor_that_dies_before_it_is_killed(ray: StandInRay, monkeypatch: Any) -> None:
    ray.actors["l1"] = Actor("l1", answer=("n1", 0, ""))
    calls, found = program(ray), iter([ray.actors["l1"]])

    def get_actor(name: str) -> Actor:
        try:
            return next(found)
        except StopIteration:
            raise ValueError(name) from None

    monkeypatch.setattr(ray, "get_actor", get_actor)
    assert calls.leases() == {"l1": ("ended", "n1", "completed")}


def test_another_node_is_taken_than_those_to_avoid(ray: StandInRay) -> None:
    ray.free = {"id of n1": 1.0, "id of n2": 0.0, "id of n3": 1.0}
    calls = program(ray)
    calls.ask("l1", ["edl"], {})
    assert "scheduling_strategy" not in ray.options
    calls.ask("l1", ["edl"], {}, ["n1"])
    assert ray.options["scheduling_strategy"] == "id of n3"
    calls.ask("l1", ["edl"], {}, ["n1", "n3"])
    assert "scheduling_strategy" not in ray.options, "only Ray knows which will be free"
    ray._private = SimpleNamespace()  # another release of Ray
    calls.ask("l1", ["edl"], {}, ["n1"])
    assert "scheduling_strategy" not in ray.options
