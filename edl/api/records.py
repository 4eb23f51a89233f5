"""Define what the routes of the API answer and take, where that is no record of the cluster's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from edl.api.requests import JSON, ApiError
from edl.cluster.client.logs import LogEnd
from edl.cluster.history import AuditEntry, JobHistory, SlotInterval
from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.manifest import manifest_schema
from edl.cluster.status import ClusterJobStatus, JobPlan
from edl.record import Record


@dataclass(frozen=True)
class ApiHealth(Record):
    """The answer of an API that serves requests; it says nothing of the cluster."""

    serves: Annotated[bool, "true"] = True


@dataclass(frozen=True)
class Submitted(Record):
    """The acknowledgement of a submission: the job is in ZooKeeper."""

    job: Annotated[str, "name of the job"]


@dataclass(frozen=True)
class JobList(Record):
    """The jobs of a cluster, in the order of submission."""

    jobs: Annotated[tuple[ClusterJobStatus, ...], "their states"]


@dataclass(frozen=True)
class WaitResult(Record):
    """The state of a job after a wait."""

    over: Annotated[bool, "whether it has ended, or a user has halted it; false: wait again"]
    job: Annotated[ClusterJobStatus, "its state"]


@dataclass(frozen=True)
class EventEntry(Record):
    """An event of a cluster, as `edl events --json` prints it."""

    number: Annotated[int, "its number; later events have greater ones"]
    time: Annotated[str, "when it was written, by the writer's clock (ISO 8601, UTC)"]
    kind: Annotated[str, "the kind of the event"]
    job: Annotated[str, "the job that it is about; empty: none"]
    host: Annotated[str, "the host that it is about; empty: none, or several"]
    reason: Annotated[str, "what has happened, and why, in a sentence"]
    by: Annotated[str, "who has written it"]
    state: Annotated[LifeState | None, "of a `state` event, the state that the job entered"] = None
    result: Annotated[LifeResult | None, "of a job's last event, how it ended"] = None
    slots: Annotated[
        Mapping[str, int] | None, "of a `slots` event, host -> slots that the job then has"
    ] = None


@dataclass(frozen=True)
class EventList(Record):
    """Events of a cluster, the oldest first."""

    events: Annotated[tuple[EventEntry, ...], "the events"]


@dataclass(frozen=True)
class LogList(Record):
    """The ends of the logs of a job's workers."""

    logs: Annotated[tuple[LogEnd, ...], "the ends"]


@dataclass(frozen=True)
class PriorityUpdate(Record):
    """The body of `PUT .../priority`."""

    priority: Annotated[int, "the new priority, from -1,000,000 to 1,000,000"]


@dataclass(frozen=True)
class DrainStatus(Record):
    """The answer to a request to drain or undrain a host."""

    host: Annotated[str, "name of the host"]
    drained: Annotated[bool, "whether it gets no slots of jobs any more"]


@dataclass(frozen=True)
class PlanList(Record):
    """The slots that the leader would give now to each job that has not ended, oldest first."""

    jobs: Annotated[tuple[JobPlan, ...], "the jobs"]


@dataclass(frozen=True)
class PolicySetting(Record):
    """The policy of a cluster, as it is read and set."""

    policy: Annotated[str, "name of the policy"]
    parameters: Annotated[
        Mapping[str, Any], "its parameters, where they are not the usual ones"
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class SecretEntry(Record):
    """A secret that a cluster keeps, without its content."""

    name: Annotated[str, "its name"]
    set_s: Annotated[float, "when it was set, in seconds since 1970"]
    by: Annotated[str, "the user and the machine that have set it"]


@dataclass(frozen=True)
class SecretList(Record):
    """The secrets of a cluster, sorted by name."""

    secrets: Annotated[tuple[SecretEntry, ...], "the secrets, without their contents"]


@dataclass(frozen=True)
class JobHistoryList(Record):
    """Jobs of the past and the present, those that were submitted last first."""

    jobs: Annotated[tuple[JobHistory, ...], "the jobs"]


@dataclass(frozen=True)
class SlotIntervalList(Record):
    """Times during which jobs had slots on a host, the earliest first."""

    slots: Annotated[tuple[SlotInterval, ...], "the intervals"]


@dataclass(frozen=True)
class AuditList(Record):
    """Requests of users to a cluster, the oldest first."""

    audit: Annotated[tuple[AuditEntry, ...], "the entries"]


# ------------------------------------------------------------
# Describe the API in OpenAPI: the schemas of records, from their declarations, and the answers.


MANIFEST = "Manifest"  # of the component with the schema of what users write
_REFERENCE = "#/components/schemas/"

_ERRORS: Mapping[int, str] = {
    401: "The sender has not proved that it knows the cluster's secret, or not for this request.",
    403: "The secret is that of another cluster.",
    404: "There is no such job.",
    408: "The request did not come in time.",
    409: "The cluster is in a state that does not allow it; nothing was changed.",
    413: "The request is too large.",
    422: "A parameter, or a key of the manifest, is wrong; nothing was changed.",
    503: "ZooKeeper does not answer, or the API is busy. Try again: a submission with its key.",
}


def answer_schemas(
    record: type[Any], status: int = 200, what: str = "Done."
) -> dict[int | str, Any]:
    """Return the answers of a route for its OpenAPI description: `record`, or an error."""
    _RECORDS.setdefault(record.__name__, record)
    errors: dict[int | str, Any] = {
        code: {"description": text, "content": _content(ApiError.__name__)}
        for code, text in _ERRORS.items()
    }
    done = {"description": what, "content": _content(record.__name__)}
    return {status: done, **errors}


def takes(*names: tuple[str, str]) -> dict[str, Any]:
    content = {kind: {"schema": {"$ref": f"{_REFERENCE}{name}"}} for kind, name in names}
    return {"requestBody": {"required": True, "content": content}}


def takes_record(record: type[Any]) -> dict[str, Any]:
    _RECORDS.setdefault(record.__name__, record)
    return takes((JSON, record.__name__))


def component_schemas() -> dict[str, Any]:
    _, found = msgspec.json.schema_components(
        list(_RECORDS.values()), ref_template=_REFERENCE + "{name}"
    )
    classes = {kind.__name__: kind for record in _RECORDS.values() for kind in _within(record)}
    for name, schema in found.items():
        schema.pop("description", None)  # a docstring, for programmers
        if name in classes:
            _describe(schema, classes[name])
    _plain_tuples(found)
    return {**found, **_manifest_schemas()}


def _plain_tuples(schema: Any) -> None:
    """Make each tuple in `schema` a list of fixed length: generators take no `items: false`."""
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, dict | list):
            _plain_tuples(part)
    if isinstance(schema, dict) and schema.get("items") is False:
        kinds = schema.pop("prefixItems")
        one = kinds[0] if all(kind == kinds[0] for kind in kinds) else {"anyOf": kinds}
        schema.update(items=one, minItems=len(kinds), maxItems=len(kinds))


def _manifest_schemas() -> dict[str, Any]:
    schema = manifest_schema()
    schema["properties"]["cwd"].update(pattern="^/", minLength=1)
    # a sender has no working directory
    schema["required"] = [*schema["required"], "cwd"]
    text = json.dumps(schema).replace("#/$defs/", f"{_REFERENCE}{MANIFEST}")
    moved = json.loads(text)
    moved.pop("$schema")
    # Their titles name the classes that generators make, and the answers have others of these.
    parts = {f"{MANIFEST}{name}": part for name, part in moved.pop("$defs").items()}
    parts = {name: {**part, "title": name} for name, part in parts.items()}
    return {MANIFEST: {**moved, "title": MANIFEST}, **parts}


def _describe(schema: dict[str, Any], record: type[Any]) -> None:
    hints = get_type_hints(record, include_extras=True)
    for part in fields(record):
        hint = hints[part.name]
        texts = [one for one in get_args(hint)[1:] if isinstance(one, str)]
        if get_origin(hint) is Annotated and texts and part.name in schema["properties"]:
            schema["properties"][part.name].setdefault("description", texts[0])


def _within(hint: Any) -> Iterator[type[Any]]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
        for one in get_type_hints(hint, include_extras=True).values():
            yield from _within(one)
    for one in get_args(hint):
        yield from _within(one)


def _content(name: str) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": f"{_REFERENCE}{name}"}}}


_RECORDS: dict[str, type[Any]] = {ApiError.__name__: ApiError}
