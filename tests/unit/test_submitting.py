"""What a job is created with: its specification, its name, its secret, and whom it replaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl.client import submit, submitting
from edl.client.submitting import create, job_spec, made_up_name, prepare
from edl.config import Config, load
from edl.errors import AccessDenied, ConfigError, CoordinationError, EdlError, JobExists, UsageError
from edl.events import Event, NoTemplateDetails
from edl.job.placement import DeviceSets
from edl.records import NO_POLICY, Job, JobPolicy
from edl.spec import JobSettings, JobSpec, Sizes
from edl.text import is_given_name
from edl.zookeeper.access import Access, announce, candidates, keep

COMMAND = ["python", "examples/train.py", "--lr", "0.1"]
SPEC = JobSpec(("python", "train.py"), 2, Sizes(1, 4), cwd="/work")
OLD, NEW = "old-secret-" * 4, "new-secret-" * 4
RUN = "0123456789abcdef"
EVENT = Event(0.0, 1, 7, "said before", NoTemplateDetails("a"))
LINE = (
    '{"time": "1970-01-01T00:00:00+00:00", "kind": "no_template", "generation": 1, "step": 7, '
    '"reason": "said before", "host": "a"}\n'
)


class Session:
    def __init__(self) -> None:
        self.proved: list[Access] = []

    def identify(self, *known: Access) -> None:
        self.proved += known


class Store:
    refusal: EdlError | None = None
    unreadable: EdlError | None = None

    def __init__(self, session: Any, name: str) -> None:
        self.session, self.name, self.events = session, name, self
        self.created: list[tuple[Job, dict[str, int], JobPolicy]] = []

    def read_known(self, after: int = -1) -> Iterator[tuple[int, Event]]:
        if self.unreadable is not None:
            raise self.unreadable
        yield after + 1, EVENT

    def create(
        self,
        job: Job,
        hosts: dict[str, int],
        policy: JobPolicy,
        devices: DeviceSets,
        run: str | None,
    ) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.created.append((job, hosts, policy))
        self.run = run


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def unlock(session: Session, known: tuple[Access, ...]) -> dict[str, Access]:
        session.identify(*known)
        return {access.job: access for access in known if access.secret == OLD}

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("EDL_SECRET", raising=False)
    monkeypatch.setattr(submitting, "unlock", unlock)
    monkeypatch.setattr(submitting, "JobStore", Store)
    return tmp_path / "edl"


def spec_of(
    np: int, slots: int | None = None, logical: int = 0, exact: str = "off", **sizes: Any
) -> JobSpec:
    of_job = JobSettings(logical=logical, exact=exact)
    settings = Config(host="a", sizes=Sizes(**sizes), job_settings=of_job)
    return job_spec(COMMAND, np, settings, Path("/work"), slots)


def test_the_specification_says_what_was_asked_for() -> None:
    settings = load({}, max_np=8, min_np=2, stall_limit_s=30.0)
    spec = job_spec(COMMAND, 4, settings, Path("/work"))
    assert (spec.command, spec.np, spec.cwd) == (tuple(COMMAND), 4, "/work")
    assert (spec.sizes, spec.settings) == (Sizes(2, 8), settings.job_settings)
    assert spec.settings.stall_limit_s == 30.0


def test_without_a_maximum_a_job_has_as_many_workers_as_fit() -> None:
    assert spec_of(2).sizes.max_np == 2
    assert spec_of(2, slots=4).sizes.max_np == 4
    assert spec_of(2, slots=1).sizes.max_np == 2  # the host's slots are for others to judge
    assert spec_of(2, slots=4, max_np=3).sizes.max_np == 3
    assert spec_of(2, slots=4, logical=3).sizes.max_np == 3


def test_an_exact_job_has_as_many_logical_workers_as_it_starts_with() -> None:
    spec = spec_of(3, slots=8, exact="same-size")
    assert (spec.settings.logical, spec.sizes.max_np) == (3, 3)
    assert spec_of(3, exact="same-size", logical=6).settings.logical == 6
    assert spec_of(3, exact="any-size", logical=6).settings.logical == 6
    with pytest.raises(ConfigError, match="exact=any-size needs the number of logical workers"):
        spec_of(3, exact="any-size")
    assert JobSettings(exact="same-size", exact_audit=2).of_size(3).logical == 3
    with pytest.raises(ConfigError, match="exact_audit compares the results of logical workers"):
        JobSettings(exact_audit=2)


@pytest.mark.parametrize(
    ("np", "sizes", "said"),
    [
        (1, {"min_np": 3}, "--min-np is 3 and -np is 1; start with -np 3 or more, or with a lower"),
        (5, {"max_np": 4}, "-np is 5; it must lie between --min-np 1 and --max-np 4"),
        (0, {}, "--np is 0; a job needs at least 1 worker"),
        (4, {"logical": 3}, "-np is 4 and --logical is 3: a worker without a logical worker"),
        (2, {"logical": 3, "max_np": 4}, "--max-np is 4 and --logical is 3"),
    ],
)
def test_sizes_that_contradict_each_other(np: int, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        spec_of(np, **sizes)
    assert str(caught.value).startswith(said)


def test_a_name_is_made_up_from_the_command() -> None:
    for command, stem in (
        (COMMAND, "train"),
        (["/opt/my trainer.sh"], "my-trainer"),
        (["python", "..."], "job"),
    ):
        made = {made_up_name(command) for _ in range(5)}
        assert len(made) == 5
        assert {name[:-5] for name in made} == {stem}
        assert not any(map(is_given_name, made))


def test_a_name_that_is_made_up_has_a_letter_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's names may be numbers, as in a sweep."""
    drawn = iter(["0001", "20e1"])
    monkeypatch.setattr(submitting.uuid, "uuid4", lambda: SimpleNamespace(hex=next(drawn)))
    assert made_up_name(COMMAND) == "train-20e1"
    assert is_given_name("sweep-0001")
    assert not is_given_name("train-000a")


def test_a_new_job_gets_a_secret_of_its_own(state: Path) -> None:
    session: Any = Session()
    first, second = prepare(session, "digits"), prepare(session, "digits")
    assert (first.earlier, first.replaces, session.proved) == ((), False, [])
    assert first.access.secret != second.access.secret
    assert prepare(session, "digits", NEW).access == Access("digits", NEW)
    assert candidates(state, "digits", None) == []  # nothing is written before it is created


def test_a_job_that_is_replaced_hands_its_secret_on(state: Path) -> None:
    keep(state, "digits", OLD)
    announce(state, "digits", NEW)  # of a job that never came
    session: Any = Session()
    submission = prepare(session, "digits")
    assert (submission.access, submission.replaces) == (Access("digits", OLD), True)
    assert {one.secret for one in submission.earlier} == {OLD, NEW}
    given = prepare(session, "digits", NEW)
    assert (given.access, given.replaces) == (Access("digits", NEW), True)


def test_the_secret_is_written_down_before_the_job_exists(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = Session()
    submission = prepare(session, "digits", NEW)
    monkeypatch.setattr(Store, "refusal", CoordinationError("ZooKeeper went away"))
    with pytest.raises(CoordinationError):
        create(session, submission, SPEC, {"a": 2})
    assert candidates(state, "digits", None) == [NEW]


def test_the_record_is_created_in_the_name_of_the_new_secret(state: Path) -> None:
    keep(state, "digits", OLD)
    session: Any = Session()
    policy = JobPolicy("rule", "p.toml", 0.0)
    submission = prepare(session, "digits", NEW)
    new = create(session, submission, SPEC, {"a": 2}, policy)
    store: Any = new.store
    assert store.created == [(new.record, {"a": 2}, policy)]
    assert (new.record.name, new.record.spec, new.record.driver) == ("digits", SPEC, "")
    assert session.proved[-2:] == [Access("digits", OLD), Access("digits", NEW)]
    assert new.replaced_events == LINE


def test_a_run_with_a_token_reserves_the_name(state: Path) -> None:
    keep(state, "digits", OLD)
    session: Any = Session()
    new = create(session, prepare(session, "digits"), SPEC, {"a": 2}, run=RUN)
    store: Any = new.store
    assert (store.run, new.record.reserved, new.replaced_events) == (RUN, True, "")
    other = create(session, prepare(session, "digits"), SPEC, {"a": 2})
    store = other.store
    assert (store.run, other.record.reserved, other.replaced_events) == (None, False, LINE)


def test_events_that_cannot_be_read_do_not_stop_the_new_job(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keep(state, "digits", OLD)
    session: Any = Session()
    monkeypatch.setattr(Store, "unreadable", CoordinationError("a node is damaged"))
    new = create(session, prepare(session, "digits"), SPEC, {"a": 2})
    assert new.replaced_events == ""
    assert caplog.messages == [
        "the events of the last run of job digits are lost: a node is damaged"
    ]


@pytest.mark.parametrize(
    "refusal", [JobExists("digits", ["host a"], 10.0), AccessDenied("digits", "is taken")]
)
def test_a_name_that_is_taken(
    state: Path, monkeypatch: pytest.MonkeyPatch, refusal: EdlError
) -> None:
    monkeypatch.setattr(Store, "refusal", refusal)
    session: Any = Session()
    with pytest.raises(type(refusal)) as caught:
        create(session, prepare(session, "digits"), SPEC, {"a": 2}, NO_POLICY)
    assert caught.value is refusal


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"command": []}, UsageError, "the command is []; give its words"),
        ({"command": "python train.py"}, UsageError, "the command is 'python train.py'; give its"),
        ({"hosts": ["a", "b"]}, UsageError, "the hosts are ['a', 'b']; give the workers to start"),
        ({"hosts": {}}, UsageError, "--np is 0; a job needs at least 1 worker"),
        ({"hosts": {"a": 1.5}}, UsageError, "1.5 is no whole number"),
        ({"hosts": {"a": 0}}, UsageError, "give 1 or more"),
        ({"hosts": {"a b": 1}}, ConfigError, "'a b' cannot be the name of a host"),
        ({"name": "a/b"}, ConfigError, "'a/b' cannot be the name of a job"),
        ({"max_np": 1}, UsageError, "-np is 2; it must lie between"),
        ({"policy": "size ="}, UsageError, "a program"),
        ({"nonsense": 1}, ConfigError, "edl has no setting named nonsense"),
        ({"secret": "short"}, ConfigError, "EDL_SECRET has 5 characters"),
        ({"run": RUN}, UsageError, "a job with a token of its run needs a name"),
        ({"run": "R1", "name": "j"}, UsageError, "'R1' cannot be the token of a run"),
    ],
)
def test_what_cannot_be_is_refused_before_zookeeper_is_asked(
    state: Path, arguments: dict[str, Any], error: type[EdlError], said: str
) -> None:
    given = {"command": COMMAND, "hosts": {"a": 2}, "zookeeper": "127.0.0.1:1", **arguments}
    with pytest.raises(error) as caught:
        submit(**given)
    assert said in str(caught.value)
    assert not state.exists()
