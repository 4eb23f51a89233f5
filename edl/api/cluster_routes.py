"""The routes about the cluster itself: status, plan, policy, hosts, and the names of secrets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from edl.api.jobs import MAX_LISTED, NAME, By, Limit, pool_of
from edl.api.records import (
    DrainStatus,
    PlanList,
    PolicySetting,
    SecretEntry,
    SecretList,
    answer_schemas,
    takes_record,
)
from edl.api.requests import answer, sent_record
from edl.cluster.policies.registry import POLICIES
from edl.cluster.status import ClusterStatus
from edl.cluster_policies import is_own
from edl.errors import UsageError

router = APIRouter(prefix="/v1", tags=["cluster"])
Host = Annotated[str, Path(description="Name of a host.", pattern=NAME)]


@router.get("/cluster", responses=answer_schemas(ClusterStatus))
async def status(request: Request, caller: By) -> Response:
    """Show which controller leads, the policy, the hosts and the slots in use."""
    return answer(request, await pool_of(request).ask(caller.by, lambda one: one.status()))


@router.get("/plan", responses=answer_schemas(PlanList))
async def plan(
    request: Request,
    caller: By,
    policy: Annotated[
        str | None, Query(description="Another policy than that of the cluster.")
    ] = None,
) -> Response:
    """Show which slots each job would get if the policy were asked now; nothing is changed."""
    if policy is not None:
        check_registered(policy)
    found = await pool_of(request).ask(caller.by, lambda one: one.policy.plan(policy))
    return answer(request, PlanList(found))


@router.get("/policy", responses=answer_schemas(PolicySetting))
async def show_policy(request: Request, caller: By) -> Response:
    """Show by which policy the cluster gives slots."""
    now = await pool_of(request).ask(caller.by, lambda one: one.policy.get())
    return answer(request, PolicySetting(now.policy, now.parameters))


@router.put(
    "/policy", responses=answer_schemas(PolicySetting), openapi_extra=takes_record(PolicySetting)
)
async def set_policy(request: Request, caller: By) -> Response:
    """Let another policy give slots from now on; the jobs go on running."""
    new = sent_record(request, PolicySetting)
    check_registered(new.policy)
    now = await pool_of(request).ask(
        caller.by, lambda one: one.policy.set(new.policy, new.parameters)
    )
    return answer(request, PolicySetting(now.policy, now.parameters))


@router.post("/hosts/{host}/drain", responses=answer_schemas(DrainStatus))
async def drain(request: Request, caller: By, host: Host) -> Response:
    """Let a host have no jobs from now on; they shrink, or move to other hosts."""
    await pool_of(request).ask(caller.by, lambda one: one.hosts.drain(host))
    return answer(request, DrainStatus(host, True))


@router.post("/hosts/{host}/undrain", responses=answer_schemas(DrainStatus))
async def undrain(request: Request, caller: By, host: Host) -> Response:
    """Let a host that was drained have jobs again."""
    await pool_of(request).ask(caller.by, lambda one: one.hosts.undrain(host))
    return answer(request, DrainStatus(host, False))


@router.get("/secrets", responses=answer_schemas(SecretList))
async def secrets(
    request: Request,
    caller: By,
    after: Annotated[str, Query(description="Only those whose names come after this one.")] = "",
    limit: Limit = MAX_LISTED,
) -> Response:
    """List the names of the secrets that the cluster keeps for jobs."""
    found = await pool_of(request).ask(caller.by, lambda one: one.secrets.list())
    entries = [SecretEntry(one.name, one.set_s, one.by) for one in found if one.name > after]
    return answer(request, SecretList(tuple(entries[:limit])))


def check_registered(name: str) -> None:
    """Raise an error if `name` is the name of a user's own policy, which would be imported here."""
    if is_own(name):
        known = ", ".join(POLICIES)
        raise UsageError(
            f"over HTTP a policy must be one of {known}; use `edl cluster policy {name}` for your "
            "own"
        )
