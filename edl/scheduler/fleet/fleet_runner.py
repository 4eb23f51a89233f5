"""Talk to an engine in a thread of its own, so that the leader never waits for it.

An engine may take long to answer, or never do. The leader takes the newest answer that there is,
decides, and leaves its orders here; those that follow from an older answer are dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from edl.core.cluster.lease_records import HostLease, LeaseState, Shape
from edl.core.cluster.leases import ReleaseHost
from edl.scheduler.fleet.fleet import Fleet, FleetUnreachable, LeaseRefused

logger = logging.getLogger(__name__)

POLL_S = 3.0  # between two questions to the engine


@dataclass(frozen=True)
class FleetStatus:
    """An answer of the engine."""

    number: int = 0  # the number of the answer, from 1; 0: it was not asked yet
    # the leases of the cluster, by name; None: the engine does not answer
    leases: Mapping[str, HostLease] | None = None
    # why it does not answer, or with what error it has failed at an order; empty: neither
    why: str = ""


def _with_asked(answer: FleetStatus, ask: Sequence[str]) -> FleetStatus:
    """Return `answer` in which the states of leases that are asked for after it are unknown."""
    if answer.leases is None:
        return answer
    # Their hosts may offer slots before the engine is asked again, and an answer that does not have
    # the lease would say that it has ended.
    asked = {name: HostLease(LeaseState.UNKNOWN) for name in ask if name not in answer.leases}
    return replace(answer, leases={**answer.leases, **asked})


class FleetRunner:
    """A thread that asks an engine for its leases, and carries out the orders of the leader."""

    def __init__(
        self,
        fleet: Fleet,
        wake: Callable[[], None],
        poll_s: float = POLL_S,
        after: FleetRunner | None = None,
    ) -> None:
        self.name = fleet.name
        self._fleet = fleet
        self._wake = wake
        self._poll_s = poll_s
        self._after = after
        self._answer = FleetStatus()
        self._orders: tuple[int, Sequence[str], Shape | None, Sequence[ReleaseHost]] = (
            0,
            (),
            None,
            (),
        )
        self._refused: dict[str, str] = {}
        self._explained: dict[str, str] = {}
        self._told: set[str] = set()
        self._failed = ""  # at the last orders, as a sentence
        self._changing = threading.Lock()  # of the orders and the answer
        self._stopping = threading.Event()
        self._ordered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Carry out no further order; return at once, though a call may still go on."""
        self._stopping.set()
        self._ordered.set()

    def join(self) -> None:
        """Wait until it makes no call any more after `stop`; a call takes a bounded time."""
        if self._thread.ident is not None:
            self._thread.join()
        elif self._after is not None:  # it was never started
            self._after.join()

    @property
    def answer(self) -> FleetStatus:
        """The newest status of the engine: its leases, or why it could not be asked."""
        with self._changing:
            return self._answer

    def order(
        self, number: int, ask: Sequence[str], shape: Shape, give_back: Sequence[ReleaseHost]
    ) -> None:
        """Leave the orders that follow from an answer, in place of those that were left before."""
        with self._changing:
            self._orders = (number, ask, shape, give_back)
        if ask or give_back:
            self._ordered.set()

    def _run(self) -> None:
        """Ask and carry out in turns until `stop`; runs in the thread."""
        # Its last call may go on: this one makes none before that is over.
        if self._after is not None:
            self._after.join()
            self._after = None
        while not self._stopping.is_set():
            self._look()
            self._ordered.wait(self._poll_s)
            self._ordered.clear()
            self._carry_out()

    def _look(self) -> None:
        """Ask the engine for its leases, and keep its answer."""
        try:
            leases = {name: self._explain(name, one) for name, one in self._fleet.leases().items()}
            found = {n: HostLease(LeaseState.ENDED, "", why) for n, why in self._refused.items()}
            answer = FleetStatus(0, leases | found, self._failed)
        except FleetUnreachable as error:
            answer = FleetStatus(0, None, f"{self.name} does not answer: {error}")
        except Exception as error:  # whatever an engine's library does: jobs go on
            logger.exception("%s has failed", self.name)
            answer = FleetStatus(0, None, f"{self.name} has failed: {error!r}")
        with self._changing:
            before = self._answer
            self._answer = replace(answer, number=before.number + 1)
        if (before.leases, before.why) != (answer.leases, answer.why) or not before.number:
            self._wake()

    def _carry_out(self) -> None:
        """Carry out the orders that follow from the newest answer, first those to give back."""
        with self._changing:
            number, ask, shape, give_back = self._orders
            if number != self._answer.number:
                return  # others follow
            self._answer = _with_asked(self._answer, ask)
        self._refused.clear()  # the leader knows of them
        self._failed = ""
        for one in give_back:
            self._give_back(one)
        if shape is not None:
            all(self._ask(name, shape) for name in ask)  # as long as the engine answers

    def _ask(self, name: str, shape: Shape) -> bool:
        """Ask for a lease; return False if no further order can be carried out now."""
        if self._stopping.is_set():
            return False
        try:
            self._fleet.ask(name, shape)
        except LeaseRefused as error:
            self._refused[name] = str(error)
        except (FleetUnreachable, OSError) as error:  # it is asked for again after the next answer
            logger.info("%s could not be asked for: %s", name, error)
            return False
        except Exception as error:  # the same; others follow
            logger.exception("%s has failed when asked for %s", self.name, name)
            self._failed = f"{self.name} has failed: {error!r}"
        return True

    def _give_back(self, order: ReleaseHost) -> None:
        """Give a lease back; its `edl host` is signalled once, for a second signal kills."""
        if self._stopping.is_set() or (order.within_s and order.lease in self._told):
            return
        try:
            self._fleet.give_back(order.lease, order.within_s)
            self._told.add(order.lease)
        except FleetUnreachable as error:  # it is given back after the next answer
            logger.info("%s could not be given back: %s", order.lease, error)
        except Exception as error:  # the same
            logger.exception("%s has failed to take %s back", self.name, order.lease)
            self._failed = f"{self.name} has failed: {error!r}"

    def _explain(self, name: str, lease: HostLease) -> HostLease:
        """Return `lease` with the last line of its log, if it has ended with an error."""
        if lease.state is not LeaseState.ENDED or lease.why == "completed":
            return lease
        if name not in self._explained:
            lines = self._fleet.log(name).strip().splitlines()
            self._explained[name] = f"{lease.why}: {lines[-1]}" if lines else lease.why
        return replace(lease, why=self._explained[name])
