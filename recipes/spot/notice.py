#!/usr/bin/env python3
"""Run an agent of edl on a spot instance; when the provider takes the instance, the agent leaves.

::

    python notice.py --provider aws -- edl join --job digits --slots 4 -np 4
    python notice.py --provider gcp -- edl run --or-join --job digits ... python train.py

The provider's metadata service is asked every --every seconds. Upon its notice the command gets
SIGTERM: the host leaves the job, and the others train on. A SIGTERM to this process is passed on.
Of all these the command gets one: a second would kill its workers. Ends with the command's code.
Workers that have not left shortly before the instance goes are evicted (EDL_LEAVE_WITHIN_S).
Plain `edl run`, without --or-join, would end the job instead: do not run that on a spot instance.

Needs nothing but Python's standard library.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable

TIMEOUT_S = 2.0
TOKEN_S = 300  # life of an IMDSv2 token; one is asked for each time
URLS = {
    "aws": "http://169.254.169.254",
    "gcp": "http://metadata.google.internal",
    "azure": "http://169.254.169.254",
}
AZURE_ENDS = {"Preempt", "Terminate", "Redeploy", "Reboot"}  # Freeze only pauses it for seconds

# Metadata never goes through a proxy.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def ask(url: str, headers: dict[str, str], method: str = "GET") -> str | None:
    """Return the body of an answer; None if the status is 404.

    Raises:
        OSError: the service did not answer, or with another error.
    """
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with _open(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def aws(base: str) -> str | None:
    """Two minutes ahead: EC2's instance action, by IMDSv2. 404 means that there is none."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
    token = ask(f"{base}/latest/api/token", ttl, "PUT")
    if token is None:
        raise OSError("the metadata service gives no IMDSv2 token")
    headers = {"X-aws-ec2-metadata-token": token}
    told = ask(f"{base}/latest/meta-data/spot/instance-action", headers)
    if told is None:
        return None
    action = json.loads(told)
    return f"EC2 will {action['action']} this instance at {action['time']}"


def gcp(base: str) -> str | None:
    """Thirty seconds ahead: Compute Engine's `preempted`."""
    headers = {"Metadata-Flavor": "Google"}
    told = ask(f"{base}/computeMetadata/v1/instance/preempted", headers)
    return "Compute Engine preempts this instance" if told and told.strip() == "TRUE" else None


def azure(base: str) -> str | None:
    """Thirty seconds ahead: a scheduled event that ends this machine. Others' are listed, too."""
    headers = {"Metadata": "true"}
    path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    name = ask(base + path, headers)
    told = ask(f"{base}/metadata/scheduledevents?api-version=2020-07-01", headers)
    for event in json.loads(told or "{}").get("Events", []):
        if event["EventType"] in AZURE_ENDS and name in event["Resources"]:
            return f"Azure: {event['EventType']} not before {event['NotBefore'] or 'now'}"
    return None


PROVIDERS: dict[str, Callable[[str], str | None]] = {"aws": aws, "gcp": gcp, "azure": azure}
LEAVE_WITHIN_S = {"aws": 110, "gcp": 25, "azure": 25}  # 10 s, or 5 s, less than is left


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--provider", choices=sorted(PROVIDERS), required=True)
    parser.add_argument("--url", help="of the metadata service, where it is not the usual one")
    parser.add_argument("--every", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("command", nargs="+", help="after --: the agent to run")
    options = parser.parse_args()
    notice, url = PROVIDERS[options.provider], options.url or URLS[options.provider]

    told = threading.Lock()  # taken for good by who tells the agent, be it the handler of a signal
    agent: subprocess.Popen[bytes] | None = None
    early = False  # there was no agent yet to tell

    def tell(*_: object) -> None:
        nonlocal early
        if agent is None:
            early = True
        elif told.acquire(blocking=False):
            agent.terminate()

    signal.signal(signal.SIGTERM, tell)
    try:
        within_s = str(LEAVE_WITHIN_S[options.provider])
        agent = subprocess.Popen(
            options.command, env={"EDL_LEAVE_WITHIN_S": within_s, **os.environ}
        )
    except OSError as error:
        say(f"{options.command[0]} cannot be started: {error.strerror}; check the words after --")
        return 127
    # On Ctrl-C the terminal tells the agent, too; a second signal would kill its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if early:
        tell()
    return watch(agent, lambda: notice(url), url, options.every, told, tell)


def watch(
    agent: subprocess.Popen[bytes],
    notice: Callable[[], str | None],
    url: str,
    every_s: float,
    told: threading.Lock,
    tell: Callable[[], None],
) -> int:
    """Ask for a notice until the agent ends, and tell the agent of the first one.

    Args:
        agent: the process of ``edl join``.
        notice: asks the metadata service; returns a notice as a text, or None if there is none.
        url: that of the metadata service, for messages.
        every_s: the seconds between two questions.
        told: is locked once the agent was told, be it here or by a signal.
        tell: sends the agent SIGTERM.

    Returns:
        The exit status of the agent as a shell gives it.
    """
    silent = False
    while True:
        try:
            code = agent.wait(every_s)
            return 128 - code if code < 0 else code
        except subprocess.TimeoutExpired:
            pass
        if told.locked():
            continue
        try:
            reason = notice()
            silent = False
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError) as error:
            if not silent:
                say(f"{url} does not tell whether this instance stays: {error}")
            silent = True
            continue
        if reason is not None:
            say(f"{reason}; the host leaves the job")
            tell()


def say(text: str) -> None:
    print(f"notice: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
