"""Find a cluster policy by its name: one that is part of edl, or one that a user has written.

A user's policy is named ``module:Class``, and imported from the Python path of this process, in
which the working directory comes first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from edl.cluster.policies.registry import OwnPolicy, own_policy, with_parameters
from edl.cluster.records import ClusterRecord
from edl.cluster.state import ClusterPolicy
from edl.errors import UsageError
from edl.policy.file import module_and_function


def load_policy(name: str, parameters: Mapping[str, Any] = MappingProxyType({})) -> ClusterPolicy:
    """Return the policy called `name`, with other values of some parameters."""
    return load_own_policy(name, parameters) if is_own(name) else with_parameters(name, parameters)


def load_own_policy(name: str, parameters: Mapping[str, Any] = MappingProxyType({})) -> OwnPolicy:
    module, _, attribute = name.partition(":")
    with suppress(OSError):  # the working directory was removed
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)
    importlib.invalidate_caches()  # the user may have written it just now
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"the policy {name} cannot be imported here: {what}; its module must be on the Python "
            "path of this process, or in its working directory"
        ) from error
    if not hasattr(found, attribute):
        raise UsageError(f"there is no {attribute} in {found.__file__ or module}, for {name}")
    return own_policy(name, getattr(found, attribute), parameters)


def policy_of(settings: ClusterRecord) -> ClusterPolicy:
    return load_policy(settings.policy, settings.parameters)


def is_own(name: str) -> bool:
    return module_and_function(name) is not None
