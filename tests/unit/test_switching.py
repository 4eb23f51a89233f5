"""The first exchange of a job's state, when the ring breaks in it."""

from __future__ import annotations

from unittest.mock import MagicMock

from edl.config import Config
from edl.core.records import Generation, Seat
from edl.daemon.mailbox import Mailbox
from edl.daemon.switching import Switching
from edl.errors import RingBroken, RingError

SEATS = (Seat(0, "a", 0, "127.0.0.1", 9000), Seat(1, "a", 1, "127.0.0.1", 9001))
FIRST = Generation(1, 1, SEATS, 0, (0, 1), (), "the job starts")
REPAIR = Generation(2, 1, SEATS, 0, (1,), (), "generation 1 broke and nobody died")


def test_a_repair_of_the_first_exchange_is_that_exchange() -> None:
    """The others have it behind them and are in a step: a second one would wait for ever."""
    one = Switching(Config(), Mailbox(), MagicMock(), MagicMock(), MagicMock(), MagicMock())
    one.generation, one.replica, one._synchronised = FIRST, MagicMock(), False
    one._seat = SEATS[1]
    exchanged: list[int] = []

    def exchange(generation: Generation) -> None:
        exchanged.append(generation.number)
        if generation is FIRST:
            raise RingBroken(1, "a worker is gone")

    def repair(_error: RingError, _since: float, _failed: int = 0) -> None:
        one._enter(REPAIR)

    one._synchronise, one.repair = exchange, repair  # type: ignore[method-assign]
    one.synchronise_if_due()
    one.synchronise_if_due()
    assert exchanged == [1, 2]
