"""`edl.client` and its verbs, on jobs whose workers have no ring: seconds each."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import forked
import pytest
from cli_shell import STANDIN, WAIT_S, Running, Shell, shell, until

from edl.client import Job, connection, submit
from edl.client.connection import choose_job, connected
from edl.errors import (
    AccessDenied,
    HostLost,
    JobEnded,
    JobExists,
    TimedOut,
    UnknownJob,
    UsageError,
)
from edl.records import JobState, RequestedBy
from edl.text import counted

pytestmark = pytest.mark.integration
__all__ = ["shell"]
GOES_ON = "the migration goes on; `edl migrate j --from b --to a --np 1` takes it back"


@contextmanager
def two_hosts(shell: Shell, np: int = 2, slots: int = 2, *options: str) -> Iterator[Running]:
    """Run a job of ``np`` workers on host a, and host b, which joins with ``slots``."""
    limits = ("-np", str(np), "--max-np", "4", "--slots", str(max(2, np)))
    job = shell.start(
        "run", *limits, "--job", "j", "--host", "a", sys.executable, STANDIN, *options
    )
    shell.until_size(np)
    guest = shell.start("join", "--job", "j", "--host", "b", "--slots", str(slots))
    guest.expect(f"host b offers {counted(slots, 'slot')} to job j")
    yield guest
    if shell.status()["state"] == "running":
        assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == (0 if shell.status()["state"] == "finished" else 143)
    guest.wait()


@pytest.fixture
def client(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return the job j, found as the command line would find it."""
    for name in ("EDL_ZOOKEEPER", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, shell.environment[name])
    return Job("j")


def hosts(facts: dict) -> list[str]:
    return sorted(member["host"] for member in facts["members"])


def kinds(shell: Shell, kind: str) -> list[dict]:
    return [event for event in shell.events() if event["kind"] == kind]


def test_all_workers_move_and_back(shell: Shell, client: Job) -> None:
    """One brings the state to the others, and leaves with the next switch."""
    with two_hosts(shell), client as job:
        there = job.migrate("a", "b")
        assert there.generations == (2, 3)
        facts = shell.until_size(2)
        assert (hosts(facts), facts["desired"]) == (["b", "b"], {"a": 0, "b": 2})
        assert job.migrate("b", "a", np=1).generations == (4,)
        assert hosts(shell.until_size(2)) == ["a", "b"]


MIGRATE = ("migrate", "j", "--from")
PROFILE = ("profile", "j")
REFUSED = [
    ((*MIGRATE, "a", "--to", "a"), "from host a to itself"),
    ((*MIGRATE, "x", "--to", "b"), "from host x: it has none; the job's workers are on a: 2"),
    ((*MIGRATE, "a", "--to", "x"), "nobody offers x; add x with `edl join --job j --host x`"),
    ((*MIGRATE, "a", "--to", "b"), "b has 1 slot and 0 of them are taken"),
    ((*MIGRATE, "a", "--to", "b", "--np", "3"), "--np must lie between 1 and 2"),
    ((*PROFILE, "--np", "1..5"), "cannot scale job j to 5 workers: max_np is 4"),
    ((*PROFILE, "--np", "4"), "its hosts have 3 slots"),
    ((*PROFILE, "--np", "many"), "'many' are no numbers of workers; write 1..4"),
    ((*PROFILE, "--np", "2", "--steps", "0"), "0 steps cannot be measured"),
    ((*PROFILE, "--np", "2", "--timeout", "0"), "nothing can be measured in 0 s"),
    (PROFILE, "give the sizes to measure, like --np 1..4, or --show"),
    ((*PROFILE, "--show"), "the job was never profiled"),
    ((*PROFILE, "--show", "--np", "2"), "--show measures nothing"),
    ((*PROFILE, "--np", "2", "--plot", "c.pdf"), "must end with .png or .svg"),
]


def test_what_cannot_be_is_one_sentence_and_changes_nothing(shell: Shell) -> None:
    with two_hosts(shell, slots=1):
        for words, message in REFUSED:
            done = shell.edl(*words)
            assert (done.returncode, done.stdout) == (2, ""), words
            (line,) = done.stderr.splitlines()
            assert message in line
        facts = shell.until_size(2)
        assert (facts["desired"], facts["generation"]) == ({"a": 2}, 1)
    for words in (("migrate", "j", "--from", "a", "--to", "b"), ("profile", "j", "--np", "1")):
        done = shell.edl(*words)
        assert done.returncode == 2
        assert "it is stopped" in done.stderr


def test_a_migration_outlives_who_asked_for_it(shell: Shell) -> None:
    """Ctrl-C, or its deadline: it goes on, and the way back is reasons."""
    (shell.directory / "train.py").write_text(
        "import os, runpy, sys, time\n"
        "while os.environ['EDL_HOST'] == 'b' and not os.path.exists('go'):\n"
        "    time.sleep(0.05)\n"
        f"sys.argv[0] = {STANDIN!r}\n"
        f"runpy.run_path({STANDIN!r}, run_name='__main__')\n"
    )
    limits = ("run", "-np", "2", "--max-np", "4", "--slots", "2", "--job", "j", "--host", "a")
    job = shell.start(*limits, sys.executable, "train.py")
    shell.until_size(2)
    guest = shell.start("join", "--job", "j", "--host", "b", "--slots", "2")
    guest.expect("host b offers")
    move = ("migrate", "j", "--from", "a", "--to", "b")
    done = shell.edl(*move, "--np", "1", "--timeout", "1")
    assert done.returncode == 1
    assert (
        "moving 1 worker of j from a to b is not done after 1 s; 0 of 1 moved; 1 to be started: "
    ) in done.stderr
    assert GOES_ON in done.stderr
    taken_back = shell.edl("migrate", "j", "--from", "b", "--to", "a")
    assert "moved 1 worker of j from b to a without a switch" in taken_back.stdout
    assert shell.status()["desired"] == {"a": 2, "b": 0}

    waits = shell.start(*move, "--np", "1")
    until(lambda: shell.status()["desired"] == {"a": 1, "b": 1}, WAIT_S)
    waits.signal(signal.SIGINT)
    assert waits.wait() == 130
    assert "edl: the migration goes on" in waits.output
    assert hosts(shell.status())[:2] == ["a", "a"]
    (shell.directory / "go").touch()
    until(lambda: hosts(shell.until_size(2)) == ["a", "b"], WAIT_S)
    assert shell.edl("stop", "j").returncode == 0
    assert (job.wait(), guest.wait()) == (143, 0)


@pytest.mark.long  # tests/README.md, Time
def test_a_target_that_leaves_gives_back_what_had_not_moved(shell: Shell) -> None:
    (shell.directory / "train.py").write_text(
        "import os, runpy, sys, time\n"
        "while os.environ['EDL_HOST'] == 'b' and os.environ['EDL_SLOT'] == '1':\n"
        "    time.sleep(0.05)\n"
        f"sys.argv[0] = {STANDIN!r}\n"
        f"runpy.run_path({STANDIN!r}, run_name='__main__')\n"
    )
    limits = ("run", "-np", "3", "--max-np", "4", "--job", "j", "--host", "a")
    job = shell.start(*limits, sys.executable, "train.py")
    shell.until_size(3)
    guest = shell.start("join", "--job", "j", "--host", "b", "--slots", "2")
    guest.expect("host b offers")
    move = shell.start("migrate", "j", "--from", "a", "--to", "b", "--np", "2")
    until(lambda: "move together" in shell.status()["reason"], WAIT_S)
    guest.signal(signal.SIGINT)
    assert move.wait() == 1
    assert "were asked for while 2 workers of j from a to b were moving" in move.output
    assert "a: 3, b: 0 are wanted now; 0 of 2 had moved" in move.output
    assert guest.wait() == 0
    facts = shell.until_size(3)
    assert (hosts(facts), facts["generation"]) == (["a"] * 3, 1)  # nothing was switched
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143


def test_a_host_that_leaves_is_not_held_by_who_did_not_know(shell: Shell, client: Job) -> None:
    """Who asks from facts a moment old may give it workers again."""
    (shell.directory / "train.py").write_text(
        "import os, runpy, signal, sys, time\n"
        "while os.environ['EDL_HOST'] == 'b':\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    print('up', flush=True)\n"
        "    time.sleep(60)\n"
        f"sys.argv[0] = {STANDIN!r}\n"
        f"runpy.run_path({STANDIN!r}, run_name='__main__')\n"
    )
    job = shell.start(
        *("run", "-np", "1", "--max-np", "2", "--job", "j", "--host", "a"),
        *(sys.executable, "train.py"),
    )
    shell.until_size(1)
    guest = shell.start("join", "--job", "j", "--host", "b", "--slots", "1", "-np", "1")
    guest.expect("up")
    guest.signal(signal.SIGINT)
    guest.expect("Ctrl-C: host b leaves the job")
    with connected(None) as session:
        store = choose_job(session, "j")
        store.set_desired(lambda now: {**now, "b": 1}, RequestedBy.PERSON, "a test")
    assert guest.wait() == 0
    assert shell.status()["desired"] == {"a": 1, "b": 0}
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143


def test_scaling_by_and_to_a_number(shell: Shell, client: Job) -> None:
    with two_hosts(shell), client as job:
        resize = job.scale_out(2, timeout_s=WAIT_S)
        assert (dict(resize.before), dict(resize.after)) == ({"a": 2}, {"a": 2, "b": 2})
        assert job.status().world_size == 4
        assert str(job.scale_in(timeout_s=WAIT_S)) == "job j: 4 -> 3 workers (a: 2, b: 1)"
        assert job.scale(1).after == {"a": 1, "b": 0}
        with pytest.raises(UsageError, match="to 0 workers: `edl stop"):
            job.scale_in()
        with pytest.raises(UsageError, match="to 5 workers: max_np is 4"):
            job.scale_out(4)
        for change in (job.scale_out, job.scale_in):
            with pytest.raises(UsageError, match="-1 workers cannot be added or taken away"):
                change(-1)
        shell.until_size(1)
        with pytest.raises(UsageError, match="cannot drain w0"):
            job.drain(0)
        job.scale(2, timeout_s=WAIT_S)
        assert job.drain(0) == "w0 leaves with the next switch"


def test_a_job_that_is_created_just_now_is_open_to_who_has_its_secret(
    shell: Shell, client: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look which jobs there are and the look into this one."""
    job = shell.start("run", "-np", "1", "--job", "j", sys.executable, STANDIN)
    shell.until_size(1)
    with monkeypatch.context() as moment_ago:
        moment_ago.setattr(connection, "job_names", lambda session: ())
        assert client.status().state is JobState.RUNNING
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143


def test_a_deadline_passes_and_jobs_end(shell: Shell, client: Job) -> None:
    with pytest.raises(UnknownJob, match="there is no job named 'j'"):
        client.status()
    with two_hosts(shell) as guest:
        guest.signal(signal.SIGSTOP)  # so the third worker, on host b, has to wait
        with pytest.raises(TimedOut, match="scaling job j to 3 is not done after 0 s"):
            client.scale(3, timeout_s=0.0)
        guest.signal(signal.SIGCONT)
        shell.until_size(3)
        stop = shell.start("stop", "j")
        with pytest.raises((JobEnded, UsageError), match="stop"):
            client.profile([3], steps=10_000)
        assert stop.wait() == 0
        assert client.status().state is JobState.STOPPED


def test_a_profile_is_right_kept_and_leaves_the_size_as_it_was(shell: Shell) -> None:
    """Steps of a known time, and 4 samples a step from each worker."""
    step_s = 0.05
    with two_hosts(shell, 2, 2, "--step-s", str(step_s)):
        done = shell.edl("profile", "j", "--np", "1..3", "--steps", "30", "--json")
        assert done.returncode == 0, done.stderr
        curve = json.loads(done.stdout)
        assert [point["np"] for point in curve["points"]] == [1, 2, 3]
        for point in curve["points"]:
            assert point["step_s"] >= step_s, point  # longer on a busy machine
            assert point["throughput"] == pytest.approx(4 * point["np"] / point["step_s"], rel=1e-4)
            per_worker = point["throughput"] / point["np"]
            alone = curve["points"][0]["throughput"]
            assert point["efficiency"] == pytest.approx(per_worker / alone, abs=1e-3)
            assert point["steps"] >= 30
        assert shell.until_size(2)["desired"] == {"a": 2}

        def sizes() -> list[int]:
            return [len(e["members"]) for e in kinds(shell, "generation")]

        # Out to the largest, downwards, and back; a stand-in logs after it has decided.
        until(lambda: sizes() == [2, 3, 2, 1, 2], WAIT_S)
        again = shell.edl("profile", "j", "--show", "--json", "--plot", "curve.svg")
        assert json.loads(again.stdout) == curve
        assert (shell.directory / "curve.svg").read_text().startswith("<?xml")
    shown = shell.edl("profile", "j", "--show")  # of a job that has ended
    assert shown.returncode == 0
    assert "efficiency" in shown.stdout
    reasons = [event["reason"] for event in kinds(shell, "profile")]
    assert [text.split(" train")[0] for text in reasons] == ["3 workers", "2 workers", "1 worker"]


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_profile_gives_the_size_back(shell: Shell, number: signal.Signals) -> None:
    # A worker alone trains no step: its size cannot have been measured when the signal comes.
    with two_hosts(shell, 2, 2, "--step-s", "0.05", "--rest-alone"):
        profile = shell.start("profile", "j", "--np", "1,2", "--steps", "10")
        until(lambda: shell.status()["desired"]["a"] == 1, WAIT_S)
        profile.signal(number)
        assert profile.wait() == 128 + number
        assert "the job has the size back that it had" in profile.output
        assert shell.until_size(2)["desired"] == {"a": 2}
        kept = json.loads(shell.edl("profile", "j", "--show", "--json").stdout)
        assert [point["np"] for point in kept["points"]] == [2]


@pytest.mark.long  # tests/README.md, Time
def test_a_profile_ends_when_somebody_else_scales(shell: Shell) -> None:
    with two_hosts(shell):
        profile = shell.start("profile", "j", "--np", "1", "--steps", "100000")
        until(lambda: shell.status()["desired"]["a"] == 1, WAIT_S)
        shell.edl("scale", "j", "--np", "3")
        assert profile.wait() == 1
        assert "somebody has asked for 3 workers while job j was profiled" in profile.output
        assert "nothing was measured" in profile.output
        assert shell.until_size(3)["desired"] == {"a": 2, "b": 1}


@pytest.mark.long  # tests/README.md, Time
def test_a_host_that_comes_during_a_profile_adds_to_the_size_that_the_job_had(
    shell: Shell,
) -> None:
    with two_hosts(shell):
        profile = shell.start("profile", "j", "--np", "1", "--steps", "100000")
        until(lambda: shell.status()["desired"]["a"] == 1, WAIT_S)
        second = shell.edl("profile", "j", "--np", "2")
        assert second.returncode == 2
        assert f"job j is profiled by process {profile.process.pid} on" in second.stderr
        late = shell.start("join", "--job", "j", "--host", "c", "--slots", "1", "-np", "1")
        assert profile.wait() == 1
        assert "hosts or workers came or left while job j was profiled: 3 work" in profile.output
        assert shell.until_size(3)["desired"] == {"a": 2, "c": 1}
        (began,) = kinds(shell, "profiling")
        assert (began["np"], began["desired"]) == (2, {"a": 2})
        assert shell.edl("profile", "j", "--np", "3", "--steps", "10").returncode == 0
    assert late.wait() == 0


def test_a_job_that_ends_keeps_what_was_measured(shell: Shell) -> None:
    with two_hosts(shell, 2, 2, "--rest-alone"):  # the second size is never measured
        profile = shell.start("profile", "j", "--np", "1..2", "--steps", "10")
        until(lambda: kinds(shell, "profile"), WAIT_S)
        with shell.store("j") as store:
            assert store.set_job_state(JobState.STOPPING, "edl stop")
        assert profile.wait() == 1
        assert "profiling job j with 1 worker is not done: job j is stopped" in profile.output
        assert "; measured with 2 workers" in profile.output
        kept = json.loads(shell.edl("profile", "j", "--show", "--json").stdout)
        assert [point["np"] for point in kept["points"]] == [2]


def test_the_client_needs_no_framework() -> None:
    code = (
        "import sys, edl.client\n"
        "print([m for m in ('torch', 'tensorflow', 'horovod', 'matplotlib') if m in sys.modules])"
    )
    done = forked.by_exec([sys.executable, "-c", code], 60)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.long  # tests/README.md, Time
def test_a_target_whose_agent_is_gone_is_given_up(shell: Shell, client: Job) -> None:
    """Frozen before it has started a worker: nobody leaves, and as many are wanted as before."""
    with two_hosts(shell) as guest:
        guest.signal(signal.SIGSTOP)
        try:
            with pytest.raises(
                HostLost, match="offered host b for 10 s: 2 of 2 workers of job j stay"
            ):
                client.migrate("a", "b")
            facts = shell.until_size(2)
            assert (facts["desired"], facts["generation"]) == ({"a": 2, "b": 0}, 1)
        finally:
            guest.signal(signal.SIGCONT)


def submit_as_another_user(shell: Shell, command: tuple[str, ...]) -> None:
    with pytest.MonkeyPatch.context() as another_user:
        another_user.setenv("XDG_STATE_HOME", str(shell.directory / "another"))
        submit(command, {"a": 1}, name="j")


def test_a_program_submits_a_job_as_edl_run_does(shell: Shell, client: Job) -> None:
    """The same stands in ZooKeeper, the same is refused, and a host that joins trains it."""
    command = (sys.executable, STANDIN, "--until", "go")
    options = ("-np", "1", "--min-np", "1", "--max-np", "2", "--stall-limit", "30", "--host", "a")
    by_verb = shell.start("run", *options, "--job", "verb", *command)
    shell.until_size(1, "verb")
    settings = {"min_np": 1, "max_np": 2, "stall_limit_s": 30.0, "cwd": shell.directory}
    settings["session_timeout_s"] = float(shell.environment["EDL_SESSION_TIMEOUT_S"])
    with submit(command, {"a": 1}, name="j", **settings) as job:
        with shell.store("verb") as verb, shell.store("j") as mine:
            verb_now, now = verb.snapshot(), mine.snapshot()
            fixed = [path.removeprefix(mine.paths.root) for path in mine.paths.fixed]
            acls = [
                mine.session.client.get_acls(f"{one.paths.root}{path}")[0]
                for one in (verb, mine)
                for path in fixed
            ]
        assert now.job == replace(verb_now.job, name="j", created=now.job.created)
        assert now.desired == replace(verb_now.desired, at_s=now.job.created)
        assert (now.assigned, now.policy) == (verb_now.assigned, verb_now.policy)
        assert (now.hosts, now.members, now.generation) == ((), (), None)
        assert {(len(acl), acl[0].id.id.partition(":")[0]) for acl in acls} == {
            (1, "verb"),
            (1, "j"),
        }
        with pytest.raises(JobExists, match=r"is already running \(its start is under way\)"):
            submit(command, {"a": 1}, name="j")
        done = shell.edl("run", "--job", "j", *command)
        assert "a job named 'j' is already running (its start is under way)" in done.stderr
        agent = shell.start("join", "--job", "j", "--host", "a", "--slots", "1")
        shell.until_size(1)
        assert job.status().job == "j"
    shell.until_size(1)  # its agent has taken the job over
    with pytest.raises(AccessDenied, match="the name 'j' is taken by a job that has another"):
        submit_as_another_user(shell, command)
    (shell.directory / "go").touch()
    assert (agent.wait(), by_verb.wait()) == (0, 0)
    assert client.status().state is JobState.FINISHED
    again = submit(command, {"a": 1}, name="j")  # without a block, too
    assert again.status().state is JobState.RUNNING
    with pytest.raises(JobExists):
        submit(command, {"a": 1}, name="j")
    again.close()
    submit(command, {"a": 2}, name="j", max_np=2).close()
    assert client.status().desired == {"a": 2}
