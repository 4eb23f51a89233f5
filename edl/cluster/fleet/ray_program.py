"""Talk to Ray on behalf of a controller: a program of its own, in the Python that has Ray.

It imports nothing of edl, because that Python need not have it. A library of Ray may end its
process when Ray does not answer; here that ends no controller.

It reads requests as JSON, a line each, and answers each by a line: ``{"leases": {name: [state,
host, why]}}``, ``{}``, or ``{"error": sentence}``. Its first request has ``address`` and
``namespace``.

A lease is a detached actor of its name. The actor starts `edl host` on its node, where it takes one
of the resource ``edl_host``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from typing import Any

RESOURCE = "edl_host"  # a node that lends itself has 1 of it
ANSWER_S = 3.0  # for the actors to say what they do
LOG_BYTES = 4096
ENDED_KEPT = 1000  # leases that have ended, of which the newest are remembered
# Ray's words for the state of an actor (ActorTableData.ActorState).
WAITS, LIVES = {"DEPENDENCIES_UNREADY", "PENDING_CREATION"}, "ALIVE"


class LeaseActor:
    def __init__(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        libc = ctypes.CDLL(None)
        self._host = socket.gethostname()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor
        self._signals = 0
        self._process = subprocess.Popen(
            [*words, "--host", self._host],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(1, signal.SIGTERM),  # PR_SET_PDEATHSIG
        )

    def state(self) -> tuple[str, int | None, str]:
        size = self._log.seek(0, os.SEEK_END)
        text = os.pread(self._log.fileno(), LOG_BYTES, max(0, size - LOG_BYTES))
        return self._host, self._process.poll(), text.decode(errors="replace")

    def leave(self) -> None:
        """Send SIGTERM to `edl host`; the third time, kill it."""
        self._signals += 1
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if self._signals < 3 else signal.SIGKILL)


class RayCalls:
    def __init__(self, ray: Any, address: str, namespace: str) -> None:
        self._ray = ray
        self._namespace = namespace
        self._actors: dict[str, Any] = {}
        self._asked: dict[str, Any] = {}  # lease -> a question that its actor has not answered
        self._hosts: dict[str, str] = {}  # of actors that have answered once
        self._logs: dict[str, str] = {}
        self._ended: dict[str, tuple[str, str, str]] = {}
        ray.init(address=address, namespace=namespace, log_to_driver=False, logging_level="ERROR")

    def leases(self) -> dict[str, tuple[str, str, str]]:
        names = self._ray.util.list_named_actors()
        for name in names:
            # One that has ended, too: Ray may have forgotten that it was to kill the actor, and
            # another controller may have asked for the lease again.
            if name not in self._asked:
                with contextlib.suppress(ValueError):  # it has died meanwhile
                    self._actors[name] = self._ray.get_actor(name)
                    self._asked[name] = self._actors[name].state.remote()
        for known in (self._asked, self._actors):
            for name in known.keys() - set(names):
                del known[name]
        for name in self._hosts.keys() - set(names):
            self._end(name, self._hosts[name], "its actor has died")
        waiting = list(self._asked.values())
        if waiting:
            self._ray.wait(waiting, num_returns=len(waiting), timeout=ANSWER_S)
        found = {name: self._one(name) for name in list(self._asked)}
        for name in list(self._ended)[:-ENDED_KEPT]:
            del self._ended[name]
        return self._ended | found

    def ask(
        self,
        name: str,
        words: Sequence[str],
        environment: Mapping[str, str],
        avoid: Collection[str] = (),
    ) -> None:
        options = {"name": name, "lifetime": "detached", "get_if_exists": True}
        options |= {"resources": {RESOURCE: 1}, "num_cpus": 0, "max_restarts": 0}
        node = self._other_node(avoid) if avoid else None
        if node is not None:
            strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options["scheduling_strategy"] = strategy(node, soft=True, _spill_on_unavailable=True)
        self._ray.remote(LeaseActor).options(**options).remote(words, dict(environment))

    def _other_node(self, avoid: Collection[str]) -> str | None:
        try:
            # no public call tells what is free on which node
            free = self._ray._private.state.available_resources_per_node()
        except AttributeError:
            return None
        for one in self._ray.nodes():
            node, host = one["NodeID"], one["NodeManagerHostname"]
            if one["Alive"] and host not in avoid and free.get(node, {}).get(RESOURCE, 0) >= 1:
                return str(node)
        return None

    def give_back(self, name: str, within_s: float) -> None:
        """Let `edl host` leave; an actor that waits for a node ends."""
        with contextlib.suppress(ValueError):  # there is none
            actor = self._ray.get_actor(name)
            if name in self._hosts or (within_s > 0 and self._word(actor) not in WAITS):
                actor.leave.remote()
            else:
                self._ray.kill(actor)

    def log(self, name: str) -> str:
        return self._logs.get(name, "")

    def _one(self, name: str) -> tuple[str, str, str]:
        asked = self._asked[name]
        done, _ = self._ray.wait([asked], timeout=0)
        if done:
            del self._asked[name]
            try:
                host, code, log = self._ray.get(asked, timeout=ANSWER_S)
            except self._ray.exceptions.ActorUnavailableError:
                pass
            except self._ray.exceptions.RayActorError as error:
                return self._end(name, self._hosts.get(name, ""), str(error).splitlines()[0])
            else:
                self._hosts[name], self._logs[name] = host, log
                if code is not None:
                    with contextlib.suppress(ValueError):  # it has died meanwhile
                        self._ray.kill(self._ray.get_actor(name))
                    return self._end(name, host, f"failed with {code}" if code else "completed")
                self._ended.pop(name, None)
        # One that has ended lives again only by an answer.
        if name in self._ended:
            return self._ended[name]
        # One that has answered once runs: its node may be busy. Others may have answered a former
        # process, so Ray is asked.
        word = LIVES if name in self._hosts else self._word(self._actors[name])
        if word in WAITS:
            return "asked", "", f"waits for a node with {RESOURCE}"
        if word == LIVES:
            return "running", self._hosts.get(name, ""), "running"
        return "unknown", "", "its actor does not answer"

    def _word(self, actor: Any) -> str:
        """Return Ray's word for the state of an actor; empty if this release of Ray has none."""
        try:
            # no public call tells it without Ray's dashboard
            found = self._ray._private.state.actors(actor._actor_id.hex())
            return str(found["State"])
        except (AttributeError, KeyError, TypeError):
            return ""

    def _end(self, name: str, host: str, why: str) -> tuple[str, str, str]:
        self._hosts.pop(name, None)
        return self._ended.setdefault(name, ("ended", host, why))


def main() -> None:
    sys.path.pop(0)  # the directory of this file has modules of edl
    import ray
    import ray.util.scheduling_strategies

    with os.fdopen(os.dup(1), "w", buffering=1) as out:
        os.dup2(2, 1)  # what a library prints
        calls = RayCalls(ray, **json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            request = json.loads(line)
            name = request.pop("call")
            try:
                found = getattr(calls, name)(**request)
                answer = {} if found is None else {name: found}
            except ray.exceptions.RayError as error:
                answer = {"error": str(error).splitlines()[0]}
            out.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
