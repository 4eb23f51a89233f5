"""Define the names of tenants and of their jobs, and the word that a tenant keeps as its secret."""

from __future__ import annotations

from collections.abc import Collection

from edl.core.names import is_name

SEPARATOR = "."  # between the name of a tenant and that of its job
_PREFIX = "tenant"


def secret_word(tenant: str, secret: str) -> str:
    """Return the one word that a tenant has in its secret file, `tenant:NAME:SECRET`."""
    return f"{_PREFIX}:{tenant}:{secret}"


def parsed_word(word: str) -> tuple[str, str] | None:
    """Return the name and the secret of a tenant from its word; None: it is no tenant's."""
    prefix, _, rest = word.partition(":")
    tenant, _, secret = rest.partition(":")
    return (tenant, secret) if prefix == _PREFIX and is_tenant_name(tenant) and secret else None


def is_tenant_name(name: str) -> bool:
    """Return whether `name` can be that of a tenant: of at most 32 characters, without a dot."""
    return is_name(name) and SEPARATOR not in name and len(name) <= 32


def own_name(tenant: str, name: str) -> str:
    """Return `name` with the name of its tenant before it, if it does not begin so."""
    return name if name.startswith(f"{tenant}{SEPARATOR}") else f"{tenant}{SEPARATOR}{name}"


def tenant_of(name: str, tenants: Collection[str]) -> str:
    """Return the tenant of the job or secret called `name`; empty: it is the administrator's."""
    first, dot, _ = name.partition(SEPARATOR)
    return first if dot and first in tenants else ""
