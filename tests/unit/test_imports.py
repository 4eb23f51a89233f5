"""Imports point one way, and what only one module may do, only that module does.

::

    errors <- text, record, spec, records, events, status, metrics (core) <- step <- job <- host
    step, job <- policy <- cluster's pure files; policy, cluster <- dashboard/view
    errors, policy, cluster <- simulator <- cli/simulate
    errors <- keys, clock, failpoints, horovod_build, mount_point, secret_file, policy_source
    errors, policy, cluster <- cluster_policies <- cluster/client, cluster/controller, cli
    errors, secret_file, core (a job's settings are declared there) <- config
    all these
      <- http, ring, checkpoint  <- zookeeper
      <- job's shells (leader), host's shells (launch), client, chaos
    zookeeper <- cluster's store, nodes, runs, submission, writer
      <- cluster/client, cluster/controller, cli
    client <-> cluster/client (a job of a cluster is opened as any other job)
    launch, client <- cluster/host <- cluster/controller <-> cluster/fleet
    client, http, launch <- api (FastAPI and uvicorn, which only a verb asks for) <- cli
    dashboard/view, http, zookeeper, client, launch, api <- dashboard (Starlette, uvicorn) <- cli
    core, config, ring, checkpoint <- worker <- job's daemon <- binding <- torch, tensorflow
    torch <- lightning (Lightning's strategy, which no other part imports)
    torch <- huggingface (transformers and accelerate, an extra), which only scripts import
    torch, tensorflow, host's template <- transparent (for unchanged Horovod scripts)
    errors, config <- data <- binding
    errors, step <- schedules <- policy, torch, tensorflow
    errors <- figures <- cli
    torch, tensorflow, figures <- contrib (named in the public modules of both)
    errors, config, horovod_build <- install
    launch, client <- program (edl.run; its worker's side: binding <- program)
    testing, cli: anything but what trains; testing also drives daemon and binding

``http`` knows no ring, ``checkpoint`` and ``leader`` know no daemon: they take values.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter

import pytest
from source_trees import MODULES, dotted, import_graph, imports_of, module_of, nodes_of

BASE = {"errors", "config", "secret_file", "keys", "clock", "failpoints", "horovod_build"}
BASE |= {"policy_source", "mount_point"}
POLICIES = {"cluster_policies"}  # imports what a user has written
CORE = {
    "core",
    "step",
    "job",
    "host",
    "policy",
    "cluster",
    "dashboard/view",
    "cluster/policies",
}
PLANES = BASE | CORE | {"http", "ring", "checkpoint", "zookeeper"}
OF_CLUSTERS = {"cluster/zookeeper"}  # the records of a cluster, which no job needs
CLIENTS = {"client", "cluster/client"}
MAY_IMPORT = {
    "": set(),  # edl/__init__.py stays light: it imports `program` by its name, in a call
    "errors": set(),
    "config": {"errors", "core", "secret_file"},
    "secret_file": {"errors"},
    "policy_source": {"errors"},
    "keys": {"errors"},
    "clock": {"errors"},
    "failpoints": {"errors"},
    "horovod_build": {"errors"},
    "mount_point": set(),
    "cluster_policies": {"errors", "policy", "cluster", "cluster/policies"},
    "core": {"errors"},
    "step": {"errors", "core"},
    "job": {"errors", "core", "step"},
    "host": {"errors", "core", "step", "job"},
    "policy": {"errors", "core", "step", "job", "schedules"},
    "cluster": {"errors", "core", "step", "policy", "cluster/policies"},
    "cluster/policies": {"errors", "core", "step", "policy", "cluster"},
    "dashboard/view": {"errors", "core", "job", "policy", "cluster"},
    "simulator": {"errors", "core", "policy", "cluster", "cluster/policies"},
    "http": BASE | CORE,
    "ring": BASE | CORE | {"http"},
    "checkpoint": BASE | CORE,
    "zookeeper": BASE | CORE | {"http"},
    "cluster/zookeeper": BASE | CORE | {"http", "zookeeper"},
    "leader": PLANES - {"checkpoint"},
    "launch": PLANES - {"ring", "checkpoint"},
    "client": PLANES - {"ring", "checkpoint"} | {"cluster/client"},
    "cluster/client": PLANES - {"ring", "checkpoint"} | {"client"} | POLICIES | OF_CLUSTERS,
    "chaos": PLANES - {"checkpoint"},
    "cluster/wakeup": set(),
    "cluster/host": PLANES - {"ring", "checkpoint"} | {"launch", *CLIENTS} | OF_CLUSTERS,
    "api": BASE | CORE | {"http", "zookeeper", "launch", *CLIENTS} | POLICIES,
    "dashboard": BASE | CORE | {"http", "zookeeper", "launch", "api", *CLIENTS} | OF_CLUSTERS,
    "worker": BASE | CORE | {"ring", "checkpoint", "http"},
    "daemon": PLANES | {"leader", "chaos", "worker"},
    "data": {"errors", "config"},
    "schedules": {"errors", "core", "step"},
    "figures": {"errors"},
    "install": {"errors", "config", "horovod_build"},
    "program": BASE | CORE | {"checkpoint", "zookeeper", "launch", "client", "binding"},
    "cli": PLANES
    | {"launch", *CLIENTS, "cluster/controller", "api", "dashboard", "chaos", "install", "figures"},
}
MAY_IMPORT["cluster/host"] |= {"cluster/wakeup"}
MAY_IMPORT["cluster/controller"] = MAY_IMPORT["cluster/host"] | {"cluster/host", "cluster/fleet"}
MAY_IMPORT["cluster/controller"] |= POLICIES
MAY_IMPORT["cluster/fleet"] = MAY_IMPORT["cluster/controller"] | {"cluster/controller"}
MAY_IMPORT["cli"] |= {"cluster/host", "cluster/fleet"} | POLICIES | OF_CLUSTERS
MAY_IMPORT["cli/simulate"] = BASE | CORE | {"cli", "simulator", "figures"} | POLICIES
MAY_IMPORT["binding"] = MAY_IMPORT["daemon"] | {"daemon", "data"}
MAY_IMPORT |= dict.fromkeys(
    ("torch", "tensorflow"), MAY_IMPORT["binding"] | {"binding", "schedules"}
)

MAY_IMPORT["contrib"] = MAY_IMPORT["torch"] | {"torch", "tensorflow", "figures"}
# They name what is in `contrib`, and load it when it is asked for.
NAME_CONTRIB = {"torch/__init__.py", "tensorflow/__init__.py"}

MAY_IMPORT["lightning"] = MAY_IMPORT["torch"] | {"torch"}
MAY_IMPORT["huggingface"] = MAY_IMPORT["torch"] | {"torch"}
MAY_IMPORT["transparent"] = MAY_IMPORT["torch"] | {"torch", "tensorflow", "launch"}

MAY_IMPORT["testing"] = MAY_IMPORT["binding"] | {"binding", "launch", "client", "install"}

ONLY_IN = {"torch": "torch lightning huggingface transparent contrib"}
ONLY_IN |= {"horovod.torch": "torch transparent"}
ONLY_IN |= dict.fromkeys(("lightning", "torchmetrics"), "lightning")
ONLY_IN |= dict.fromkeys(("transformers", "accelerate", "datasets"), "huggingface")
ONLY_IN |= dict.fromkeys(
    ("tensorflow", "keras", "horovod.tensorflow", "horovod.keras"), "tensorflow transparent contrib"
)

ONLY_IN |= dict.fromkeys(("fastapi", "starlette", "pydantic", "uvicorn"), "api dashboard")

IMPURE = {"time", "datetime", "threading", "os", "socket", "random", "subprocess", "asyncio"}
IMPURE |= {"kazoo", "horovod", "logging", "pathlib", "secrets", "tempfile", "multiprocessing"}


PURE = {"chaos/fault_schedule.py", "contrib/lr_rules.py"}  # of rooms that are not
PURE_OF_HOST = {"__init__", "supervision", "decide", "devices", "process", "restart", "job_end"}
PURE_OF_HOST |= {"headlines", "horovodrun/decide", "termination_message"}
# The files of `cluster` that are not pure.
OF_THEIR_OWN = {f"cluster/{name}": "cluster/zookeeper" for name in ("nodes", "store", "runs")}
OF_THEIR_OWN |= dict.fromkeys(("cluster/submission", "cluster/writer"), "cluster/zookeeper")
OF_THEIR_OWN["cluster/wakeup"] = "cluster/wakeup"
# Records and texts, at the top.
OF_THEIR_OWN |= dict.fromkeys(
    ("text", "record", "records", "spec", "events", "event_text", "status", "metric", "metrics"),
    "core",
)
OF_THEIR_OWN |= dict.fromkeys(("learning", "retention", "job/snapshot"), "core")
# What carries out the decisions of `job` and `host`.
OF_THEIR_OWN |= dict.fromkeys(("job/leader", "job/policy_loop"), "leader")
OF_THEIR_OWN |= dict.fromkeys(("job/daemon", "job/pending_writes"), "daemon")
OF_THEIR_OWN |= {
    module.removesuffix(".py"): "launch"
    for module in MODULES
    if module.startswith("host/") and module not in {f"host/{name}.py" for name in PURE_OF_HOST}
}


def part_of(module: str) -> str:
    """Return the layer of a file: its first folder, a folder within, or its name at the top."""
    if module.removesuffix(".py") in OF_THEIR_OWN:
        return OF_THEIR_OWN[module.removesuffix(".py")]
    first, *rest = module.removesuffix(".py").split("/")
    if rest and f"{first}/{rest[0]}" in MAY_IMPORT:
        return f"{first}/{rest[0]}"
    return "" if first == "__init__" else first


def in_each(modules: Iterable[str]) -> Callable[[Callable[[str], None]], Callable[[], None]]:
    """One test of all ``modules``: pytest takes longer for 2,000 tests than these for all they do.

    The first module that breaks the rule ends it.
    """
    chosen = list(modules)

    def decorate(check: Callable[[str], None]) -> Callable[[], None]:
        def test() -> None:
            assert chosen
            for module in chosen:
                check(module)

        test.__doc__ = check.__doc__
        return test

    return decorate


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_every_part_has_a_place() -> None:
    assert {part_of(module) for module in MODULES} <= set(MAY_IMPORT)


@in_each(MODULES)
def test_imports_point_one_way(module: str) -> None:
    part = part_of(module)
    for imported in import_graph()[module]:
        allowed = MAY_IMPORT[part] | {part, *({"contrib"} if module in NAME_CONTRIB else ())}
        assert imported == "__init__.py" or part_of(imported) in allowed, f"{module}: {imported}"


@in_each(m for m in MODULES if m.endswith("/__init__.py"))
def test_no_file_of_a_package_hides_a_name_of_it(module: str) -> None:
    """Python sets a package's attribute to the file of that name once anything imports it."""
    folder = module.removesuffix("__init__.py")
    for node in nodes_of(module):
        for name in (alias.asname or alias.name for alias in getattr(node, "names", ())):
            if {f"{folder}{name}.py", f"{folder}{name}/__init__.py"}.intersection(MODULES):
                assert isinstance(node, ast.ImportFrom)
                assert f"{node.module}.".startswith(f"{dotted(module)}."), name


def test_imports_make_no_circle() -> None:
    """An import within a function or for a type checker counts, too: it only hides a circle."""
    try:
        TopologicalSorter(import_graph()).prepare()
    except CycleError as error:
        circle = error.args[1][::-1]  # each of graphlib's nodes is imported by the next one
        pytest.fail(" imports ".join(f"edl/{module}" for module in circle))


def test_simulating_needs_no_job() -> None:
    """`edl simulate` works where no ZooKeeper is, and need not wait for its client's import."""
    code = (
        "import sys\n"
        "from edl.cli.main import invoke\n"
        "import edl.cli.simulate\n"
        "assert invoke(['simulate', '--list']) == 0\n"
        "print([name for name in sys.modules if name.partition('.')[0] == 'kazoo'"
        " or name.startswith(('edl.zookeeper', 'edl.client'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "[]"


@in_each(m for m in MODULES if part_of(m) not in ("api", "dashboard", "dashboard/view"))
def test_the_api_is_imported_when_it_is_served(module: str) -> None:
    """Its packages are an extra, and take half a second; `listening` needs none of them."""
    for node in module_of(module).body:
        names = [ast.unparse(node)] if isinstance(node, ast.Import | ast.ImportFrom) else []
        for name in names:
            assert "edl.api" not in name or "edl.api.listening" in name, f"edl/{module}: {name}"
            assert "edl.dashboard" not in name.replace("edl.dashboard.view", ""), (
                f"{module}: {name}"
            )


@in_each(MODULES)
def test_the_library_for_metrics_is_imported_when_they_are_asked_for(module: str) -> None:
    """It takes 30 ms, which no worker pays at its start."""
    if module != "http/exposition.py":
        assert not any(within(name, "prometheus_client") for name in imports_of(module)), module
    for node in module_of(module).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "prometheus_client" not in ast.unparse(node), module


def imported_at_start(begun: list[str], library: str) -> set[str]:
    """Return the files that are imported with those of `begun`; none may import `library`."""
    files = {dotted(module): module for module in MODULES}
    reached: set[str] = set()
    while begun:
        module = begun.pop()
        reached.add(module)
        for node in module_of(module).body:
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            wrong = any(within(name, library) for name in names)
            assert not wrong, f"edl/{module} imports {library}"
            begun += (files[n] for n in names if n in files and files[n] not in reached)
    return reached


def test_commands_start_without_numpy() -> None:
    """It would take a quarter of their start; horovodrun starts `edl-discover` each second."""
    begun = ["cli/agents.py", "cli/status.py", "cli/changes.py", "cli/worker.py"]
    begun += ["host/horovodrun/discovery.py", "zookeeper/store.py"]
    assert len(imported_at_start(begun, "numpy")) > 60


def test_the_dashboard_needs_its_own_extra_only() -> None:
    """FastAPI is that of the API; a report is written without any extra."""
    assert len(imported_at_start(["dashboard/server.py"], "fastapi")) > 60
    written = {*imported_at_start(["dashboard/report.py"], "starlette")}
    assert written == imported_at_start(["dashboard/report.py"], "uvicorn")


def test_edl_discover_repeats_its_answer_with_few_imports() -> None:
    """A horovodrun starts it each second: most of what that costs is to be Python itself."""
    quick = "host/horovodrun/last_answer.py"
    found = set()
    for node in (*module_of("cli/discover.py").body, *module_of(quick).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    assert found == {"__future__", "collections.abc", "os", "sys", "time", dotted(quick)}


@in_each(MODULES)
def test_frameworks_are_imported_in_their_own_package_only(module: str) -> None:
    for name in imports_of(module):
        for framework, part in ONLY_IN.items():
            if within(name, framework):
                assert part_of(module) in part.split(), f"edl/{module} imports {name}"


@in_each(m for m in MODULES if part_of(m) in CORE | {"keys"} or m in PURE)
def test_core_is_pure(module: str) -> None:
    for name in imports_of(module):
        assert name.split(".")[0] not in IMPURE, f"edl/{module} imports {name}"
    for node in nodes_of(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("open", "input", "print", "exec", "eval")


# The template's process imports nothing of edl, and gives each worker its environment; nor does
# what repeats the last answer of `edl-discover`.
ENVIRONMENT = ("config.py", "host/template/main.py", "host/horovodrun/last_answer.py")


@in_each(m for m in MODULES if m not in ENVIRONMENT)
def test_only_config_reads_the_environment(module: str) -> None:
    names = ("environ", "environb", "getenv", "putenv", "unsetenv")
    indirectly = ("expanduser", "expandvars", "home")  # of os.path and pathlib
    for name in imports_of(module):
        assert not any(name == f"os.{forbidden}" for forbidden in names)
    for node in nodes_of(module):
        if isinstance(node, ast.Attribute):
            read = node.attr in names and ast.unparse(node.value) == "os"
            read |= node.attr in indirectly
            where = f"edl/{module}:{node.lineno}"
            assert not read, f"{where} reads the environment ({node.attr}); ask edl.config"


@in_each(MODULES)
def test_errors_are_caught_narrowly(module: str) -> None:
    """No bare ``except``, and nothing swallows every exception without a word."""
    for node in nodes_of(module):
        if not isinstance(node, ast.ExceptHandler):
            continue
        where = f"edl/{module}:{node.lineno}"
        assert node.type is not None, f"{where}: bare except"
        silent = all(isinstance(each, ast.Pass | ast.Continue) for each in node.body)
        caught = {n.id for n in ast.walk(node.type) if isinstance(n, ast.Name)}
        everything = caught & {"Exception", "BaseException"}
        assert not (silent and everything), f"{where}: swallows every exception"


def test_no_file_hides_a_public_name_of_its_package() -> None:
    """To import a file sets its name in the package: edl.torch.lr_schedules is edl.schedules."""
    for package in ("torch", "tensorflow"):
        own = {m.split("/")[1].removesuffix(".py") for m in MODULES if m.startswith(f"{package}/")}
        elsewhere = {
            alias.asname or alias.name
            for node in module_of(f"{package}/__init__.py").body
            if isinstance(node, ast.ImportFrom) and node.module != f"edl.{package}"
            for alias in node.names
        }
        assert not own & elsewhere


def test_the_top_stays_light() -> None:
    """It imports nothing of edl, and of others only what any program loads."""
    light = {"importlib", "__future__.annotations", "typing.Any"}
    others = [n for n in imports_of("__init__.py") if not within(n, "collections.abc")]
    assert set(others) <= light
