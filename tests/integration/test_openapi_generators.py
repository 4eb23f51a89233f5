"""Clients that two public generators make of the OpenAPI description, from submit to delete."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest
from cli_shell import Shell, shell
from extra_python import python_with
from hand_host import HandHost
from test_cluster_api import LAB, cluster, manifest, url_of

PATIENCE_S = 300.0

pytestmark = [pytest.mark.integration, pytest.mark.long]
__all__ = ["cluster", "shell"]

OPENAPI = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
REQUIREMENTS = ("openapi-python-client==0.29.1", "openapi-generator-cli==7.26.0", "urllib3")

PYTHON_CLIENT = """
import json, ssl, sys, time
url, token, cert, manifest = sys.argv[1:]
sys.path.insert(0, "made")
from edl_a_cluster_of_elastic_jobs_client import AuthenticatedClient
from edl_a_cluster_of_elastic_jobs_client.api.jobs import (
    delete_v1_jobs_job_delete, show_v1_jobs_job_get, submit_v1_jobs_post, wait_v1_jobs_job_wait_get)
from edl_a_cluster_of_elastic_jobs_client.models import Manifest
context = ssl.create_default_context(cafile=cert)
client = AuthenticatedClient(url, token, verify_ssl=context, timeout=100.0)
sent = submit_v1_jobs_post.sync(client=client, body=Manifest.from_dict(json.loads(manifest)))
while (now := show_v1_jobs_job_get.sync(sent.job, client=client).job.state) != "running":
    time.sleep(0.2)
delete_v1_jobs_job_delete.sync(sent.job, client=client)
while not (end := wait_v1_jobs_job_wait_get.sync(sent.job, client=client)).over:
    pass
print(end.job.result)
"""
GENERATOR = """
import json, sys, time
url, token, cert, manifest = sys.argv[1:]
sys.path.insert(0, "made")
import openapi_client
from openapi_client import JobsApi, Manifest
settings = openapi_client.Configuration(url, access_token=token, ssl_ca_cert=cert)
jobs = JobsApi(openapi_client.ApiClient(settings))
sent = jobs.submit_v1_jobs_post(Manifest.from_dict(json.loads(manifest)))
while (now := jobs.show_v1_jobs_job_get(sent.job).job.state) != "running":
    time.sleep(0.2)
jobs.delete_v1_jobs_job_delete(sent.job)
while not (end := jobs.wait_v1_jobs_job_wait_get(sent.job)).over:
    pass
print(end.job.result.value if hasattr(end.job.result, "value") else end.job.result)
"""


def run(*words: object, cwd: Path) -> str:
    done = forked.by_exec([str(word) for word in words], PATIENCE_S, cwd=cwd)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("tool", "options", "script"),
    [
        (
            "openapi-python-client",
            ("generate", "--path", OPENAPI, "--output-path", "made"),
            PYTHON_CLIENT,
        ),
        (
            "openapi-generator-cli",
            ("generate", "-i", OPENAPI, "-g", "python", "-o", "made"),
            GENERATOR,
        ),
    ],
)
def test_a_generated_client_submits_and_deletes_a_job(
    cluster: Shell, tool: str, options: tuple[object, ...], script: str
) -> None:
    python = python_with(
        "openapi-0.29.1-7.26", *REQUIREMENTS, "pydantic", "python-dateutil", "httpx"
    )
    there = cluster.directory
    run(python.parent / tool, *options, cwd=there)
    make = "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -subj /CN=edl"
    run(*make.split(), "-addext", "subjectAltName=IP:127.0.0.1", cwd=there)
    tls = ("--tls-cert", "cert.pem", "--tls-key", "key.pem")
    controller = cluster.start("cluster", "start", "--name", "lab", "--api", "0", *tls)
    url = url_of(controller)
    token = cluster.edl("cluster", "token", "--valid", "1h", "--cluster", "lab").stdout.strip()
    asked = manifest(cluster, "digits", "--until", str(there / "never"), max=1)
    with HandHost(cluster, LAB, "a", 1):
        made = run(python, "-c", script, url, token, "cert.pem", json.dumps(asked), cwd=there)
    assert made.split() == ["deleted"]
    controller.process.terminate()
    assert controller.wait() == 0
