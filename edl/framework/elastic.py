"""Scripts written for Horovod Elastic: the state that follows the job, and the wrapped function.

Such a script keeps its own place in its data, its own loop and its own commits; what edl steers
is the ring. The contract is Horovod's: the function may be broken off at any collective, and is
then called again with the state as it was committed last, or as it is when workers join or leave.

::

    state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0)

    @hvd.elastic.run
    def train(state): ...     # commits now and then

    train(state)

What is edl's own: where all workers agree that a switch is due they raise and switch, and nobody
has waited for a newcomer until then; a newcomer warms up, for its function may be broken off and
called again anyway; who has trained to the end hands its state to those whom the death of another
caught in their last steps (docs/adr/0010).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

from edl.core.step.state_check import WHOLE, Group
from edl.errors import RingBroken, UsageError
from edl.framework.digest import ByteRange, StateArrays
from edl.framework.horovod_errors import refusal
from edl.framework.process import current_worker, let_state_follow
from edl.ring.ring import Ring
from edl.worker.progress import Receive
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

WARM_UP_S = 5.0  # a first commit or check that comes later most likely follows an update

_running = False  # the function that elastic.run has wrapped is being called

# What Horovod says of a broken ring; None: it is another error.
RingFailure = Callable[[Exception], str | None]
_STATE_IS_OURS = (
    "elastic.run needs a state of edl's own, whose commit lets workers join and leave: take "
    "elastic.{} of edl, not of horovod"
)


@dataclass
class Plain:
    """An attribute that is copied and sent as it is, whatever is in it."""

    value: Any


class State(ABC):
    """Named attributes that follow the job. Each framework says how they are copied and sent.

    What is not an attribute given to the constructor stays each worker's own.
    """

    def __init__(self, **attributes: Any) -> None:
        self._names = tuple(attributes)
        self._callbacks: list[Callable[[], None]] = []
        self._training: Worker | None = None  # while the wrapped function runs
        self._began = 0.0  # since when it does
        self._points = 0  # passed in the warm-up
        for name, value in attributes.items():
            setattr(self, name, value)
        self._saved: Any = None
        self._compared = StateArrays(self._trained, self._size_of)
        State.save(self)  # that of a derived class may need attributes which do not exist yet

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Call these in each new ring, before the state goes to newcomers.

        On newcomers, too: the size that they saw at the top of the script was a guess.
        """
        self._callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """A new ring stands: let the callbacks see its size."""
        self.reset()
        for callback in self._callbacks:
            callback()

    def commit(self) -> None:
        """Save the state, to go back to after a crash; all workers, at the same point.

        Ends like :meth:`check_host_updates`.
        """
        self._pass(commit=True)

    def check_host_updates(self) -> None:
        """Let workers join and leave here; all workers, at the same point.

        Raises:
            HostsUpdatedInterrupt: they do. The wrapped function is called again in the new ring,
                with the state as it is now.
        """
        self._pass(commit=False)

    def save(self) -> None:
        """Keep a copy of the state."""
        self._saved = self._copied(self._values())

    def restore(self) -> None:
        """Go back to the state that was saved last."""
        self._put(self._saved)

    def sync(self) -> None:
        """Take over the state of rank 0; all workers, at the same point."""
        self.synchronise(current_worker().ring, 0, Receive.ALL)
        self._compared.forget()
        self.save()

    def reset(self) -> None:
        """For classes derived from this one: a new ring stands."""
        return

    # --- called by the wrapper and by edl.worker.switching ---

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """See :class:`edl.worker.switching.Shared`.

        Raises:
            RingBroken: a worker is gone; the state is then undefined until it is restored.
            UsageError: this worker's state has other attributes than the job's.
        """
        if ring.alone:
            return
        sending = ring.place.rank == root
        keep = receive is not Receive.NOTHING and not sending
        values = self._exchanged(ring, root, self._values() if sending else None, keep)
        if keep:
            if odd := sorted(values.keys() ^ self._parts()):
                raise UsageError(
                    f"this worker's elastic state differs from the job's in {', '.join(odd)}"
                )
            self._put(values)

    def renew(self) -> None:
        """The ring is new: begin from here, and go back to here."""
        self._compared.forget()
        self.save()

    def trains(self, worker: Worker | None) -> None:
        """The wrapped function runs, until this is called with None."""
        self._training = worker
        self._began = time.monotonic()

    def _pass(self, commit: bool) -> None:
        """A point of the script at which its function may be left, by all workers alike."""
        worker = self._training
        if worker is not None and worker.warming_up:
            self._points += 1
            long = time.monotonic() - self._began >= WARM_UP_S
            if worker.script.begun > 0 or self._points > 1 or long:
                raise HostsUpdatedInterrupt(False)
            return
        if commit:
            if worker is not None:
                worker.script.before_save()
            self.save()
        if worker is None:
            return
        if commit:
            worker.script.saved()
        if worker.script.agree(compares=commit):
            if not commit:
                self.save()
                worker.script.saved()
            raise HostsUpdatedInterrupt(False)

    def digests(self, group: Group = WHOLE) -> dict[str, int]:
        """See :class:`edl.worker.state_check.Compared`."""
        return self._digested(self._compared.within(group))

    def _parts(self) -> set[str]:
        """The names of what :meth:`_values` returns."""
        return set(self._names)

    # --- what a framework knows ---

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """See :class:`edl.worker.state_check.Compared`."""

    @abstractmethod
    def _trained(self) -> dict[str, Any]:
        """What the averaged gradients keep equal on all workers, in containers.

        Parameters and what their optimizers hold. No statistics of a forward pass, and no other
        attribute: a script may keep numbers of each worker's own there.
        """

    @staticmethod
    @abstractmethod
    def _size_of(value: Any) -> int | None:
        """The bytes of an array in what is compared; None: it is none."""

    @abstractmethod
    def _digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """A digest of each part by name, but for those that cannot be compared."""

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """The attributes as they are, each as what is copied and sent of it."""

    @abstractmethod
    def _put(self, values: dict[str, Any]) -> None:
        """The inverse; ``values`` stay as they are."""

    @abstractmethod
    def _copied(self, values: dict[str, Any]) -> dict[str, Any]:
        """A copy that later updates do not reach. It may use the memory of the one before."""

    @abstractmethod
    def _exchanged(self, ring: Ring, root: int, values: dict[str, Any] | None, keep: bool) -> Any:
        """The ``values`` of the rank ``root``, on those that ``keep`` them."""


def run(
    function: Callable[..., Any],
    failures: tuple[type[Exception], ...],
    broken: RingFailure,
    state_name: str,
) -> Callable[..., Any]:
    """``elastic.run`` of a framework.

    Args:
        failures: what Horovod's collectives raise there when the ring breaks,
        broken: and what such an error says; None when it is another error.
        state_name: a class to name in errors.
    """

    @functools.wraps(function)
    def wrapper(state: State, *arguments: Any, **named: Any) -> Any:
        worker = _enlist(state, state_name)
        if worker.warming_up:
            _warm_up(worker, state, functools.partial(function, state, *arguments, **named))
            worker.join()
        worker.begin()
        result = None  # of who trains to the end; others get the state of one that has
        while not worker.script.ended:
            worker.boundary()
            state.renew()
            try:
                with _training(state, worker):
                    result = function(state, *arguments, **named)
                break
            except HostsUpdatedInterrupt:
                continue
            except RingBroken as error:
                failure = error
            except failures as error:
                why = broken(error)
                if why is None:
                    raise
                if (refused := refusal(why, "run the same script")) is not None:
                    raise refused from error
                failure = RingBroken(worker.generation, why)
            worker.ring.break_()
            state.restore()
            worker.script.repair(failure)
        state.save()
        worker.script.end()
        worker.finishing.finish()
        return result

    return wrapper


def warmed_up(worker: Worker) -> None:
    """An optimizer is about to make an update: end a warm-up that has made one.

    Raises:
        HostsUpdatedInterrupt: as if workers had joined.
        UsageError: no wrapped function runs that could be broken off.
    """
    if worker.warming_up and worker.script.begun > 0:
        if not _running:
            raise UsageError(
                "this script trains outside of elastic.run, so no worker can join or be replaced; "
                "put the training into a function f(state) and call elastic.run(f)(state)"
            )
        raise HostsUpdatedInterrupt(False)


def _enlist(state: State, state_name: str) -> Worker:
    worker = current_worker()
    if not isinstance(state, State):
        raise UsageError(_STATE_IS_OURS.format(state_name))
    if worker.script.ended:
        raise UsageError(
            "this job has ended with the first function that elastic.run wrapped; do all of the "
            "training in one"
        )
    if type(state).sync is not State.sync:
        raise UsageError(
            f"{type(state).__name__}.sync() would not be called: give what follows the job to the "
            "constructor of the state, as an attribute, and leave sync() out"
        )
    let_state_follow(state_name)
    worker.leave_data_to_script(state, state.on_reset)
    return worker


def _warm_up(worker: Worker, state: State, train: Callable[[], Any]) -> None:
    """Call the function alone, until it has made an update: all that it needs is loaded then.

    Then undo it, with the class's own way to save and restore.
    """
    state.save()
    try:
        with _training(state, worker):
            train()
    except HostsUpdatedInterrupt:
        logger.debug("w%d has warmed up", worker.id)
    state.restore()


@contextlib.contextmanager
def _training(state: State, worker: Worker) -> Iterator[None]:
    """While this lasts the wrapped function runs, and its commits let workers join and leave."""
    global _running
    state.trains(worker)
    _running = True
    try:
        yield
    finally:
        state.trains(None)
        _running = False


def is_running() -> bool:
    """The function that ``elastic.run`` has wrapped is being called."""
    return _running


__all__ = ["HorovodInternalError", "Plain", "State", "is_running", "run", "warmed_up"]
