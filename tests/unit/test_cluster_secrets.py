"""Secrets of users: how they are sealed, and how a host gives them to a job and takes them back."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from cluster_world import World

from edl.cli.main import invoke
from edl.cluster.host.agents import AgentOptions, HostAgents, StartOfRun
from edl.cluster.host.logs import LogPlaces
from edl.cluster.host.users import SECRETS_VARIABLE, SecretFiles, secret_root
from edl.cluster.host_jobs import RunProcess
from edl.cluster.lifecycle import LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import HostAssignment, JobAssignment
from edl.host.process import AgentEnd, AgentResult
from edl.secret_file import NONCE_BYTES, derived, seal, unseal

KEY, NONCE = derived("a" * 64, "secrets", "lab"), bytes(range(NONCE_BYTES))
TOKEN = b"hf_0123456789\n\x00\xff"


def test_a_closed_standard_input_gives_no_secret(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `edl secret set wandb <&-`."""
    monkeypatch.setattr("sys.stdin", None)
    assert invoke(["secret", "set", "wandb"]) == 2
    assert capsys.readouterr().err == "edl: standard input is closed; give the value by --file\n"


# --- sealed


@pytest.mark.parametrize("content", [b"x", TOKEN, bytes(32), bytes(range(256)) * 256])
def test_what_is_sealed_can_be_unsealed(content: bytes) -> None:
    sealed = seal(KEY, "wandb", content, NONCE)
    assert len(sealed) == NONCE_BYTES + len(content) + 32
    assert content not in sealed or len(content) == 1
    assert unseal(KEY, "wandb", sealed) == content


def test_two_nonces_or_keys_give_nothing_in_common() -> None:
    one, other = (seal(KEY, "wandb", bytes(64), bytes([n] * NONCE_BYTES)) for n in (1, 2))
    assert one[NONCE_BYTES:] != other[NONCE_BYTES:]
    another = seal(
        derived("b" * 64, "secrets", "lab"), "wandb", bytes(64), bytes([1] * NONCE_BYTES)
    )
    assert one[NONCE_BYTES:] != another[NONCE_BYTES:]


def test_what_was_changed_or_is_of_another_name_or_key_is_refused() -> None:
    sealed = seal(KEY, "wandb", TOKEN, NONCE)
    assert unseal(KEY, "hf", sealed) is None
    assert unseal(derived("b" * 64, "secrets", "lab"), "wandb", sealed) is None
    assert unseal(KEY, "wandb", sealed[:20]) is None
    assert unseal(KEY, "wandb", b"") is None
    for at in range(len(sealed)):
        changed = bytes([*sealed[:at], sealed[at] ^ 1, *sealed[at + 1 :]])
        assert unseal(KEY, "wandb", changed) is None


# --- the job


def test_a_job_waits_for_its_secret_and_holds_up_nobody() -> None:
    world = World(2)
    world.submit("a", max=2, secrets=("wandb", "hf"))
    world.submit("b", max=2)
    world.secrets = {"hf"}
    world.until(lambda: world.state("b") is LifeState.RUNNING)
    why = "place 1 of 1 in the queue: waits for the secret wandb: `edl secret set wandb`"
    assert world.reasons["a"] == why
    world.secrets = {"hf", "wandb"}
    world.until(lambda: world.state("a") is LifeState.RUNNING)
    world.secrets = set()
    world.rounds(5)
    assert world.state("a") is LifeState.RUNNING, "it has read it"


# --- the files


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_this_user_reads_the_files_of_a_run(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path / "secrets")
    before = os.umask(0)
    try:
        where = files.write("j", "r1", {"wandb": TOKEN, "hf": b"x"})
    finally:
        os.umask(before)
    assert {path.name: path.read_bytes() for path in where.iterdir()} == {
        "wandb": TOKEN,
        "hf": b"x",
    }
    assert [mode(one) for one in (where.parent, where, where / "hf")] == [0o700, 0o700, 0o400]
    assert files.write("j", "r1", {"hf": b"y"}) == where
    assert {path.name: path.read_bytes() for path in where.iterdir()} == {"hf": b"y"}


def test_a_directory_of_others_is_not_used(tmp_path: Path) -> None:
    """As those that another user leaves in /dev/shm: nothing in them is read or removed."""
    (tmp_path / "home/ann").mkdir(parents=True)
    (tmp_path / "secrets").symlink_to(tmp_path / "home")
    (tmp_path / "secrets-1/bob").mkdir(parents=True)
    (tmp_path / "secrets-1").chmod(0o755)
    (tmp_path / "secrets-2").write_text("x")
    files = SecretFiles(tmp_path / "secrets")
    files.keep_only([])
    where = files.write("j", "r1", {"hf": b"x"})
    files.keep_only([("j", "r1")])
    assert (where / "hf").read_bytes() == b"x"
    files.keep_only([])
    assert not where.parent.exists()
    assert (tmp_path / "home/ann").exists()
    assert (tmp_path / "secrets-1/bob").exists()


def test_a_directory_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = SecretFiles(tmp_path / "secrets").write("j", "r1", {"hf": b"x"}).parent
    monkeypatch.setattr("os.geteuid", lambda: root.stat().st_uid + 1)
    files = SecretFiles(tmp_path / "secrets")
    files.keep_only([])
    assert root.exists()
    assert files.write("j", "r1", {"hf": b"x"}).parent != root


def test_nothing_is_removed_in_what_takes_the_place_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    files = SecretFiles(tmp_path / "secrets")
    for job in ("bob", "ann"):
        root = files.write(job, "r1", {"hf": b"x"}).parent
        (tmp_path / f"home/{job}+r1").mkdir(parents=True)
    remove = shutil.rmtree

    def swap(path: str, *rest: object, **options: Any) -> None:
        if not root.is_symlink():
            root.rename(tmp_path / "moved")
            root.symlink_to(tmp_path / "home")
        remove(path, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("shutil.rmtree", swap)
    files.keep_only([])
    assert len(list((tmp_path / "home").iterdir())) == 2
    assert not list((tmp_path / "moved").iterdir())
    assert "cannot be removed" in caplog.text


def test_nobody_can_tell_the_name_of_the_directory_before(tmp_path: Path) -> None:
    """The name at which another user could put a directory first, so that no job starts."""
    names = set()
    for _ in range(2):
        files = SecretFiles(tmp_path / "secrets")
        names.add(files.write("j", "r1", {"hf": b"x"}).parent)
        assert files.write("k", "r1", {"hf": b"x"}).parent in names
        SecretFiles(tmp_path / "secrets").keep_only([])
    assert len(names) == 2


def test_they_are_in_memory_where_that_is_possible(tmp_path: Path) -> None:
    memory, state = tmp_path / "shm", tmp_path / "state"
    memory.mkdir()
    found = secret_root("0" * 32, state, memory)
    assert found.parent == memory
    assert "0" * 32 not in found.name, "it would tell others the mark of the host's processes"
    assert secret_root("1" * 32, state, memory) != found
    assert secret_root("0" * 32, state, tmp_path / "none") == state / found.name


@pytest.fixture
def agents(tmp_path: Path) -> HostAgents:
    options = AgentOptions("a", "m", 2, "10.0.0.5", "zoo:2181")
    places = LogPlaces(tmp_path / "jobs", tmp_path / "agents")
    places.agents.mkdir()
    return HostAgents(options, places, {SECRETS_VARIABLE: "/x"}, SecretFiles(tmp_path / "secrets"))


def test_they_go_when_the_run_has_ended_here(tmp_path: Path, agents: HostAgents) -> None:
    files = SecretFiles(tmp_path / "secrets")
    alive = RunProcess(7, 1, "j", "r1", "x-0")

    def left(entry: JobAssignment | None, *found: RunProcess) -> bool:
        where = files.write("j", "r1", {"hf": b"x"})
        former = files.write("k", "r9", {"hf": b"x"})  # of a former `edl host`
        agents.tidy(HostAssignment({} if entry is None else {"j": entry}), found)
        assert not former.exists()
        return where.exists()

    assert left(JobAssignment("r1", (0,))), "its agent may come again"
    assert left(JobAssignment("r1", (0,), ends=3), alive)
    assert left(None, alive)
    assert not left(JobAssignment("r1", (0,), ends=3))
    assert not left(JobAssignment("r2", (0,)))
    assert not left(None)
    assert not list(tmp_path.glob("secrets*"))
    over = AgentResult("j", "r1", "a", AgentEnd.FINISHED, exit_code=0)
    line = "edl host: an agent starts\n" + json.dumps(over.to_json())
    (tmp_path / "agents/j-r1.log").write_text(line)
    assigned = HostAssignment({"j": JobAssignment("r1", (0,))})
    agents.observe(assigned, [], 9.0)
    assert not left(assigned.jobs["j"])


def test_an_agent_gets_the_path_and_not_the_secret(agents: HostAgents, tmp_path: Path) -> None:
    start = StartOfRun("r1", JobManifest("j", ("x",), 1, 1), "s" * 64, {"hf": TOKEN})
    own = agents._environment_of(start, 5, tmp_path / "secrets/j+r1")
    assert own[SECRETS_VARIABLE] == str(tmp_path / "secrets/j+r1")
    assert TOKEN.decode(errors="replace") not in str(own)
    assert SECRETS_VARIABLE not in agents._environment_of(start, 5, None)
    assert "hf_" not in repr(start)
    assert "s" * 64 not in repr(start)
