"""A worker that is forked from a template is what ``exec`` would have started; and faults of both.

The processes here import little, so that the two can be compared in seconds. That real workers are
forked, and train: ``test_a_replacement_is_forked``.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli_shell import STANDIN, WAIT_S, Shell, shell, until
from paths import SCRIPTS

from edl.binding.process import divided, write_imports
from edl.host.template import DEATHS, Child, Template, TemplateKeeper, TemplateRefused, why_none
from edl.host.workers import Workers

pytestmark = pytest.mark.integration
__all__ = ["shell"]

MODULES = ["json", "random", "multiprocessing"]
PACKAGE = "import sys; print(sys.argv, sys.path[0], __name__, __file__, __package__)"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "facts.py").write_text((SCRIPTS / "as_started.py").read_text())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(PACKAGE)
    (tmp_path / "link.py").symlink_to("folder/__main__.py")
    return tmp_path


def imports(place: Path, *modules: str, own: Sequence[str] = (), **environment: str | None) -> Path:
    """Write what a worker writes; ``own``: modules of the script, beside it."""
    path = place / "imports"
    files = {name: str(place / f"{name}.py") for name in own}
    what = {"modules": modules or MODULES, "own": files, "environment": environment}
    path.write_text(json.dumps(what))
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", **more}


def ready(template: Template) -> Template:
    def is_ready() -> bool:
        template.poll()
        return template.ready

    until(is_ready, WAIT_S)
    return template


def executed(command: Sequence[str], place: Path, own: Mapping[str, str]) -> tuple[int, str]:
    log = place / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=place, env=own, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        return process.wait(WAIT_S), log.read_text()


def forked(
    command: Sequence[str], place: Path, own: Mapping[str, str], *modules: str
) -> tuple[int, str]:
    log, what = place / "log", imports(place, *modules)
    log.write_text("")
    template = ready(Template(command, place, environment(), what, place / "output"))
    try:
        return template.fork(own, log, lambda pid: None).wait(), log.read_text()
    finally:
        template.close()


def test_the_end_of_a_child_is_seen_by_all_threads_that_poll() -> None:
    def poll(child: Child) -> int:
        until(lambda: child.poll() is not None, WAIT_S)
        child.send_signal(signal.SIGKILL)
        return child.wait()

    with ThreadPoolExecutor(4) as threads:
        for _ in range(30):
            child = Child(os.posix_spawn("/bin/true", ["true"], {}))
            assert [*threads.map(poll, [child] * 4)] == [0] * 4


@pytest.mark.parametrize(
    "words",
    [
        ("facts.py", "a", "b c"),
        ("-O", "-Wdefault", "-X", "dev", "./facts.py"),
        ("-I", "facts.py"),
        ("-um", "facts", "x"),
    ],
    ids=["a script", "options", "isolated", "a module"],
)
def test_a_forked_worker_is_as_if_started_by_exec(words: tuple[str, ...], place: Path) -> None:
    command, own = (sys.executable, *words), environment(EDL_SLOT="ü 1", PATH_OF="x")
    (code, plain), (forked_code, text) = (
        start(command, place, own) for start in (executed, forked)
    )
    assert (code, forked_code) == (0, 0), text
    lines, forked_lines = ([*one.splitlines()] for one in (plain, text))
    facts, forked_facts = (json.loads(one[-3]) for one in (lines, forked_lines))
    assert forked_facts == facts
    assert forked_lines[-1] == "an exit handler"
    assert forked_lines[-2].split() != lines[-2].split(), "random numbers and keys are its own"
    assert lines[:-3] == forked_lines[:-3], "what Python warns of"


ENDS = {
    "its own code": "import sys; sys.exit(3)",
    "an error": "def f():\n  1 / 0\ntry:\n  f()\nexcept Exception as e:\n  raise OSError from e",
    "a syntax error": "1 +",
    "os._exit": "import os; os._exit(5)",
    "a signal": "import os; os.kill(os.getpid(), 9)",
    "Ctrl-C": "raise KeyboardInterrupt",
    "a text": "raise SystemExit('that was it')",
    "an excepthook": "import sys\nsys.excepthook = lambda *a: print(a[0], a[2].tb_lineno)\n1 / 0",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_forked_worker_ends_as_if_started_by_exec(name: str, place: Path) -> None:
    command = (sys.executable, "-c", ENDS[name], "x")
    assert forked(command, place, environment()) == executed(command, place, environment())


@pytest.mark.parametrize(
    "words", [("missing.py",), ("-m", "missing"), ("folder", "x"), ("link.py",)]
)
def test_what_is_not_there_and_what_is_a_folder(words: tuple[str, ...], place: Path) -> None:
    command = (sys.executable, *words)
    assert forked(command, place, environment()) == executed(command, place, environment())


HOOK = """
import sys
sys.excepthook = lambda kind, error, trace: print("the script's own", error)
import edl.binding.process as process
from edl.errors import NewcomerDiffers
process.speak_in_sentences()  # as edl.init() does
raise {}
"""


@pytest.mark.parametrize("error", ["NewcomerDiffers('x')", "ValueError('y')"])
def test_a_hook_that_a_script_sets_before_it_imports_edl(error: str, place: Path) -> None:
    command = (sys.executable, "-c", HOOK.format(error))
    code, text = executed(command, place, environment())
    assert (code, text) == ((78, "edl: x\n") if "x" in error else (1, "the script's own y\n"))
    assert forked(command, place, environment(), "edl.binding.process") == (code, text)


SEEN = (
    "import os, sys, calendar; "
    "print('calendar' in sys.modules, os.environ.get('CHOICE'), os.environ.get('GONE'))"
)


def test_the_imports_see_what_the_first_script_had_set_and_the_worker_does_not(place: Path) -> None:
    """As KERAS_BACKEND, which a library reads when it is imported."""
    (place / "reads_choice.py").write_text("import os; print(os.environ.get('CHOICE'))")
    own = environment(GONE="here", PYTHONPATH=str(place))
    what = imports(place, "reads_choice", CHOICE="yes", GONE=None)
    output, log = place / "output", place / "log"
    template = ready(Template([sys.executable, "-c", SEEN], place, own, what, output))
    try:
        assert template.fork(own, log, lambda pid: None).wait() == 0
    finally:
        template.close()
    assert output.read_text().startswith("yes\nready")
    assert log.read_text() == "True None here\n"


def test_what_is_written_down_is_what_comes_from_installed_packages(tmp_path: Path) -> None:
    names, own = divided(sys.modules)
    assert {"json", "numpy", "edl", "edl.host.template", "psutil"} <= {*names}
    assert not {"__main__", "cli_shell", "paths", __name__} & {*names}
    assert {"cli_shell", "paths", __name__} <= {*own}
    assert names.index("edl") < names.index("edl.host.template")
    path = tmp_path / "imports"
    write_imports(path, {"SAME": "1", "CHANGED": "1", "GONE": "1"}, {"SAME": "1", "CHANGED": "2"})
    assert json.loads(path.read_text())["environment"] == {"CHANGED": "2", "GONE": None}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600, "a script may set secrets"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("bash", "x.sh"), "bash is not Python"),
        ((sys.executable, "x.pyc"), "x.pyc is compiled"),
        ((sys.executable, "-i", "x.py"), "runs no script"),
        (("/usr/bin/python3", "x.py"), "another interpreter than the launcher's"),
    ],
)
def test_commands_without_a_template(command: tuple[str, ...], reason: str) -> None:
    assert reason in why_none(command, os.environ["PATH"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "import threading as t; one = t.Timer(9, print); one.daemon = True; one.start()",
            "the import of makes_one has started a thread",
        ),
        ("import socket; kept = socket.socket()", "an import has opened socket"),
        ("import multiprocessing as m; kept = m.Lock()", "memory that all workers would share"),
        ("import calendar", "the script has a module calendar, and an import has imported another"),
    ],
    ids=["a thread", "a socket", "a lock", "a module of the script"],
)
def test_imports_that_are_no_base_for_forks(text: str, reason: str, place: Path) -> None:
    (place / "makes_one.py").write_text(text)
    what = imports(place, "json", "makes_one", own=["makes_one", "train_utils", "calendar"])
    own = environment(PYTHONPATH=str(place))
    template = Template([sys.executable, "x.py"], place, own, what, place / "output")
    try:
        with pytest.raises(TemplateRefused, match=reason):
            ready(template)
    finally:
        template.close()


# --- faults


SLEEPS = (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)")


@pytest.fixture
def workers(place: Path) -> Iterator[Workers]:
    keeper = TemplateKeeper(SLEEPS, place, environment(), place, wanted=True)
    assert keeper.imports is not None
    keeper.imports.write_text(imports(place).read_text())
    found = Workers(SLEEPS, place, environment(), place, keeper)
    until_template(keeper)
    yield found
    found.close()
    found.kill_all(WAIT_S)


def until_template(keeper: TemplateKeeper) -> None:
    def is_ready() -> bool:
        keeper.poll()
        assert keeper.why_none == ""
        return keeper.ready

    until(is_ready, WAIT_S)


def keeper_of(workers: Workers) -> TemplateKeeper:
    assert workers.template is not None
    return workers.template


def says(place: Path, launch: str) -> Callable[[], bool]:
    log = place / f"{launch}.log"
    return lambda: log.exists() and "here" in log.read_text()


def test_a_template_that_dies_costs_nothing(workers: Workers, place: Path) -> None:
    """The next worker is started by exec, and there is a template again; not without end."""
    keeper = keeper_of(workers)
    for number in range(DEATHS + 1):  # a worker that is forked begins the count anew
        until_template(keeper)
        workers.start(f"before-{number}", 0)
        assert keeper.pid is not None
        os.kill(keeper.pid, signal.SIGKILL)
        workers.start(f"after-{number}", 1)
        until(says(place, f"before-{number}"), WAIT_S)
        until(says(place, f"after-{number}"), WAIT_S)
    assert len(workers) == 2 * (DEATHS + 1)
    for _ in range(DEATHS - 1):
        until_template(keeper)
        os.kill(keeper.pid, signal.SIGKILL)
        until(lambda: (keeper.poll(), keeper.pid)[1] is None, WAIT_S)
    assert keeper.why_none == "it has ended, with code -9"


def test_after_a_forked_worker_that_failed_at_once_all_are_started_anew(place: Path) -> None:
    """Perhaps it failed because of what a fork has otherwise."""
    fails = (sys.executable, "-c", "import sys; sys.exit(3)")
    keeper = TemplateKeeper(fails, place, environment(), place, wanted=True)
    assert keeper.imports is not None
    keeper.imports.write_text(imports(place).read_text())
    workers = Workers(fails, place, environment(), place, keeper)
    until_template(keeper)
    try:
        workers.start("x-0", 0)
        ends: list[bool] = []
        until(lambda: ends.extend(end.forked for end in workers.reap().values()) or ends, WAIT_S)
        assert ends == [True]
        workers.disable_template()  # by the launcher: unit/test_supervisor.py
        assert keeper.why_none == "a worker that was forked from it failed before its first step"
        assert keeper.pid is None
    finally:
        workers.close()
        workers.kill_all(WAIT_S)
    assert [*place.glob("template-*")] == []


def test_an_orphan_that_is_adopted_meanwhile_is_no_zombie(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies while another one is forked leaves its helpers to this process."""
    here = subprocess.Popen(
        [sys.executable, "-c", "import os\nif not os.fork(): os._exit(0)\ninput()"],
        stdin=subprocess.PIPE,
    )
    helpers = psutil.Process(here.pid)
    until(lambda: helpers.children(), WAIT_S)
    (helper,) = helpers.children()
    receive = socket.socket.recv

    def die_meanwhile(one: socket.socket, *arguments: Any) -> bytes:
        here.kill()
        until(lambda: helper.ppid() == os.getpid(), WAIT_S)
        return receive(one, *arguments)

    monkeypatch.setattr(socket.socket, "recv", die_meanwhile)
    workers.start("x-0", 0)
    monkeypatch.undo()
    here.communicate(timeout=WAIT_S)
    keeper = keeper_of(workers)
    until(lambda: (keeper.poll(), psutil.pid_exists(helper.pid))[1] is False, WAIT_S)


def test_a_worker_that_is_killed_while_it_is_forked_has_ended(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = workers._write_record

    def write_and_kill(launch: str, pid: int) -> None:
        write(launch, pid)
        os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(workers, "_write_record", write_and_kill)
    workers.start("x-0", 0)
    ends: dict[str, object] = {}

    def ended() -> bool:
        ends.update({launch: (end.code, end.trained_s) for launch, end in workers.reap().items()})
        return bool(ends)

    until(ended, WAIT_S)
    assert ends == {"x-0": (-9, None)}
    monkeypatch.undo()
    workers.start("x-1", 0)
    assert keeper_of(workers).ready, "the template is none the worse for it"


DIES_WHILE_IT_FORKS = """
import os, sys, time
from pathlib import Path
from edl.host.template import Template
place, environment = Path.cwd(), dict(os.environ)
command = [sys.executable, "-c", "open('ran', 'w').close()"]
template = Template(command, place, environment, place / "imports", place / "output")
while not template.ready:
    template.poll()
    time.sleep(0.01)
def die(pid):
    Path("pids").write_text(f"{pid} {template.pid}")
    os.kill(os.getpid(), 9)
template.fork(environment, place / "log", die)
"""


def test_a_launcher_that_dies_between_fork_and_record_leaves_nothing(place: Path) -> None:
    """Nobody would know of that worker: it does not begin its script."""
    imports(place)
    done = subprocess.run([sys.executable, "-c", DIES_WHILE_IT_FORKS], cwd=place, timeout=WAIT_S)
    assert done.returncode == -9
    pids = [int(word) for word in (place / "pids").read_text().split()]
    until(lambda: not any(psutil.pid_exists(pid) for pid in pids), WAIT_S)
    assert not (place / "ran").exists()


# --- a job


RUN = ("run", "-np", "2", "--job", "j", "--host", "a")
COMMAND = [sys.executable, STANDIN, "--imports"]


def words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def test_a_replacement_is_forked(shell: Shell) -> None:
    """And has a parent, a name, an environment and a log like any other worker."""
    shell.environment["EDL_TEMPLATE"] = "1"
    job = shell.start(*RUN, *COMMAND)
    shell.until_size(2)
    logs = shell.directory / "state" / "edl" / "jobs" / "j" / "logs"
    agent = job.process.pid

    def template() -> psutil.Process | None:
        named = (one for one in children() if "template/main.py" in " ".join(words(one)))
        return next(named, None)

    def children() -> list[psutil.Process]:
        return psutil.Process(agent).children()

    def workers() -> dict[int, psutil.Process]:
        return {one.pid: one for one in children() if words(one) == COMMAND}

    def replaced() -> psutil.Process:
        before = workers()
        time_killed = time.time()
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        until(lambda: len(workers().keys() - {victim}) == 2, WAIT_S)
        (new,) = (one for pid, one in workers().items() if pid not in before)
        assert new.create_time() >= time_killed - 1
        return new

    until(template, WAIT_S)
    until(lambda: "ready" in (logs / "template.output").read_text(), WAIT_S)
    one = replaced()
    assert os.getpgid(one.pid) == one.pid
    launch = one.environ()["EDL_ATTEMPT_ID"]
    until(lambda: "is here" in (logs / f"{launch}.log").read_text(), WAIT_S)
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143
    until(lambda: not shell.processes(), WAIT_S)


def test_a_job_whose_user_wants_no_template_has_none(shell: Shell) -> None:
    """Nor an event about it, for the user knows."""
    job = shell.start(*RUN, "--no-template", *COMMAND)
    shell.until_size(2)
    logs = shell.directory / "state" / "edl" / "jobs" / "j" / "logs"

    def pids() -> set[int]:
        return {member["pid"] for member in shell.status()["members"]}

    victim = min(pids())
    os.kill(victim, signal.SIGKILL)
    until(lambda: victim not in pids() and len(pids()) == 2, WAIT_S)
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143
    assert not (logs / "template.output").exists()
    assert "forked" not in job.output
    assert not [e for e in shell.events() if e["kind"] == "no_template"]


def test_a_job_that_cannot_have_a_template_says_so_once(shell: Shell) -> None:
    job = shell.start(*RUN, "env", *COMMAND)
    shell.until_size(2)
    until(lambda: [e for e in shell.events() if e["kind"] == "no_template"], WAIT_S)
    assert shell.edl("stop", "j").returncode == 0
    assert job.wait() == 143
    (event,) = (e for e in shell.events() if e["kind"] == "no_template")
    assert event["host"] == "a"
    assert event["reason"].endswith("from a template: env is not Python")
