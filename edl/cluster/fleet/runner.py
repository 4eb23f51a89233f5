"""Talk to an engine in a thread of its own, so that the leader never waits for it.

An engine may take long to answer, or never do. The leader takes the newest answer that there is,
decides, and leaves its orders here; those that follow from an older answer are dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from edl.cluster.fleet.fleet import Fleet, FleetUnreachable, LeaseRefused
from edl.cluster.leases import (
    LastOffer,
    LeaseDecision,
    ReleaseHost,
    decide_leases,
    own_offers,
    table_for,
    with_leases,
    with_offers,
    without_asking,
)
from edl.cluster.lifecycle import ClusterEventKind
from edl.cluster.records import HostLease, LeaseLimits, LeaseState, LeaseTable, Shape
from edl.cluster.store import ClusterStore
from edl.cluster.view import ClusterView
from edl.cluster.writer import ClusterWriter, event_write, leases_write

logger = logging.getLogger(__name__)


POLL_S = 3.0  # between two questions to the engine


@dataclass(frozen=True)
class FleetStatus:
    number: int = 0  # the number of the answer, from 1; 0: it was not asked yet
    leases: Mapping[str, HostLease] | None = None  # by name; None: the engine does not answer
    why: str = ""  # it does not answer, or has failed at an order; else empty


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
        self._orders: tuple[int, Sequence[str], Shape | None, Sequence[ReleaseHost]]
        self._orders = (0, (), None, ())
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
        with self._changing:
            self._orders = (number, ask, shape, give_back)
        if ask or give_back:
            self._ordered.set()

    def _run(self) -> None:
        # Its last call may go on: this one makes none before that is over.
        if self._after is not None:
            self._after.join()
            self._after = None
        while not self._stopping.is_set():
            self._poll()
            self._ordered.wait(self._poll_s)
            self._ordered.clear()
            self._carry_out()

    def _poll(self) -> None:
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
        with self._changing:
            number, ask, shape, give_back = self._orders
            if number != self._answer.number:
                return  # others follow
            answer = self._answer
            if answer.leases is not None:
                # Their hosts may offer slots before the engine is asked again, and an answer that
                # does not have the lease would say that it has ended.
                new = [name for name in ask if name not in answer.leases]
                asked = dict.fromkeys(new, HostLease(LeaseState.UNKNOWN))
                self._answer = replace(answer, leases={**answer.leases, **asked})
        self._refused.clear()  # the leader knows of them
        self._failed = ""
        for order in give_back:
            # Its `edl host` is signalled once, for a second signal kills.
            is_told = order.within_s and order.lease in self._told
            if self._stopping.is_set() or is_told:
                continue
            try:
                self._fleet.give_back(order.lease, order.within_s)
                self._told.add(order.lease)
            except FleetUnreachable as error:  # it is given back after the next answer
                logger.info("%s could not be given back: %s", order.lease, error)
            except Exception as error:  # the same
                logger.exception("%s has failed to take %s back", self.name, order.lease)
                self._failed = f"{self.name} has failed: {error!r}"
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

    def _explain(self, name: str, lease: HostLease) -> HostLease:
        if lease.state is not LeaseState.ENDED or lease.why == "completed":
            return lease
        if name not in self._explained:
            lines = self._fleet.log(name).strip().splitlines()
            self._explained[name] = f"{lease.why}: {lines[-1]}" if lines else lease.why
        return replace(lease, why=self._explained[name])


# ------------------------------------------------------------
# Keep the leases of a cluster in one term of its leader: read, decide, write, then order.


class LeaseManager:
    def __init__(
        self,
        store: ClusterStore,
        writer: ClusterWriter,
        runner: FleetRunner,
        limits: LeaseLimits,
        say: Callable[[str], None],
    ) -> None:
        self._store = store
        self._writer = writer
        self._runner = runner
        self._limits = limits
        self._say = say
        self._read: tuple[LeaseTable, int] | None = None  # only this leader writes it now
        self._obstacle = ""  # why the engine is not asked, as it was said last
        # In memory only: the next leader asks for a host too many if one is silent just then.
        self._offers: dict[str, LastOffer] = {}

    def marked(self, view: ClusterView) -> ClusterView:
        """Return `view` with a mark on each host whose lease ends: jobs get no slots there."""
        return with_leases(view, self._table()[0])

    def turn(self, view: ClusterView, now_s: float) -> None:
        answer, engine = self._runner.answer, self._runner.name
        table, version = self._table()
        is_former = table.engine != engine
        if is_former:
            found = LeaseDecision(without_asking(engine, table))
        else:
            self._offers = own_offers(view, self._offers, now_s)
            known = with_offers(view, self._offers)
            found = decide_leases(table, answer.leases, known, self._limits, now_s)
        obstacle = found.table.why if is_former else answer.why
        if obstacle != self._obstacle:
            self._say(obstacle or f"{engine} answers again")
            self._obstacle = obstacle
        if found.table != table:
            paths = self._store.paths
            news = [(f"{engine}: {what}", host) for what, host in found.news]
            self._read = None  # read it again if this fails
            new = partial(self._store.events.new, ClusterEventKind.LEASE)
            writes = [event_write(paths, new(what, host=host)) for what, host in news]
            if not self._writer.commit([leases_write(paths, found.table, version), *writes]):
                return
            self._read = (found.table, version + 1)
            for what, _ in news:
                self._say(what)
        if is_former:
            return
        shape = replace(self._limits.shape, avoid=found.avoid)
        self._runner.order(answer.number, found.ask, shape, found.give_back)

    def _table(self) -> tuple[LeaseTable, int]:
        if self._read is None:
            table, version = self._store.leader.leases()
            self._read = (table_for(self._runner.name, table, self._limits.forget), version)
        return self._read
