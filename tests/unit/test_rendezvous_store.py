"""The rendezvous store answers for a whole mesh: when all is there, or with a refusal."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

import pytest

from edl.ring import rendezvous
from edl.ring.rendezvous import RendezvousStore

SCOPE, NEXT = "g1-ab", "g2-cd"
HOSTS, ADDRESSES = "global/edl-hosts/3", "global/edl-addresses/3/1"
Answer = tuple[int, bytes]


def run(act: Callable[[RendezvousStore], Awaitable[None]], hold_s: float = 60.0) -> None:
    async def main() -> None:
        store = RendezvousStore(hold_s)
        store.announce(SCOPE)
        await act(store)
        assert store.held == 0

    asyncio.run(main())


async def ask(store: RendezvousStore, *keys: str) -> list[asyncio.Task[Answer]]:
    tasks = [asyncio.create_task(store.get(SCOPE, key)) for key in keys]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


def test_a_mesh_is_told_when_its_last_value_has_come() -> None:
    async def act(store: RendezvousStore) -> None:
        await store.put(SCOPE, "global/rank_1", b"b")
        tasks = await ask(store, HOSTS, HOSTS, ADDRESSES)
        assert store.held == 3
        await store.put(SCOPE, "global/rank_0", b"a")
        await store.put(SCOPE, "local/rank_2", b"another mesh's")
        await ask(store)
        assert not any(task.done() for task in tasks)
        await store.put(SCOPE, "global/rank_2", b"cc")
        lengths = b"\0\0\0\1\0\0\0\1\0\0\0\2"
        assert [await task for task in tasks[:2]] == [(200, lengths + b"abcc")] * 2
        for rank in range(3):
            await store.put(SCOPE, f"global/{rank}", b"%d0%d1" % (rank, rank))
        lengths = b"\0\0\0\2\0\0\0\0\0\0\0\2"
        assert await tasks[2] == (200, lengths + b"0021")
        assert await store.get(SCOPE, ADDRESSES) == (200, lengths + b"0021")

    run(act)


def test_a_mesh_that_stays_incomplete_is_404_so_that_the_client_asks_again() -> None:
    async def act(store: RendezvousStore) -> None:
        await store.put(SCOPE, "global/rank_0", b"a")
        assert await store.get(SCOPE, HOSTS) == (404, b"")

    run(act, hold_s=0.01)


def test_a_value_that_is_deleted_is_missed_again() -> None:
    async def act(store: RendezvousStore) -> None:
        for rank in range(3):
            await store.put(SCOPE, f"global/rank_{rank}", b"a")
        store.delete(SCOPE, "global/rank_1")
        (task,) = await ask(store, HOSTS)
        assert store.held == 1
        store.delete(SCOPE, "global/rank_0")
        await store.put(SCOPE, "global/rank_1", b"a")
        assert await task == (404, b"")  # one came back, another was deleted meanwhile
        (task,) = await ask(store, HOSTS)
        await store.put(SCOPE, "global/rank_0", b"b")
        assert (await task)[1].endswith(b"baa")

    run(act)


@pytest.mark.parametrize("end", [lambda s: s.close(SCOPE), lambda s: s.announce(NEXT)])
def test_a_scope_that_is_given_up_frees_those_who_wait_for_a_mesh(
    end: Callable[[RendezvousStore], None],
) -> None:
    async def act(store: RendezvousStore) -> None:
        tasks = await ask(store, HOSTS, ADDRESSES)
        end(store)
        assert [await task for task in tasks] == [(410, b"")] * 2
        assert await store.get(SCOPE, HOSTS) == (410, b"")

    run(act)


def test_a_scope_that_ends_before_an_answer_has_its_turn_is_gone() -> None:
    async def act(store: RendezvousStore) -> None:
        tasks = await ask(store, HOSTS)
        for rank in range(3):
            await store.put(SCOPE, f"global/rank_{rank}", b"a")
        store.close(SCOPE)
        assert await tasks[0] == (410, b"")

    run(act)


def test_who_goes_away_is_not_waited_for() -> None:
    async def act(store: RendezvousStore) -> None:
        one, other = await ask(store, HOSTS, HOSTS)
        one.cancel()
        await ask(store)
        assert store.held == 1
        for rank in range(3):
            await store.put(SCOPE, f"global/rank_{rank}", b"a")
        assert (await other)[0] == 200

    run(act)


def test_values_of_a_wrong_size_are_refused_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act(store: RendezvousStore) -> None:
        for rank in range(3):
            await store.put(SCOPE, f"global/{rank}", bytes(3))
        for asked in (ADDRESSES, ADDRESSES, "global/edl-addresses/3/5"):
            assert await store.get(SCOPE, asked) == (409, b"")
        assert await store.get(SCOPE, "global/1") == (200, bytes(3))

    with caplog.at_level(logging.WARNING):
        run(act)
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "the rendezvous refused a ring"
    ] * 2
    assert "3 members of global stored 3 bytes" in caplog.records[0].message
    assert "global/edl-addresses/3/5: a ring has" in caplog.records[1].message


def test_between_two_answers_the_loop_sees_to_others() -> None:
    async def act(store: RendezvousStore) -> None:
        tasks = await ask(store, *[HOSTS] * 100)
        for rank in range(3):
            await store.put(SCOPE, f"global/rank_{rank}", b"a")
        done, turns = [0], 0
        while done[-1] < len(tasks):
            await asyncio.sleep(0)
            done.append(sum(task.done() for task in tasks))
            turns += 1
            assert turns < 1000
        assert max(after - before for before, after in itertools.pairwise(done)) == 1

    run(act)


def test_a_full_scope_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SCOPE_BYTES", 10)

    async def act(store: RendezvousStore) -> None:
        assert await store.put(SCOPE, "global/0", bytes(10)) == 200
        assert await store.put(SCOPE, "global/1", b"x") == 413
        assert await store.put(SCOPE, "global/0", bytes(9)) == 200
        assert await store.put(SCOPE, "global/1", b"x") == 200

    run(act)
