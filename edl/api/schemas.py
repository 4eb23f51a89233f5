"""Describe the API in OpenAPI: the schemas of records, from their declarations, and the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from edl.api.answers import JSON, ApiError
from edl.cluster.manifest import manifest_schema

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
    """Return the part of an OpenAPI description that says what the body of a route's request is."""
    content = {kind: {"schema": {"$ref": f"{_REFERENCE}{name}"}} for kind, name in names}
    return {"requestBody": {"required": True, "content": content}}


def takes_record(record: type[Any]) -> dict[str, Any]:
    _RECORDS.setdefault(record.__name__, record)
    return takes((JSON, record.__name__))


def component_schemas() -> dict[str, Any]:
    """Return the schema of each record that a route answers or takes, by its name."""
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
    """Return the schemas of what users write as a manifest, by their names as components."""
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
    """Add to the schema of `record` what the annotation of each field says of it."""
    hints = get_type_hints(record, include_extras=True)
    for field in fields(record):
        hint = hints[field.name]
        texts = [one for one in get_args(hint)[1:] if isinstance(one, str)]
        if get_origin(hint) is Annotated and texts and field.name in schema["properties"]:
            schema["properties"][field.name].setdefault("description", texts[0])


def _within(hint: Any) -> Iterator[type[Any]]:
    """Yield the dataclasses that `hint`, a dataclass or another annotation, consists of."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
        for one in get_type_hints(hint, include_extras=True).values():
            yield from _within(one)
    for one in get_args(hint):
        yield from _within(one)


def _content(name: str) -> dict[str, Any]:
    return {JSON: {"schema": {"$ref": f"{_REFERENCE}{name}"}}}


_RECORDS: dict[str, type[Any]] = {ApiError.__name__: ApiError}
