"""What both frameworks build on: messages, pieces of a state, Horovod's refusals."""

from __future__ import annotations

import pickle
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edl.binding import process
from edl.binding.process import classify_error, raise_in, refusal
from edl.binding.replica import (
    FIRST_PIECE_BYTES,
    LARGE_BYTES,
    LENGTH_BYTES,
    Reference,
    broadcast_message,
    describe,
    exchange_state,
    few,
    fill,
    map_leaves,
    of_value,
    references,
    transfers,
)
from edl.errors import UsageError
from edl.ring.ring import CollectiveFailed

FITS = FIRST_PIECE_BYTES - LENGTH_BYTES


@pytest.mark.parametrize("size", [0, 1, FITS, FITS + 1, 5 * FITS])
def test_a_message_arrives_whole_and_a_short_one_in_one_piece(size: int) -> None:
    payload = bytes(number % 251 for number in range(size))
    wire: list[bytearray] = []

    def send(data: bytearray, _name: str) -> bytearray:
        wire.append(data)
        return data

    assert broadcast_message(payload, True, "m", send) == payload
    assert len(wire) == (1 if size <= FITS else 2)
    sent = iter(wire)

    def receive(data: bytearray, _name: str) -> bytearray:
        piece = next(sent)
        assert len(data) == len(piece), "all pass as much to a broadcast"
        return piece

    assert broadcast_message(b"something else", False, "m", receive) == payload


def reference(index: int, size: int, device: str = "cpu") -> Reference:
    return Reference(index, (size,), "uint8", size, device)


def test_references_are_found_wherever_they_are_and_come_by_index() -> None:
    one, two, three = (reference(index, 8) for index in range(3))
    assert references({"a": [three, {"b": (one, 7)}], "c": two}) == [one, two, three]


def test_a_description_is_filled_with_what_was_sent_and_what_is_empty() -> None:
    def refer(value: object, index: int) -> tuple[bytes, Reference] | None:
        return (value, reference(index, len(value))) if isinstance(value, bytes) else None

    state = {"a": [b"one", 2], "b": (b"", b"three")}
    taken: list[bytes] = []
    description = describe(state, taken, refer)
    assert taken == [b"one", b"", b"three"]
    assert references(description) == [
        reference(index, size) for index, size in enumerate((3, 0, 5))
    ]
    sent = {0: b"one", 2: b"three"}
    assert fill(description, sent, lambda each: bytes(each.size)) == state


def test_large_arrays_go_alone_small_ones_together_empty_ones_not_at_all() -> None:
    small = [reference(index, 8) for index in (0, 2, 4)]
    large, empty = reference(1, LARGE_BYTES), reference(3, 0)
    elsewhere = reference(5, 8, "cuda")
    assert list(transfers([*small, large, empty, elsewhere])) == [[large], small, [elsewhere]]


def test_no_piece_of_small_ones_is_much_larger_than_a_large_one() -> None:
    many = [reference(index, LARGE_BYTES - 1) for index in range(5)]
    assert [len(piece) for piece in transfers(many)] == [2, 2, 1]


def test_leaves_know_where_they_are() -> None:
    seen: list[str] = []
    value = {"a": [1, (2, {"b": 3})]}
    assert map_leaves(value, lambda leaf, where: seen.append(where) or -leaf) == {
        "a": [-1, (-2, {"b": -3})]
    }
    assert seen == ["state['a'][0]", "state['a'][1][0]", "state['a'][1][1]['b']"]


def test_newcomers_get_dicts_of_the_same_kinds() -> None:
    state = [Counter(a=2), OrderedDict(b=1), defaultdict(set, c={3}), defaultdict(lambda: 4, d=5)]
    sent = pickle.loads(pickle.dumps(describe(state, [], lambda value, index: None)))
    assert sent == state
    assert [type(one) for one in sent] == [Counter, OrderedDict, defaultdict, dict]
    assert sent[2]["new"] == set()


@pytest.mark.parametrize(
    "array",
    [
        np.array([1, 2], ">i4"),
        np.arange(6, dtype=">f8").reshape(2, 3).T,
        np.arange(6, dtype=">i2")[::2],
        np.array(1, ">i8"),
        np.array(["ab"], ">U2"),
    ],
    ids=repr,
)
def test_an_array_in_another_byte_order_is_sent_as_it_is(array: np.ndarray[Any, Any]) -> None:
    """The check of the states tells it from one in this host's."""
    place = SimpleNamespace(rank=0)
    ring: Any = SimpleNamespace(place=place, broadcast=lambda mine, _root, _name: mine)
    arrays: Any = SimpleNamespace(
        refer=lambda _value, _index: None, broadcast=lambda *_: {}, empty=None
    )
    (came,) = exchange_state(arrays, ring, 0, [array], keep=True)
    assert came.dtype.str == array.dtype.str
    np.testing.assert_array_equal(came, array, strict=True)
    assert of_value(came) == of_value(array)


def test_a_few_of_many() -> None:
    assert few(["a", "b"]) == "a; b"
    assert few(["a", "b", "c", "d", "e"]) == "a; b; c and 2 more"


@pytest.mark.parametrize(
    ("message", "refused"),
    [
        ("Mismatched allreduce tensor shapes: One rank sent ...", True),
        ("Requested to allreduce a tensor with the same name as another tensor", True),
        ("No Adasum operation enabled", True),
        ("ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)", True),
        ("ncclCommInitRank failed: remote process exited or there was a network error", False),
        ("NCCL operation aborted, because the ring broke", False),
        ("Horovod has been shut down. This was caused by an exception on one of the ranks", False),
        ("[../gloo/transport/tcp/pair.cc:589] Read error: Connection reset by peer", False),
    ],
)
def test_a_refusal_is_not_taken_for_a_ring_that_broke(message: str, refused: bool) -> None:
    assert (refusal(message, "run the same script") is not None) is refused


@pytest.mark.parametrize(
    ("warming_up", "step", "refused"),
    [(False, 0, True), (True, 7, True), (False, 7, False)],
    ids=["the job begins", "a newcomer", "it has trained"],
)
def test_a_newcomer_on_the_gpu_of_another_worker_ends_and_not_that_worker(
    warming_up: bool, step: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = SimpleNamespace(warming_up=warming_up, step=step)
    monkeypatch.setattr(process, "_worker", worker)
    message = "ncclCommInitRank failed: invalid usage (run with NCCL_DEBUG=WARN for details)"
    found = classify_error(message)
    assert isinstance(found, UsageError if refused else CollectiveFailed)
    assert ("--slots" in str(found)) is refused


def test_an_error_is_raised_in_the_thread_that_waits_for_a_framework() -> None:
    error = UsageError("gradients were applied twice")
    main, raised, waiting = threading.get_ident(), [], threading.Event()

    def interrupt() -> None:
        assert waiting.wait(10.0), "Thread.start() in the other one must be through"
        raised.append(raise_in(main, error))

    framework = threading.Thread(target=interrupt)

    def wait() -> None:
        framework.start()
        waiting.set()
        deadline = time.monotonic() + 10.0
        while time.monotonic() < deadline:
            pass

    with pytest.raises(UsageError, match=r"^gradients were applied twice$"):
        wait()
    framework.join(10.0)
    assert raised == [True]
    assert framework.ident is not None
    assert not raise_in(framework.ident, error), "it has ended"
    assert not raise_in(main, error), "who calls can raise it"
