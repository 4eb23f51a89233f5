"""Arguments, and what is printed: everything that needs no ZooKeeper."""

from __future__ import annotations

import io
import json
import re
import socket
import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest
from made import make_job, wanted
from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from typer.main import get_command
from typer.testing import CliRunner

from edl import config
from edl.cli.common import console, print_table, worker_number
from edl.cli.events import aligned
from edl.cli.main import app, invoke, run_command
from edl.cli.status import line, status_table
from edl.cli.worker import _reachable
from edl.client.waiting import flat
from edl.config import Config, HorovodSlot
from edl.errors import UsageError
from edl.event_text import cost
from edl.events import Event, SwitchDetails
from edl.host.address import check_own_name, own_address
from edl.host.command import check_command, missing_module_hint
from edl.host.host_agent import LiveLine
from edl.host.process import python_script, title
from edl.job.snapshot import Snapshot
from edl.records import (
    Generation,
    Host,
    JobState,
    Leader,
    Member,
    Reclaim,
    RingMember,
    Stage,
    SwitchParts,
    TrainingStatus,
)
from edl.status import JobStatus, job_status

SWITCH = Event(
    time=0.5,
    generation=2,
    step=40,
    reason="w2 joined: 2 -> 3 workers, 3 wanted",
    details=SwitchDetails(
        3, {"w10": SwitchParts("old", stall_s=0.25), "w2": SwitchParts("new", stall_s=0.125)}
    ),
)
REPAIR = Event(
    time=0.5,
    generation=3,
    step=41,
    reason="w0 died",
    details=SwitchDetails(
        2,
        {
            "w1": SwitchParts("old", stall_s=0.09, survivor_report_s=0.04, init_s=0.05),
            "w2": SwitchParts(
                detect_s=0.015, election_s=0.04, survivor_report_s=0.02, wait_s=0.06,
                init_s=0.05, broadcast_s=0.01, stall_s=0.12, median_step_s=0.009,
            ),
        },
    ),
)  # fmt: skip


def snapshot(state: JobState = JobState.RUNNING) -> Snapshot:
    members = tuple(
        Member(worker, "a", worker, "127.0.0.1", 1, 100 + worker, f"t-{worker}", stage)
        for worker, stage in ((0, Stage.ACTIVE), (1, Stage.ACTIVE), (2, Stage.PREPARING))
    )
    ring_members = tuple(RingMember(worker, "a", worker, "127.0.0.1", 1) for worker in (1, 0))
    return Snapshot(
        job=make_job(state=state),
        hosts=(Host("a", 4, "127.0.0.1"),),
        members=members,
        **wanted({"a": 3, "gone": 0}),
        generation=Generation(5, 3, ring_members, 1, (), (), ""),
        leader=Leader(3, 1),
        status=TrainingStatus(
            step=7,
            epoch=2,
            epoch_done=64,
            epoch_total=128,
            samples_per_s=99.6,
            reason="w2 is preparing; 2 of 3 train",
        ),
    )


def shown(renderable: object) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115 - no more than a sink
    with console.capture() as capture:
        console.print(renderable)
    console.file.close()
    return capture.get()


# --- arguments


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("run", "missing argument"),
        ("run -np two python x.py", "invalid value for '-np' / '--np'"),
        ("run -np", "option '-np' requires an argument"),
        ("run -np 5 --max-np 4 python x.py", "-np is 5; it must lie between --min-np 1"),
        ("run -np 2 --min-np 3 --max-np 2 python x.py", "--min-np is 3 and --max-np is 2"),
        ("run -np 0 python x.py", "--np is 0; a job needs at least 1 worker"),
        ("run -np 2 --slots 1 --max-np 4 python x.py", "this host has 1 slot"),
        ("run -np 2 --max-np 4 --slots 0 python x.py", "this host has 0 slots"),
        ("run --nonsense python x.py", "no such option: --nonsense"),
        ("scale digits", "missing option '-np' / '--np'"),
        ("scale --np many", "invalid value for '-np' / '--np'"),
        ("drain a b c", "edl drain takes a job and a worker, as `edl drain digits w3`"),
        ("drain digits nine", "'nine' is not a worker"),
        ("nonsense", "no such command 'nonsense'"),
        ("stauts digits", "no such command 'stauts', but there is `edl status`; see `edl --help`"),
        ("status a b", "got unexpected extra argument"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    words: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("edl: ")
    assert text in line


@pytest.mark.parametrize("verb", ["", "run", "join", "zookeeper", "zookeeper start", "doctor"])
def test_help(verb: str) -> None:
    result = CliRunner().invoke(app, [*verb.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_names_of_an_older_version_work_and_are_in_no_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []

    def check(*_: object) -> None:
        seen.append(config.load().borrowed_file)
        raise UsageError("far enough")

    monkeypatch.setattr("edl.cli.agents.check_command", check)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDL_BORROWED_FILE", "")
    assert invoke(["run", "-np", "2", "--lent-file", "slots", "python", "t.py"]) == 2
    assert seen == ["slots"]
    old, new = (CliRunner().invoke(app, [verb, "--help"]) for verb in ("lend", "borrow"))
    shown = new.output.replace("Usage: edl borrow", "Usage: edl lend")
    assert (old.exit_code, old.output) == (0, shown)
    assert "edl borrow digits" in old.output, "the examples have the new name"
    for words in ([], ["run"], ["join"]):
        assert " lend" not in CliRunner().invoke(app, [*words, "--help"]).output
        assert "--lent" not in CliRunner().invoke(app, [*words, "--help"]).output


def test_an_option_that_turns_a_setting_off_says_so() -> None:
    params = get_command(app).get_command(None, "run").params
    (option,) = (one for one in params if "--no-template" in one.secondary_opts)
    assert option.help.startswith("Do not fork later workers of a host from a template")


def test_run_leaves_the_commands_own_options_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[list[str]] = []

    def check(command: list[str], *_: object) -> None:
        seen.append(command)
        raise UsageError("far enough")

    monkeypatch.setattr("edl.cli.agents.check_command", check)
    monkeypatch.chdir(tmp_path)
    command = ["python", "-u", "t.py", "-np", "7", "--np=8", "--job", "x", "--", "--help"]
    assert invoke(["run", "-np", "2", "--max-np", "4", *command]) == 2
    assert invoke(["run", "-np=2", *command]) == 2
    assert invoke(["run", "--np", "2", "--", *command]) == 2
    assert seen == [command] * 3
    assert capsys.readouterr().out.count("edl: -np stands behind the command, so the script") == 3


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python train.py x.py", "train.py"),
        ("/usr/bin/python3.11 -u -W error -X dev train.py", "train.py"),
        ("python -m package.train", None),
        ("python -c pass", None),
        ("python", None),
        ("bash train.sh", None),
    ],
)
def test_the_script_of_a_python_command(command: str, script: str | None) -> None:
    assert python_script(command.split()) == script


def test_title() -> None:
    assert title(["python", "examples/digits.py", "x"]) == "digits.py"
    assert title(["/opt/train", "x"]) == "train"
    assert title(["python", "./package/./", "x"]) == "package"


def test_commands_that_cannot_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    check_command([sys.executable, "train.py"], tmp_path, None)
    check_command(["sh", "x"], tmp_path, "/bin")
    for command, text in (
        ([sys.executable, "nosuch.py"], f"the script nosuch.py does not exist (in {tmp_path})"),
        (["train.py"], "there is no program 'train.py' on PATH; write `python train.py`"),
        (["./train.py"], "./train.py is not executable; write `python ./train.py`"),
        (["python", "train.py"], "activate the virtual environment"),
        (["./nosuch"], "the program ./nosuch does not exist"),
        ([""], "no command to run"),
    ):
        with pytest.raises(UsageError) as caught:
            check_command(command, tmp_path, "/nowhere")
        assert text in str(caught.value)
    with pytest.raises(UsageError, match="working directory /nowhere does not exist"):
        check_command([sys.executable, "train.py"], Path("/nowhere"), None)


def test_a_module_that_another_python_lacks(tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.symlink_to(sys.executable)
    reason = "all 2 workers exited; the last line of w0: ModuleNotFoundError: No module named 'x'"
    hint = missing_module_hint(reason, ["python", "train.py"], str(tmp_path))
    assert hint.startswith(f"`python` is {other}, but edl runs in {sys.executable}: activate")
    assert not missing_module_hint("ValueError", ["python", "train.py"], str(tmp_path))
    assert not missing_module_hint(reason, [sys.executable, "train.py"], None)
    assert not missing_module_hint(reason, ["./train"], str(tmp_path))


def test_worker_numbers() -> None:
    assert [worker_number(text) for text in ("w3", "3", "w12")] == [3, 3, 12]
    for text in ("", "w", "-1", "3w", "wx"):
        with pytest.raises(UsageError):
            worker_number(text)


def test_a_name_of_this_host_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "no such host")
    monkeypatch.setattr("edl.horovod_build.applied", frozenset)
    with pytest.raises(UsageError, match=r"name, no such host, does not resolve.*build-horovod"):
        check_own_name()
    monkeypatch.setattr("edl.horovod_build.applied", lambda: {"ring-at-the-address"})
    check_own_name()


def test_own_address() -> None:
    assert own_address("127.0.0.2", "", "127.0.0.1:2181") == "127.0.0.2"  # what was asked for
    assert own_address("", "", "127.0.0.1:2181/chroot") == "127.0.0.1"
    assert own_address("", "", "[::1]:2181") == "127.0.0.1"
    assert own_address("", "", "no such host:2181") == "127.0.0.1"
    assert own_address("localhost", "", "127.0.0.1:2181") == "127.0.0.1"  # a number for the others
    assert own_address("", "lo", "10.0.0.1:2181") == "127.0.0.1"


def test_each_server_of_zookeeper_may_lead_to_the_own_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Probe(socket.socket):
        def connect(self, target: object) -> None:
            self.from_here = "127.0.0.1" if target == ("127.0.0.1", 2181) else "10.1.2.1"

        def getsockname(self) -> tuple[str, int]:
            return self.from_here, 1

    monkeypatch.setattr("socket.socket", Probe)
    assert own_address("", "", "no such host:2181,10.1.2.3:2181/chroot") == "10.1.2.1"
    assert own_address("", "", "127.0.0.1:2181,10.1.2.3:2181") == "10.1.2.1"
    assert own_address("", "", "127.0.0.1:2181,no such host:2181") == "127.0.0.1"
    assert own_address("127.0.0.1", "", "10.1.2.3:2181") == "127.0.0.1", "it was asked for"


def test_under_horovodrun_the_interface_of_the_driver_is_a_default() -> None:
    slot = HorovodSlot("10.0.0.1", 1, "a", 0, 0, 1, 1, interface="lo")
    assert _reachable(slot, Config(), "10.1.2.3:2181") == "127.0.0.1"
    assert _reachable(slot, Config(address="127.0.0.2"), "10.1.2.3:2181") == "127.0.0.2"
    elsewhere = replace(slot, interface="eth-9")
    assert _reachable(elsewhere, Config(), "127.0.0.1:2181") == "127.0.0.1"


@pytest.mark.parametrize(
    ("address", "interface", "said"),
    [
        ("127.0.0.1", "eth-9", "there is no network interface eth-9 with an IPv4 address"),
        ("127.0.0.2", "lo", "127.0.0.2 is no address of the network interface lo"),
        ("192.0.2.7", "", "192.0.2.7 is no address of this host"),
        ("no such host", "", "the address no such host cannot be resolved on this host"),
    ],
)
def test_an_address_that_is_not_here(address: str, interface: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        own_address(address, interface, "127.0.0.1:2181")
    assert said in str(caught.value)
    assert "lo (127.0.0.1" in str(caught.value)  # those that there are


# --- what is shown


def test_status_as_json() -> None:
    status = job_status(snapshot(), "127.0.0.1:2181")
    facts = json.loads(json.dumps(status.to_json()))
    assert JobStatus.from_json(facts) == status
    assert {key: facts[key] for key in ("job", "state", "term", "generation", "leader")} == {
        "job": "digits",
        "state": "running",
        "term": 3,
        "generation": 5,
        "leader": "w1",
    }
    assert (facts["world_size"], facts["min_np"], facts["max_np"]) == (2, 1, 4)
    assert (facts["step"], facts["epoch"], facts["epoch_done"], facts["epoch_total"]) == (
        7,
        2,
        64,
        128,
    )
    assert (facts["samples_per_s"], facts["zookeeper"]) == (99.6, "127.0.0.1:2181")
    assert facts["desired"] == facts["assigned"] == {"a": 3, "gone": 0}
    assert (facts["desired_by"], facts["reason"]) == (
        "launcher",
        "w2 is preparing; 2 of 3 train",
    )
    assert facts["members"][0] == {
        "id": "w0",
        "host": "a",
        "pid": 100,
        "port": 1,
        "slot": 0,
        "device": None,
        "rank": 1,
        "stage": "active",
    }
    assert [member["rank"] for member in facts["members"]] == [1, 0, None]


def test_status_of_a_job_that_has_just_begun_or_is_over() -> None:
    bare = Snapshot(make_job(command=("x",)))
    facts = job_status(bare, "zk")
    assert (facts.leader, facts.generation, facts.world_size, facts.step) == (
        None,
        0,
        0,
        0,
    )
    assert "nobody" in shown(status_table(facts))
    assert facts.reason == "it starts; `edl stop digits` ends it"
    left = replace(snapshot(JobState.RUNNING), hosts=(), members=())
    reason = "none of its processes is alive; `edl stop digits` ends it"
    assert job_status(left, "zk").reason == reason
    over = job_status(snapshot(JobState.FAILED), "zk")
    assert (over.state, over.world_size, over.reason) == ("failed", 0, "")


def test_a_leader_that_is_gone_leads_no_more() -> None:
    facts = Snapshot(make_job(command=("x",)), leader=Leader(3, 1))
    assert job_status(facts, "zk").leader is None


def test_status_for_people() -> None:
    text = shown(status_table(job_status(snapshot(), "127.0.0.1:2181")))
    for part in (
        "running: w2 is preparing; 2 of 3 train",
        "w1 on a, process 101, term 3",
        "2 of 3 wanted (a: 3); 1 to 4 workers; generation 5",
        "epoch 2: 64 of 128 samples (50%), step 7, 100 samples/s",
        "w1 (leads)",
        "preparing",
    ):
        assert part in text


def of_long_names() -> tuple[JobStatus, str, str]:
    host, servers = "x" * 120, ",".join(f"zookeeper-{n}.example.org:2181" for n in range(9))
    before = snapshot()
    members = tuple(replace(member, host=host) for member in before.members)
    return job_status(replace(before, members=members), servers), host, servers


def test_status_in_a_pipe_is_as_wide_as_its_texts(capsys: pytest.CaptureFixture[str]) -> None:
    now, host, servers = of_long_names()
    print_table(status_table(now))
    lines = capsys.readouterr().out.splitlines()
    assert sum(host in line.split() for line in lines) == 3
    assert ["ZooKeeper", servers] in [line.split() for line in lines]


def test_status_on_a_narrow_terminal_breaks_what_is_too_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = partial(Console, force_terminal=True, color_system=None, width=60)
    monkeypatch.setattr("edl.cli.common.console", terminal)
    now, host, servers = of_long_names()
    print_table(status_table(now))
    text = capsys.readouterr().out
    head, _, table = text.partition("worker  ")
    assert max(map(len, text.splitlines())) <= 60
    assert servers in "".join(head.partition("ZooKeeper")[2].split())
    assert table.count("x") == 3 * len(host)


def test_status_shows_the_devices_of_a_job_that_is_limited_to_some() -> None:
    before = snapshot()
    assert "device" not in shown(status_table(job_status(before, "zk")))
    members = tuple(
        replace(member, device=device)
        for member, device in zip(before.members, (3, 0, None), strict=True)
    )
    assigned = replace(before.assigned, devices={"b": (), "a": (0, 2, 3)})
    limited = replace(before, members=members, assigned=assigned)
    facts = job_status(limited, "zk").to_json()
    assert facts["devices"] == {"a": (0, 2, 3)}
    assert [member["device"] for member in facts["members"]] == [3, 0, None]
    lines = shown(status_table(job_status(limited, "zk"))).splitlines()
    assert ["devices", "a: 0, 2, 3"] in [line.split(maxsplit=1) for line in map(str.strip, lines)]
    assert [line.split()[-1] for line in lines[-4:] if line.strip()] == ["0", "3", "-"]
    over = replace(limited, job=replace(limited.job, state=JobState.STOPPED))
    assert job_status(over, "zk").devices == {}


@pytest.mark.parametrize(
    ("ahead_s", "when"), [(-7200.0, "by now"), (0.0, "within 30 s"), (7200.0, "within 30 s")]
)
def test_status_never_shows_more_time_than_a_demand_left(
    ahead_s: float, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of the host that asked may be ahead of ours, or behind."""
    monkeypatch.setattr("edl.cli.status.time.time", lambda: 1000.0)
    asked_s = 1000.0 + ahead_s
    before = snapshot()
    reclaims = (Reclaim("a", 2, asked_s, asked_s + 30.0),)
    now = replace(before, desired=replace(before.desired, reclaims=reclaims))
    assert f"2 slots of a {when}" in shown(status_table(job_status(now, "zk")))


def test_status_says_how_many_samples_were_left_out() -> None:
    now = job_status(snapshot(), "zk")
    assert "untrained" not in shown(status_table(now))
    said = shown(status_table(replace(now, untrained=1208)))
    assert "1,208 samples of epochs that were left before their end" in said


def test_status_tells_what_horovodrun_has_not_assigned_yet() -> None:
    now = job_status(snapshot(), "zk")
    said = replace(now, hosts={}, desired={"a": 2, "b": 1}, assigned={"a": 2, "b": 0})
    assert "2 of 3 wanted (a: 2, b: 1); assigned: a: 2; 1 to 4 workers" in shown(status_table(said))
    other = replace(said, desired={})  # another discovery script
    assert "2 of 2 wanted (a: 2); 1 to 4 workers" in shown(status_table(other))


def test_status_says_what_is_slow_and_what_is_free() -> None:
    now = job_status(snapshot(), "zk")
    assert "slowest" not in shown(status_table(now))
    slow = replace(now, slowest="w1", slowest_s=0.21, others_s=0.0152, hosts={"a": 4, "b": 2})
    text = shown(status_table(slow))
    assert "w1 computes 210 ms in a step, the others 15 ms" in text
    assert re.search(r"free slots +a: 1, b: 2 ", text)
    noisy = replace(now, noise_scale=1234.5)
    assert re.search(
        r"noise scale +1,234 samples: a larger global batch", shown(status_table(noisy))
    )
    alone = shown(status_table(replace(noisy, noise_is_biased=True)))
    assert "1,234 samples, by a single worker: a larger" in alone
    quiet = replace(now, quiet_s=6.4, median_step_s=0.1)
    assert "step 7, the last one 6 s ago, 100 samples/s" in shown(status_table(quiet))
    usual = replace(quiet, median_step_s=2.0)
    assert "step 7, 100 samples/s" in shown(status_table(usual))
    assert line(quiet) == (
        "epoch 2: 64 of 128 samples (50%), step 7, the last one 6 s ago, 100 samples/s; "
        "2 of 3 workers; w1 leads; running: w2 is preparing; 2 of 3 train"
    )


def test_output_in_an_encoding_without_such_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii", write_through=True))

    def command() -> int:
        console().print("━─ 42%")
        return 0

    assert run_command(command) == 0
    assert raw.getvalue() == b"?? 42%\n"


def test_what_looks_like_markup_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    name = "[exp]/a[/b]:100:"
    console().print(name)
    print_table(Table(Column(name), title=name))
    assert capsys.readouterr().out.count(name) == 3


def test_the_live_line() -> None:
    line = LiveLine("digits")
    assert "starting, 0 workers ready" in line.render().plain
    line.update(snapshot())
    text = line.render().plain
    assert text.startswith("digits  ━")
    assert text.endswith("  100 samples/s  epoch 2 64/128  step 7  generation 5")
    with Live(line.render(), console=Console(quiet=True)):
        pass


def test_events() -> None:
    values = flat(SWITCH)
    assert values["time"] == "1970-01-01T00:00:00.500000+00:00"
    assert (values["kind"], values["generation"], values["step"]) == ("switch", 2, 40)
    assert values["workers"]["w2"]["stall_s"] == 0.125
    assert "gen 2    step 40       switch             w2 joined" in aligned(SWITCH)
    moment = datetime(2026, 11, 28, 9, 30, 1, 250_000)
    assert aligned(replace(SWITCH, time=moment.timestamp())).startswith("11-28 09:30:01.250  gen 2")
    assert aligned(SWITCH).endswith("[stall w2 125 ms, w10 250 ms]")
    assert cost(REPAIR) == (
        "no step for 135 ms: w2 detect 15, election 40, survivor report 20, init 50, broadcast 10; "
        "stall w1 90 ms, w2 120 ms"
    )
    narrow = aligned(SWITCH, 82).splitlines()
    assert len(narrow) > 1
    assert all(line.startswith(" " * 62) and line[62] != " " for line in narrow[1:]), narrow


def test_a_time_out_of_submit_is_for_a_watch(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["submit", "none.yaml", "--timeout", "60"]) == 2
    assert capsys.readouterr().err == "edl: --timeout is for --watch; give both or neither\n"


def test_the_options_of_all_commands_are_made_by_typer_itself() -> None:
    """Its constructors differ from release to release: with one, each verb was a traceback."""
    sources = Path(config.__file__).with_name("cli").rglob("*.py")
    assert not [path for path in sources if "TyperOption(" in path.read_text()]
