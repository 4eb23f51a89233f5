"""The scenarios: what happens, and what has to come of it, with stock Horovod and with edl.

Epochs count from 0. ``hosts`` says what the discovery script prints while which epoch is trained;
an exit happens at the first batch of an epoch, to the process whose first rank was that. At the
end of each epoch rank 0 tells which rank it began with, on which host, and the size of the ring.

What stock has to do is what Horovod's own tests ask for. edl's semantics differ by design where a
worker dies: it is started again in its slot, the others go on meanwhile, and no host is barred.
The driver's rules about failed hosts concern edl when `edl-worker` itself dies, with its host or
by ``kill -9``; each has a scenario of its own (``Who.LAUNCHED``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

A, B = "localhost", "127.0.0.1"  # two names of this machine
ALWAYS = 1_000_000  # the end of a schedule of hosts

Hosts = Mapping[str, int]  # slots by name


class Who(StrEnum):
    """Which process of a slot an exit is done to."""

    WORKER = "worker"  # the training process
    LAUNCHED = "launched"  # what horovodrun started: the same with stock, edl-worker with edl


class How(StrEnum):
    EXCEPTION = "exception"
    KILL = "kill"  # SIGKILL
    TERMINATE = "terminate"  # SIGTERM


@dataclass(frozen=True)
class Exit:
    """The processes that began with ``ranks`` end at the first batch of ``epoch``."""

    epoch: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Line:
    """What rank 0 tells at the end of an epoch."""

    start_rank: int
    size: int
    host: str


@dataclass(frozen=True)
class Expected:
    """``lines``: one an epoch. ``says``: in the output of horovodrun, which then fails."""

    lines: tuple[Line, ...]
    says: str = ""


@dataclass(frozen=True)
class Scenario:
    """One scenario; ``hosts``: (last epoch, what is printed until then)."""

    name: str
    title: str
    stock: Expected
    edl: Expected
    hosts: tuple[tuple[int, Hosts], ...] = ((ALWAYS, {A: 2, B: 2}),)
    fixed: bool = False  # the hosts are named by -H, there is no discovery script
    np: int = 2
    min_np: int = 2
    max_np: int = 4
    epochs: int = 3
    exits: tuple[Exit, ...] = ()
    how: How = How.EXCEPTION
    who: Who = Who.WORKER
    checkpoint: bool = False  # edl's script saves its state
    reset_limit: int | None = None
    cooldown_s: tuple[int, int] | None = None
    elastic_timeout_s: int | None = None
    note: str = ""  # how edl's semantics differ

    def hosts_in(self, epoch: int) -> Hosts:
        return next(hosts for last, hosts in self.hosts if epoch <= last)

    def options(self) -> list[str]:
        """Return the options of horovodrun, without the one for its hosts."""
        options = ["-np", str(self.np), "--min-np", str(self.min_np)]
        if not self.fixed:
            options += ["--max-np", str(self.max_np)]
        if self.reset_limit is not None:
            options += ["--reset-limit", str(self.reset_limit)]
        if self.cooldown_s is not None:
            options += ["--blacklist-cooldown-range", *map(str, self.cooldown_s)]
        if self.elastic_timeout_s is not None:
            options += ["--elastic-timeout", str(self.elastic_timeout_s)]
        return options


def _moves(slots: int) -> tuple[tuple[int, Hosts], ...]:
    """Return the hosts of a job that grows onto a second host and then loses the first."""
    return ((0, {A: slots}), (1, {A: slots, B: slots}), (ALWAYS, {B: slots}))


def _moved(slots: int) -> Expected:
    return Expected((Line(0, slots, A), Line(0, 2 * slots, A), Line(slots, slots, B)))


FULL = Line(0, 4, A)  # all that began, and nobody else
SECOND_LEADS = Line(1, 4, A)  # rank 0 died, was started again, and the second one moved up
LOST_A = Line(2, 2, B)  # the first host was barred
LOST_B = Line(0, 2, A)  # the second one was
EXITED = "Horovod detected that one or more processes exited with non-zero status"
TOO_OFTEN = "number of resets during elastic job exceeded limit: 1"
FAIL_0 = (Exit(1, (0,)),)

SCENARIOS = (
    Scenario(
        "moves-2",
        "hosts added and removed, 2 slots each",
        hosts=_moves(2),
        stock=_moved(2),
        edl=_moved(2),
    ),
    Scenario(
        "moves-1",
        "hosts added and removed, 1 slot each",
        hosts=_moves(1),
        np=1,
        min_np=1,
        max_np=2,
        stock=_moved(1),
        edl=_moved(1),
    ),
    *(
        Scenario(
            f"one-{how}{'-fixed' if fixed else ''}",
            f"rank 0 fails, {how_said}{', hosts fixed by `-H`' if fixed else ''}",
            exits=FAIL_0,
            how=how,
            fixed=fixed,
            stock=Expected((FULL, LOST_A, LOST_A)),
            edl=Expected((FULL, SECOND_LEADS, SECOND_LEADS)),
            note="started again in its slot",
        )
        for fixed in (False, True)
        for how, how_said in ((How.EXCEPTION, "exception"), (How.KILL, "`kill -9`"))
    ),
    Scenario(
        "all-fail",
        "all ranks fail, exception",
        exits=(Exit(1, (0, 1, 2, 3)),),
        stock=Expected((FULL,), EXITED),
        edl=Expected((FULL,), "all workers died"),
    ),
    Scenario(
        "all-killed",
        "all ranks fail, `kill -9`",
        exits=(Exit(1, (0, 1, 2, 3)),),
        how=How.KILL,
        checkpoint=True,
        stock=Expected((FULL,), EXITED),
        edl=Expected((FULL, FULL, FULL)),
        note="goes on from its checkpoint (`edl.checkpoint`); the new processes' start is no pause",
    ),
    Scenario(
        "both-hosts",
        "a rank of each host fails: all hosts blacklisted",
        exits=(Exit(1, (0, 2)),),
        stock=Expected((FULL,), EXITED),
        edl=Expected((FULL, SECOND_LEADS, SECOND_LEADS)),
        note="started again in their slots",
    ),
    Scenario(
        "min-hosts",
        "rank 0 fails, exception, `--min-np 4`: too few slots are left, time-out",
        np=4,
        min_np=4,
        exits=FAIL_0,
        elastic_timeout_s=10,
        stock=Expected((FULL,), EXITED),
        edl=Expected((FULL, SECOND_LEADS, SECOND_LEADS)),
        note="started again in its slot; three are fewer than `--min-np` and wait for it",
    ),
    Scenario(
        "reset-limit-1",
        "hosts added and removed with `--reset-limit 1`",
        hosts=_moves(2),
        reset_limit=1,
        stock=Expected(_moved(2).lines[:2], TOO_OFTEN),
        edl=Expected(_moved(2).lines[:2], TOO_OFTEN),
    ),
    Scenario(
        "reset-limit-2",
        "the same with `--reset-limit 2`",
        hosts=_moves(2),
        reset_limit=2,
        stock=_moved(2),
        edl=_moved(2),
    ),
    Scenario(
        "cool-down",
        "rank 3 fails twice, `--blacklist-cooldown-range 1 2`",
        exits=(Exit(1, (3,)), Exit(3, (3,))),
        epochs=5,
        cooldown_s=(1, 2),
        stock=Expected((FULL, LOST_B, LOST_B, LOST_B, LOST_B)),
        edl=Expected((FULL,) * 5),
        note="started again in its slot",
    ),
    Scenario(
        "one-launched",
        "the process that horovodrun started as rank 0, `kill -9`",
        exits=FAIL_0,
        how=How.KILL,
        who=Who.LAUNCHED,
        stock=Expected((FULL, LOST_A, LOST_A)),
        edl=Expected((FULL, LOST_A, LOST_A)),
    ),
    Scenario(
        "one-terminated",
        "the same, SIGTERM",
        exits=FAIL_0,
        how=How.TERMINATE,
        who=Who.LAUNCHED,
        stock=Expected((FULL, LOST_A, LOST_A)),
        edl=Expected((FULL, LOST_A, LOST_A)),
        note="it leaves; after 30 s in which the driver did not take the slot back, as killed",
    ),
    Scenario(
        "both-launched",
        "one such process on each host, `kill -9`: all hosts blacklisted",
        exits=(Exit(1, (0, 2)),),
        how=How.KILL,
        who=Who.LAUNCHED,
        stock=Expected((FULL,), EXITED),
        edl=Expected((FULL, Line(1, 2, A), Line(1, 2, A)), EXITED),
        note="the other two train to the end; horovodrun fails afterwards",
    ),
    Scenario(
        "min-hosts-launched",
        "such a process as rank 0, `kill -9`, `--min-np 4`: too few slots are left, time-out",
        np=4,
        min_np=4,
        exits=FAIL_0,
        how=How.KILL,
        who=Who.LAUNCHED,
        elastic_timeout_s=10,
        stock=Expected((FULL,), EXITED),
        edl=Expected((FULL,), EXITED),
    ),
    Scenario(
        "cool-down-launched",
        "such a process as rank 3, `kill -9`, twice, `--blacklist-cooldown-range 1 2`",
        exits=(Exit(1, (3,)), Exit(3, (3,))),
        how=How.KILL,
        who=Who.LAUNCHED,
        epochs=5,
        cooldown_s=(1, 2),
        stock=Expected((FULL, LOST_B, LOST_B, LOST_B, LOST_B)),
        edl=Expected((FULL,) * 5),
        note="the host comes back after the cool-down, without a stop",
    ),
)
