"""The recipes for clusters: what a validator can say of them, and what they ask of `edl`."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import typer
import yaml
from kueue_schemas import schema_of

from edl.cli.main import VERBS, app
from edl.config import SETTINGS
from edl.secret_file import open_to_others

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "recipes"
FILES = sorted(path for path in RECIPES.rglob("*") if path.is_file() and path.suffix != ".pyc")
GUIDES = ROOT / "docs" / "guides"
TEXTS = [*FILES, *(GUIDES / f"{one}.md" for one in ("clusters", "kubernetes", "fleets"))]
MANIFESTS = sorted(RECIPES.glob("kubernetes/*.yaml"))
QUEUES = RECIPES / "kubernetes" / "kueue" / "queue.yaml"
# The oldest Kubernetes that the manifests are for, and the newest whose schemas are at hand.
KUBERNETES = ("1.31", "1.35")
UNIT = RECIPES / "systemd" / "edl-agent@.service"
HOST_UNIT = RECIPES / "systemd" / "edl-host@.service"
VERB = re.compile(r"(?<![\w/.-])(?:/opt/edl/bin/)?edl ([a-z][a-z-]+)\b([^\n]*)")
END = re.compile(r"`|\s(?:&|\|\||;|\|)|;|\)\s*$|(?<=\S)#|\s#")
GROUP: Any = typer.main.get_command(app)
COMMANDS: dict[str, Any] = {name: GROUP.get_command(None, name) for name in VERBS}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def command_lines(path: Path) -> list[tuple[str, list[str]]]:
    text = re.sub(r"\\\n\s*#?", " ", path.read_text(encoding="utf-8"))
    text = text.replace('"$(cat', "(cat")
    found = []
    for verb, rest in VERB.findall(text):
        if verb in COMMANDS or rest.lstrip().startswith("-"):
            words = END.split(re.sub(r"\(cat \S+?\"\)\"", "FILE", rest))[0]
            found.append((verb, shlex.split(words)))
    return found


LINES = [(path, *line) for path in TEXTS for line in command_lines(path)]


@pytest.mark.parametrize(
    ("path", "verb", "words"), LINES, ids=[f"{name(path)}-{verb}" for path, verb, _ in LINES]
)
def test_every_option_exists(path: Path, verb: str, words: list[str]) -> None:
    command = COMMANDS[verb]
    context = command.make_context(verb, ["x"], resilient_parsing=True)
    command.make_parser(context).parse_args(list(words))  # raises for an unknown option


def test_the_command_lines_are_found() -> None:
    found = {(name(path), verb) for path, verb, words in LINES if words}
    assert found >= {
        ("recipes/kubernetes/job.yaml", "run"),
        ("recipes/kubernetes/join.yaml", "drain"),
        ("recipes/slurm/train.sbatch", "run"),
        ("recipes/slurm/train.sbatch", "stop"),
        ("recipes/slurm/join.sbatch", "join"),
        ("recipes/spot/notice.py", "join"),
        ("recipes/systemd/edl-agent@.service", "join"),
        ("recipes/systemd/edl-host@.service", "host"),
    }


def test_every_variable_of_edl_exists() -> None:
    named = {one for path in TEXTS for one in re.findall(r"\bEDL_([A-Z_]+)\b", path.read_text())}
    assert {"ZOOKEEPER", "SECRET_FILE", "HOST", "ADDRESS"} <= named
    assert {one.lower() for one in named} <= set(SETTINGS)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=name)
@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_keep_to_the_schemas_of_kubernetes(manifest: Path, version: str) -> None:
    resources = list(yaml.safe_load_all(manifest.read_text()))
    assert len(resources) >= 3
    for resource in resources:
        kubernetes_validate.validate(resource, version, strict=True)


def test_the_validator_refuses_what_kubernetes_does_not_know() -> None:
    (resource, *_) = yaml.safe_load_all(MANIFESTS[0].read_text())
    resource["spec"]["template"]["spec"]["containers"][0]["preStop"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="preStop"):
        kubernetes_validate.validate(resource, KUBERNETES[-1], strict=True)


def test_the_parts_of_the_manifests_fit_together() -> None:
    """What no schema can say: the selectors, volumes and names that belong together."""
    resources = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
    by_kind: dict[tuple[str, str], Any] = {
        (one["kind"], one["metadata"]["name"]): one["spec"] for one in resources
    }
    assert len(by_kind) == len(resources)
    job, zookeeper = by_kind["Job", "digits"], by_kind["StatefulSet", "zookeeper"]
    join = by_kind["Deployment", "digits-join"]
    (client, _) = by_kind["NetworkPolicy", "zookeeper"]["ingress"]
    to_zookeeper = client["from"][0]["podSelector"]["matchLabels"]
    to_each_other = by_kind["NetworkPolicy", "digits"]["podSelector"]["matchLabels"]
    for controller, budget in ((job, "digits"), (join, "digits-join")):
        labels = controller["template"]["metadata"]["labels"]
        selected = by_kind["PodDisruptionBudget", budget]["selector"]["matchLabels"]
        # A pod of two budgets could not be evicted: each names the role of its own.
        assert selected == {"app": "digits", "role": labels["role"]}
        assert labels == selected | to_zookeeper
        assert to_each_other.items() <= labels.items()
    assert join["selector"] == by_kind["PodDisruptionBudget", "digits-join"]["selector"]
    headless = by_kind["Service", "digits-join"]
    assert headless["clusterIP"] == "None"
    assert headless["selector"] == join["selector"]["matchLabels"]
    assert by_kind["PodDisruptionBudget", "digits"]["minAvailable"] < job["parallelism"]
    assert job["parallelism"] == job["completions"]
    for pod in (join["template"]["spec"], job["template"]["spec"]):
        (container,) = pod["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    environment = {one["name"]: one.get("value") for one in container["env"]}
    assert environment["CHECKPOINTS"] == mounts["checkpoints"]
    (rule,) = [r["onExitCodes"] for r in job["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    assert rule["containerName"] == container["name"]
    assert f"exit {rule['values'][0]}" in container["args"][0]
    service = by_kind["Service", "zookeeper"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == zookeeper["template"]["metadata"]["labels"]
    assert zookeeper["serviceName"] == "zookeeper"
    servers = [f"zookeeper-{n}.zookeeper:2181" for n in range(zookeeper["replicas"])]
    assert environment["EDL_ZOOKEEPER"] == ",".join(servers)


def test_the_queues_of_kueue_keep_to_its_api_and_fit_the_hosts() -> None:
    resources = list(yaml.safe_load_all(QUEUES.read_text()))
    for resource in resources:
        jsonschema.validate(resource, schema_of(resource["kind"]))
    by_name = {(one["kind"], one["metadata"]["name"]): one["spec"] for one in resources}
    queue = by_name["ClusterQueue", by_name["LocalQueue", "edl-hosts"]["clusterQueue"]]
    (group,) = queue["resourceGroups"]
    for flavor in group["flavors"]:
        assert ("ResourceFlavor", flavor["name"]) in by_name
        assert [one["name"] for one in flavor["resources"]] == group["coveredResources"]
    hosts = manifest_of("cluster.yaml", "Deployment", "edl-hosts")
    name = hosts["metadata"]["labels"]["kueue.x-k8s.io/queue-name"]
    assert ("LocalQueue", name) in by_name
    (container,) = hosts["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"].keys() == set(group["coveredResources"])
    resources[2]["spec"]["resourceGroups"][0]["flavors"][0]["quota"] = 1
    with pytest.raises(jsonschema.ValidationError, match="'quota' was unexpected"):
        jsonschema.validate(resources[2], schema_of("ClusterQueue"))


def test_the_hosts_and_controllers_of_a_cluster_fit_together() -> None:
    controller = manifest_of("cluster.yaml", "Deployment", "edl-controller")
    hosts = manifest_of("cluster.yaml", "Deployment", "edl-hosts")
    budget = manifest_of("cluster.yaml", "PodDisruptionBudget", "edl-hosts")
    service = manifest_of("cluster.yaml", "Service", "edl-hosts")
    zookeeper = manifest_of("zookeeper.yaml", "NetworkPolicy", "zookeeper")
    (client, _) = zookeeper["spec"]["ingress"]
    to_zookeeper = client["from"][0]["podSelector"]["matchLabels"]
    for deployment in (controller, hosts):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert labels == deployment["spec"]["selector"]["matchLabels"] | to_zookeeper
    assert budget["spec"]["selector"] == hosts["spec"]["selector"]
    assert service["spec"]["selector"] == hosts["spec"]["selector"]["matchLabels"]
    words, grace_s = {}, hosts["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    for deployment in (controller, hosts):
        pod = deployment["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        words[deployment["metadata"]["name"]] = container["command"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
    host = words["edl-hosts"]
    for command in words.values():
        group, rest = GROUP, list(command[1:])
        while hasattr(group, "commands"):
            group = group.get_command(None, rest.pop(0))
        context = group.make_context("x", ["x"], resilient_parsing=True)
        group.make_parser(context).parse_args(rest)  # raises for an unknown option
    assert words["edl-controller"][-1] == host[host.index("--cluster") + 1]
    assert float(host[host.index("--leave-within") + 1]) < grace_s


@pytest.mark.parametrize(
    ("file", "deployment"), [("join.yaml", "digits-join"), ("cluster.yaml", "edl-hosts")]
)
def test_edl_is_not_process_1_of_a_pod_with_workers(file: str, deployment: str) -> None:
    """Process 1 has to reap what a dead worker leaves; edl reaps its own children only."""
    pod = manifest_of(file, "Deployment", deployment)["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"][0] == "edl"
    assert pod["shareProcessNamespace"]


def manifest_of(file: str, kind: str, name: str) -> Any:
    resources = yaml.safe_load_all((RECIPES / "kubernetes" / file).read_text())
    (found,) = [one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_no_engine_gets_a_secret_in_an_environment() -> None:
    """It would keep it: Slurm in its spool, a container runtime in its own files."""
    set_there = re.compile(r"^(?!unset )[^#\n]*\bEDL_SECRET\b", re.MULTILINE)
    for path in FILES:
        assert not set_there.search(path.read_text()), name(path)
    resources = [one for path in MANIFESTS for one in yaml.safe_load_all(path.read_text())]
    pods = [
        one["spec"]["template"]["spec"] for one in resources if one["kind"] in ("Job", "Deployment")
    ]
    assert len(pods) == 4
    for pod in pods:
        (container,) = pod["containers"]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == "secret"]
        (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "secret"]
        assert environment["EDL_SECRET_FILE"] == f"{mount['mountPath']}/secret"
        # With fsGroup Kubernetes adds 0440 for a group of root's file.
        assert not open_to_others(volume["defaultMode"] | 0o440, owner=0)
        assert open_to_others(0o644, owner=0)  # Kubernetes' default


def test_the_image_is_made_of_files_that_exist() -> None:
    text = (RECIPES / "kubernetes" / "Dockerfile").read_text()
    sources = [
        word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]
    ]
    assert sources
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("script", sorted(RECIPES.glob("slurm/*")), ids=name)
def test_shellcheck_has_nothing_to_say(script: Path) -> None:
    here = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    shellcheck = shutil.which("shellcheck", path=here)
    assert shellcheck, "shellcheck is not installed; `make setup` does it"
    done = subprocess.run([shellcheck, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


# What stands for Slurm and edl. The agents end with CODE, while `edl preempt` or `edl stop` waits.
STANDINS = {
    "srun": 'echo $$ >pid; mv pid up; until [ -e leave ]; do sleep 0.05; done; exit "$CODE"',
    "edl": (
        "case $1 in preempt | stop) touch leave; sleep 1 ;; "
        'join) trap "touch leave" TERM; . srun ;; esac'
    ),
    "scontrol": 'echo "$@" >>requeued',
}


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize(
    ("script", "sent", "end"),
    [
        ("train", "TERM", "own"),
        ("train", "USR1", 0),
        ("join", "USR1", "own"),
        ("join", "both", "own"),
    ],
)
def test_a_batch_script_ends_with_the_code_of_its_agents(
    script: str, sent: str, end: str | int, code: int, tmp_path: Path
) -> None:
    """A signal ends bash's `wait` with 128 and more: that is not how the agents ended."""
    for program, text in STANDINS.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / program).chmod(0o755)
    for file in ("secret", "job", "zookeeper"):
        (tmp_path / file).write_text("x")
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CODE": str(code),
        "ADDRESS": "127.0.0.1",
        "EDL_ZOOKEEPER": "127.0.0.1:1",
        "RUN": str(tmp_path),
        "SLURM_JOB_ID": "1",
        "SLURM_NNODES": "1",
        "SLURMD_NODENAME": "n1",
    }
    path = RECIPES / "slurm" / f"{script}.sbatch"
    batch = subprocess.Popen(
        ["bash", path, tmp_path], cwd=tmp_path, env=environment, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 20
        while not (tmp_path / "up").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if sent == "both":  # Slurm tells the agent, too
            os.kill(int((tmp_path / "up").read_text()), signal.SIGTERM)
        batch.send_signal(signal.Signals["SIGTERM" if sent == "both" else f"SIG{sent}"])
        assert batch.wait(20) == (code if end == "own" else end)
        assert (tmp_path / "requeued").exists() == (sent == "USR1")
    finally:
        if batch.poll() is None:
            os.killpg(batch.pid, signal.SIGKILL)
            batch.wait(10)


@pytest.mark.parametrize("unit", [UNIT, HOST_UNIT], ids=name)
def test_systemd_can_load_the_unit(unit: Path, tmp_path: Path) -> None:
    """`verify` wants programs that are there; it tells unknown settings, and ends with 0."""
    program = shutil.which("true")
    text = unit.read_text().replace("/opt/edl/bin/edl", str(program))
    assert verify(tmp_path, text) == ""
    assert "KillMood" in verify(tmp_path, text.replace("KillMode", "KillMood"))


def test_the_lines_that_install_the_agent_do(tmp_path: Path) -> None:
    """Those of docs/guides/clusters.md, into a root that has no /etc/edl; without `useradd`."""
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    text = (ROOT / "docs" / "guides" / "clusters.md").read_text()
    assert "useradd" in text
    for line in re.findall(r"^install .*", text, flags=re.MULTILINE):
        words = shlex.split(line.replace(" /etc/", f" {tmp_path}/etc/"), comments=True)
        subprocess.run(words, cwd=ROOT, check=True, timeout=60)
    kept = tmp_path / "etc/edl/agent.env"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert f"EnvironmentFile=/{kept.relative_to(tmp_path)}" in UNIT.read_text()
    assert (tmp_path / "etc/systemd/system" / UNIT.name).exists()


def verify(directory: Path, text: str) -> str:
    unit = directory / UNIT.name
    unit.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr
