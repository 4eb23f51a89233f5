"""What Kueue's API (v1beta2) takes of the resources in recipes/kubernetes/kueue, as JSON schemas.

Fields that the recipe does not use are left out, so a schema refuses them, too. Kueue's own
definitions are custom resources of a cluster; the recipe was validated against those as well.
"""

from __future__ import annotations

from typing import Any

NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 253}
QUANTITY = {
    "anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^[0-9]+(m|k|[KMGTP]i?)?$"}]
}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 8}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties, and no other ones."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def listed(items: dict[str, Any], most: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


TOLERATION = closed(
    key={"type": "string"},
    operator={"enum": ["Exists", "Equal"]},
    value={"type": "string"},
    effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
)
RESOURCE = closed(
    ("name", "nominalQuota"),
    name={"type": "string"},
    nominalQuota=QUANTITY,
    borrowingLimit=QUANTITY,
    lendingLimit=QUANTITY,
)
FLAVOR = closed(("name", "resources"), name=NAME, resources=listed(RESOURCE, 64))
GROUP = closed(
    ("coveredResources", "flavors"),
    coveredResources=listed({"type": "string"}, 64),
    flavors=listed(FLAVOR, 64),
)
SPECS = {
    "ResourceFlavor": closed(
        nodeLabels=LABELS, tolerations=listed(TOLERATION, 8), nodeTaints=listed(TOLERATION, 8)
    ),
    "ClusterQueue": closed(
        cohortName=NAME,
        namespaceSelector={"type": "object"},
        preemption=closed(
            reclaimWithinCohort={"enum": ["Never", "LowerPriority", "Any"]},
            withinClusterQueue={"enum": ["Never", "LowerPriority", "LowerOrNewerEqualPriority"]},
        ),
        resourceGroups=listed(GROUP, 16),
    ),
    "LocalQueue": closed(("clusterQueue",), clusterQueue=NAME),
}


def schema_of(kind: str) -> dict[str, Any]:
    """Return the schema of a resource of Kueue."""
    return closed(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "kueue.x-k8s.io/v1beta2"},
        kind={"const": kind},
        metadata=closed(("name",), name=NAME),
        spec=SPECS[kind],
    )
