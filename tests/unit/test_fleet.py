"""Fleets: what is said to an engine, what it answers, and the thread between it and the leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.cluster.fleet.fleet import FleetUnreachable, HostCommand, LeaseRefused, kept_environment
from edl.cluster.fleet.options import FleetOptions, LeaseOwner, fleet_of
from edl.cluster.fleet.ray import RayFleet
from edl.cluster.fleet.runner import FleetRunner
from edl.cluster.fleet.slurm import SlurmFleet, parsed
from edl.cluster.leases import ReleaseHost
from edl.cluster.records import HostLease, LeaseState, Shape
from edl.errors import UsageError

ASKED, RUNNING, ENDED, UNKNOWN = (LeaseState(n) for n in ("asked", "running", "ended", "unknown"))
SHAPE = Shape(2, {"gpu": "h100"}, "fast")
COMMAND = HostCommand("lab", "zk:2181", Path("/home/u/secret"), {"PATH": "/venv/bin:/bin"})
SECRET = "5" * 64

STANDIN = """\
#!/bin/sh
echo "$(basename "$0") $*" >>{calls}
cat >>{calls}
if [ -e {broken} ]; then cat {broken} >&2; exit 1; fi
if [ "$(basename "$0")" = squeue ]; then cat {queue}; fi
if [ "$(basename "$0")" = sinfo ]; then [ ! -e {silent} ] || exit 1; printf 'n1\nn2\nn3\n'; fi
"""


class StandInSlurm:
    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ("calls", "queue", "broken", "silent")
        self.calls, self.queue, self.broken, self.silent = (directory / name for name in names)
        self.queue.touch()
        paths = {name: directory / name for name in names}
        for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo"):
            (directory / name).write_text(STANDIN.format(**paths))
            (directory / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(directory), prepend=":")
        self.directory = directory
        self.fleet = self.made("--gres=gpu:2")

    def made(self, *options: str) -> SlurmFleet:
        return SlurmFleet(COMMAND, "edl-lab-x-", self.directory / "logs", "low", options)

    @property
    def called(self) -> str:
        text = self.calls.read_text() if self.calls.exists() else ""
        self.calls.write_text("")
        return text


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInSlurm:
    return StandInSlurm(tmp_path, monkeypatch)


def test_what_squeue_says() -> None:
    text = "\n".join(
        [
            "7|edl-lab-x-l1|RUNNING|n1|None",
            "8|edl-lab-x-l2|PENDING||Resources",
            "9|edl-lab-x-l3|FAILED|n2|NonZeroExitCode",
            "10|edl-lab-x-l4|COMPLETING|n3|None",
            "11|edl-lab-y-l1|RUNNING|n4|None",
            "12|somebody|else's|RUNNING|n5|None",
            "13|edl-lab-x-l5|REQUEUED||None",
            "14|edl-lab-x-l6|PREEMPTED|n1|None",
            "15|edl-lab-x-l7|EVICTED|n6|None",
            "16|edl-lab-x-l8|PENDING||launch failed requeued held|edl avoids:",
            "17|edl-lab-x-l9|PENDING||JobHeldAdmin|edl avoids:",
        ]
    )
    found = {name: batches[-1].lease for name, batches in parsed(text, "edl-lab-x-").items()}
    assert found == {
        "l1": HostLease(RUNNING, "n1", "running"),
        "l2": HostLease(ASKED, "", "Resources"),
        "l3": HostLease(ENDED, "n2", "failed"),
        "l4": HostLease(RUNNING, "n3", "completing"),
        "l5": HostLease(ASKED, "", "requeued"),
        "l6": HostLease(ENDED, "n1", "preempted"),
        "l7": HostLease(
            UNKNOWN,
            "n6",
            "Slurm calls the state of batch job 15 'EVICTED', which edl does not know",
        ),
        "l8": HostLease(LeaseState.HELD, "", "launch failed requeued held", ()),
        "l9": HostLease(ASKED, "", "JobHeldAdmin", ()),
    }


def test_of_two_batch_jobs_of_a_lease_the_one_that_runs_counts() -> None:
    text = "7|p-l1|RUNNING|n1|None\n9|p-l1|PENDING||Dependency\n3|p-l1|COMPLETED|n2|None"
    assert parsed(text, "p-")["l1"][-1].lease == HostLease(RUNNING, "n1", "running")
    assert parsed(f"{text}\n4|p-l1|?|n1|None", "p-")["l1"][-1].lease.state is RUNNING
    assert (
        parsed("9|p-l1|PENDING||Dependency\n4|p-l1|?||None", "p-")["l1"][-1].lease.state is UNKNOWN
    )


def test_slurm_is_asked_for_a_whole_node_once(slurm: StandInSlurm) -> None:
    slurm.fleet.ask("l1", SHAPE)
    called = slurm.called
    assert "sbatch --parsable --nodes=1" in called
    for word in ("--exclusive", "--export=NIL", "--dependency=singleton", "--partition=low"):
        assert word in called
    assert "--gres=gpu:2" in called
    assert "--job-name=edl-lab-x-l1" in called
    assert "host --cluster lab --zookeeper zk:2181 --secret-file /home/u/secret" in called
    assert "--slots 2 --lease l1 --label gpu=h100 --kind fast" in called
    assert "exec srun --export=ALL" in called
    assert '--host "$SLURMD_NODENAME"' in called
    slurm.queue.write_text("7|edl-lab-x-l1|PENDING||Priority\n")
    slurm.fleet.ask("l1", SHAPE)
    assert "sbatch" not in slurm.called, "it is there already"
    slurm.queue.write_text("7|edl-lab-x-l1|EVICTED|n1|None\n")
    slurm.fleet.ask("l1", SHAPE)
    assert "sbatch" not in slurm.called, "it may live"
    slurm.queue.write_text("7|edl-lab-x-l1|COMPLETED|n1|None\n")
    slurm.fleet.ask("l1", SHAPE)
    assert "sbatch" in slurm.called


def test_slurm_is_told_which_nodes_to_avoid(slurm: StandInSlurm) -> None:
    shape = replace(SHAPE, avoid=("mine", "n1", "n3"))
    slurm.fleet.ask("l1", shape)
    called = slurm.called
    assert "--comment=edl avoids:mine,n1,n3" in called
    assert "--exclude=n1,n3" in called, "the other one is no node of Slurm"
    slurm.queue.write_text("7|edl-lab-x-l1|PENDING||Priority|edl avoids:mine,n1,n3\n")
    assert slurm.fleet.leases()["l1"].avoid == ("mine", "n1", "n3")
    slurm.fleet.ask("l1", SHAPE)
    assert "scontrol update JobId=7 Comment=edl avoids: ExcNodeList=\n" in slurm.called
    slurm.queue.write_text("7|edl-lab-x-l1|PENDING||Priority|edl avoids:\n")
    assert slurm.fleet.leases()["l1"].avoid == ()
    slurm.queue.write_text("7|edl-lab-x-l1|RUNNING|n1|None|edl avoids:\n")
    slurm.fleet.ask("l1", shape)
    assert "scontrol" not in slurm.called, "it runs"


@pytest.mark.parametrize(
    "options", [["--exclude=n3,n[7-9]"], ["--exclude", "n3,n[7-9]"], ["-xn3", "-x", "n[7-9]"]]
)
def test_what_the_user_excludes_is_never_taken(slurm: StandInSlurm, options: list[str]) -> None:
    slurm.fleet = slurm.made(*options, "--account=lab")
    slurm.fleet.ask("l1", SHAPE)
    called = slurm.called
    assert "--exclude=n3,n[7-9] --partition=low --account=lab\n" in called
    assert called.count("n[7-9]") == 1
    slurm.fleet.ask("l1", replace(SHAPE, avoid=("n1",)))
    assert "--exclude=n3,n[7-9],n1 " in slurm.called
    slurm.queue.write_text("7|edl-lab-x-l1|PENDING||Priority|edl avoids:n1\n")
    slurm.fleet.ask("l1", replace(SHAPE, avoid=("n2",)))
    assert "Comment=edl avoids:n2 ExcNodeList=n3,n[7-9],n2\n" in slurm.called
    slurm.fleet.ask("l1", SHAPE)
    assert "Comment=edl avoids: ExcNodeList=n3,n[7-9]\n" in slurm.called


@pytest.mark.parametrize(
    ("options", "why"),
    [(["--exclude=/etc/nodes"], "names a file"), (["--exclude="], "no node"), (["-x"], "no node")],
)
def test_what_cannot_be_excluded_is_a_sentence(
    slurm: StandInSlurm, options: list[str], why: str
) -> None:
    with pytest.raises(UsageError, match=f"{why}; give the names of nodes: --fleet-option="):
        slurm.made(*options)


def test_a_sinfo_that_fails_holds_up_no_lease_that_waits(
    slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.silent.touch()
    slurm.queue.write_text("7|edl-lab-x-l1|PENDING||Priority|edl avoids:n1\n")
    shape = replace(SHAPE, avoid=("n3",))
    slurm.fleet.ask("l1", shape)
    assert "scontrol" not in slurm.called, "it stays as it is"
    slurm.fleet.ask("l1", shape)
    assert "sinfo" not in slurm.called, "it is not asked again at once"
    slurm.fleet.ask("l2", SHAPE)
    assert "sbatch" in slurm.called, "another one is asked for"
    slurm.silent.unlink()
    monkeypatch.setattr(slurm.fleet, "_rests_until_s", 0.0)
    slurm.fleet.ask("l1", shape)
    assert "Comment=edl avoids:n3 ExcNodeList=n3\n" in slurm.called


def test_a_scontrol_that_fails_holds_up_no_lease_that_waits(slurm: StandInSlurm) -> None:
    away = "echo slurm_update error: Unable to contact slurm controller >&2\nexit 1\n"
    (slurm.directory / "scontrol").write_text(f"#!/bin/sh\n{away}")
    slurm.queue.write_text("7|edl-lab-x-l1|PENDING||Priority|edl avoids:n1\n")
    slurm.fleet.ask("l1", replace(SHAPE, avoid=("n3",)))
    assert "sinfo" in slurm.called
    slurm.fleet.ask("l1", replace(SHAPE, avoid=("n3",)))
    assert "sinfo" not in slurm.called, "it rests"


def test_a_lease_that_runs_is_told_and_one_that_waits_ends(slurm: StandInSlurm) -> None:
    slurm.queue.write_text("7|edl-lab-x-l1|RUNNING|n1|None\n8|edl-lab-x-l2|PENDING||Priority\n")
    for name, within_s, call in (
        ("l1", 60.0, "scancel --signal=TERM 7"),
        ("l1", 0.0, "scancel 7"),
        ("l2", 60.0, "scancel 8"),
    ):
        slurm.fleet.give_back(name, within_s)
        assert slurm.called.splitlines()[-1] == call
    slurm.fleet.give_back("l9", 0.0)
    assert "scancel" not in slurm.called
    slurm.queue.write_text("7|edl-lab-x-l1|EVICTED|n1|None\n")
    slurm.fleet.give_back("l1", 60.0)
    assert slurm.called.splitlines()[-1] == "scancel --signal=TERM 7"


def test_a_slurm_that_is_away_is_no_refusal(slurm: StandInSlurm) -> None:
    slurm.broken.write_text(
        "sbatch: error: Batch job submission failed: Unable to contact slurm controller\n"
    )
    for call in (slurm.fleet.leases, lambda: slurm.fleet.ask("l1", SHAPE)):
        with pytest.raises(FleetUnreachable, match="Unable to contact slurm controller"):
            call()


def test_what_slurm_refuses_is_a_sentence(
    slurm: StandInSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "sbatch: error: Batch job submission failed: Invalid account or partition"
    slurm.broken.write_text(f"{why}\n")
    monkeypatch.setattr(slurm.fleet, "_batches", dict)
    with pytest.raises(LeaseRefused, match="Batch job submission failed: Invalid account"):
        slurm.fleet.ask("l1", SHAPE)


def test_without_the_commands_of_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    owner = LeaseOwner("lab", SECRET, tmp_path / "secret", "zk:2181", tmp_path)
    for program in ("sbatch", "squeue", "scancel", "scontrol", "sinfo"):
        with pytest.raises(UsageError, match=f"--fleet slurm needs {program} on the PATH"):
            fleet_of(FleetOptions("slurm", 2, 3), owner)
        (tmp_path / program).touch(0o755)
    assert fleet_of(FleetOptions("slurm", 2, 3), owner).name == "slurm"


def test_the_end_of_a_log(slurm: StandInSlurm, tmp_path: Path) -> None:
    assert slurm.fleet.log("l1") == ""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "l1.log").write_text("x" * 10_000 + "\nedl: no such cluster\n")
    assert slurm.fleet.log("l1").endswith("x\nedl: no such cluster\n")
    assert len(slurm.fleet.log("l1")) == 4096


def test_no_secret_is_in_what_an_engine_stores(tmp_path: Path) -> None:
    environment = {"EDL_SECRET": SECRET, "EDL_HOST": "here", "PATH": "/bin", "HOME": "/home/u"}
    kept = kept_environment(environment)
    assert kept.keys() == {"PATH", "HOME"}
    assert kept["PATH"].endswith(":/bin")
    owner = LeaseOwner("lab", SECRET, tmp_path / "secret", "zk:2181", tmp_path)
    script = owner.command.script("l1", SHAPE, "n1")
    assert SECRET not in script + owner.prefix
    assert owner.prefix.startswith("edl-lab-")
    other = LeaseOwner("lab", SECRET[::-1] + "6", tmp_path, "zk:2181", tmp_path)
    assert other.prefix != owner.prefix


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": ""}, "need --fleet; name the engine"),
        ({"name": "slrum"}, "there is no fleet 'slrum'; there are: slurm, ray"),
        ({"slots": None}, "needs --host-slots: how many slots a host offers"),
        ({"max_hosts": None}, "needs --max-hosts: how many hosts it may lend"),
        ({"name": "ray", "partition": "low"}, "--partition is for --fleet slurm"),
        ({"min_hosts": 4}, "--min-hosts is 4, and --max-hosts 3"),
        ({"forget": "slurm"}, "with --fleet slurm name a former engine .* any more: ray$"),
        ({"forget": "rya"}, "--forget-fleet is 'rya'"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    values: dict[str, Any] = {"name": "slurm", "slots": 2, "max_hosts": 3}
    with pytest.raises(UsageError, match=sentence):
        FleetOptions(**values | options).limits()


def test_a_program_of_ray_that_writes_something_else_is_ended(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho a warning\nexec cat > /dev/null\n")
    program.chmod(0o755)
    owner = LeaseOwner("lab", SECRET, tmp_path / "secret", "zk:2181", tmp_path)
    fleet = RayFleet(owner.command, "edl", str(program), "auto", {"PATH": "/usr/bin:/bin"})
    with pytest.raises(FleetUnreachable, match="Expecting value"):
        fleet.leases()
    assert fleet._program is None, "the next call starts another one"


# --- the thread


class StandInFleet:
    name = "stand-in"

    def __init__(self) -> None:
        self.engine: dict[str, HostLease] = {}
        self.done: list[str] = []
        self.away = self.refuses_to_ask = False
        self.inside = self.most_inside = 0  # calls that go on
        self.on_ask: Callable[[], None] = lambda: None
        self.answers = threading.Event()
        self.answers.set()

    def leases(self) -> Mapping[str, HostLease]:
        self.inside += 1
        self.most_inside = max(self.inside, self.most_inside)
        self.answers.wait(10)
        self.inside -= 1
        if self.away:
            raise FleetUnreachable("it is away")
        return dict(self.engine)

    def ask(self, lease: str, shape: Shape) -> None:
        if lease == "refused":
            raise LeaseRefused("no such partition")
        if lease == "broken":
            raise KeyError(lease)
        if self.refuses_to_ask:
            raise FleetUnreachable("sinfo: exit code 1")
        self.on_ask()
        self.done.append(f"ask {lease}")
        self.engine[lease] = HostLease(ASKED)

    def give_back(self, lease: str, within_s: float) -> None:
        if lease == "broken":
            raise ValueError("closed pipe")
        self.done.append(f"give back {lease} {within_s:g}")

    def log(self, lease: str) -> str:
        return "first\nthe last line\n"


class Leader:
    def __init__(self) -> None:
        self.fleet = StandInFleet()
        self.woken = threading.Event()
        self.runner = FleetRunner(self.fleet, self.woken.set, poll_s=0.01)

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 20.0
        while not condition():
            assert time.monotonic() < deadline_s, f"{self.runner.answer}, {self.fleet.done}"
            time.sleep(0.002)

    def order(self, *ask: str, back: tuple[ReleaseHost, ...] = ()) -> None:
        self.runner.order(self.runner.answer.number, ask, SHAPE, back)


@pytest.fixture
def leader() -> Any:
    one = Leader()
    one.runner.start()
    one.until(lambda: one.runner.answer.number > 0)
    yield one
    one.fleet.answers.set()
    one.runner.stop()


def until_done(leader: Leader, what: str, *ask: str, back: tuple[ReleaseHost, ...] = ()) -> None:
    def is_done() -> bool:
        leader.order(*ask, back=back)
        return what in leader.fleet.done

    leader.until(is_done)


def test_orders_are_carried_out_and_answered(leader: Leader) -> None:
    until_done(leader, "ask l1", "l1")
    leader.until(lambda: leader.runner.answer.leases == {"l1": HostLease(ASKED)})


def test_orders_that_follow_from_an_older_answer_are_dropped(leader: Leader) -> None:
    old = leader.runner.answer.number
    leader.until(lambda: leader.runner.answer.number > old)
    leader.runner.order(old, ("late",), SHAPE, ())
    until_done(leader, "ask l1", "l1")
    assert "ask late" not in leader.fleet.done


def test_an_answer_from_before_a_lease_was_asked_for_says_nothing_of_it(leader: Leader) -> None:
    """Its host may offer slots before the engine is asked again."""
    seen: list[object] = []
    leader.fleet.on_ask = lambda: seen.append(leader.runner.answer.leases)
    leader.fleet.engine["l1"] = HostLease(RUNNING, "a")
    leader.until(lambda: bool(leader.runner.answer.leases))
    until_done(leader, "ask l2", "l1", "l2")
    assert seen[-1] == {"l1": HostLease(RUNNING, "a"), "l2": HostLease(UNKNOWN)}


def test_a_host_is_told_once_and_ended_as_often_as_it_takes(leader: Leader) -> None:
    until_done(leader, "give back l1 60", back=(ReleaseHost("l1", 60.0),))
    until_done(leader, "give back l2 60", back=(ReleaseHost("l1", 60.0), ReleaseHost("l2", 60.0)))
    assert leader.fleet.done.count("give back l1 60") == 1
    until_done(leader, "give back l1 0", back=(ReleaseHost("l1", 0.0),))


def test_an_engine_that_is_away_says_so(leader: Leader) -> None:
    leader.fleet.away = True
    leader.until(lambda: leader.runner.answer.leases is None)
    assert leader.runner.answer.why == "stand-in does not answer: it is away"


def test_an_order_at_which_the_engine_fails_ends_no_other_one(leader: Leader) -> None:
    """Whatever an engine's library raises, and whichever call: the thread goes on."""
    until_done(leader, "ask l1", "broken", "l1")
    leader.until(lambda: leader.runner.answer.why == "stand-in has failed: KeyError('broken')")
    assert leader.runner.answer.leases == {"l1": HostLease(ASKED)}
    back = (ReleaseHost("broken", 0.0), ReleaseHost("l1", 0.0))
    until_done(leader, "give back l1 0", "broken", back=back)

    def has_failed_at_the_second() -> bool:
        leader.order(back=back)
        return leader.runner.answer.why == "stand-in has failed: ValueError('closed pipe')"

    leader.until(has_failed_at_the_second)
    until_done(leader, "ask l2", "l2")
    leader.until(lambda: not leader.runner.answer.why)


def test_a_host_is_given_back_though_no_other_one_can_be_asked_for(leader: Leader) -> None:
    leader.fleet.refuses_to_ask = True
    until_done(leader, "give back l1 0", "l2", back=(ReleaseHost("l1", 0.0),))
    assert "ask l2" not in leader.fleet.done


def test_a_refusal_is_the_end_of_a_lease(leader: Leader) -> None:
    def is_refused() -> bool:
        leases = leader.runner.answer.leases or {}
        if "refused" in leases:
            return True
        leader.order("refused")
        return False

    leader.until(is_refused)
    lease = (leader.runner.answer.leases or {})["refused"]
    assert lease.state is ENDED
    assert lease.why == "no such partition"


def test_a_lease_that_has_failed_has_the_last_line_of_its_log(leader: Leader) -> None:
    leader.fleet.engine |= {"l1": HostLease(ENDED, "n1", "failed")}
    leader.fleet.engine |= {"l2": HostLease(ENDED, "n1", "completed")}
    leader.until(lambda: "l1" in (leader.runner.answer.leases or {}))
    assert (leader.runner.answer.leases or {})["l1"].why == "failed: the last line"
    assert (leader.runner.answer.leases or {})["l2"].why == "completed"


def test_after_its_end_nothing_is_carried_out(leader: Leader) -> None:
    leader.fleet.answers.clear()
    leader.runner.stop()
    leader.order("l1")
    leader.fleet.answers.set()
    leader.runner._thread.join(10)
    assert leader.fleet.done == []


def test_the_next_term_makes_no_call_while_one_of_the_last_term_goes_on(leader: Leader) -> None:
    """With Ray, two threads would share one pipe."""
    leader.fleet.answers.clear()
    leader.until(lambda: leader.fleet.inside == 1)
    leader.runner.stop()
    last, terms = leader.runner, []
    for _ in range(3):
        last = FleetRunner(leader.fleet, leader.woken.set, 0.01, after=last)
        terms.append(last)
    first, never_started, present = terms
    first.start()
    first.stop()
    never_started.stop()
    present.start()
    time.sleep(0.05)
    assert leader.fleet.inside == 1
    leader.fleet.answers.set()
    leader.until(lambda: present.answer.number > 1)
    present.stop()
    present.join()
    assert leader.fleet.most_inside == 1
