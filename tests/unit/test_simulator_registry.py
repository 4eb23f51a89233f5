"""The simulator knows the product's policies and the published ones, each under one name."""

from __future__ import annotations

import pytest

from edl.cluster.policies.registry import POLICIES as PRODUCT
from edl.errors import UsageError
from edl.simulator.published.policies.pollux_policy import Pollux
from edl.simulator.registry import POLICIES, PUBLISHED_BEFORE, registered_policy

PUBLISHED = {name: rule for group in PUBLISHED_BEFORE.values() for name, rule in group.items()}


def test_every_policy_is_registered_once() -> None:
    assert not PRODUCT.keys() & PUBLISHED.keys()
    assert POLICIES == PRODUCT | PUBLISHED
    assert [name for name in POLICIES if name in PRODUCT] == [*PRODUCT]


def test_an_unknown_policy_is_refused_with_all_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no policy 'sjf'; use one of fifo, .*, pollux, edl, jsa"):
        registered_policy("sjf")
    assert all(registered_policy(name) is POLICIES[name][0] for name in POLICIES)


def test_a_seed_and_a_cost_are_given_to_policies_that_have_such_a_parameter() -> None:
    assert registered_policy("pollux", 3, 0.3) == Pollux(seed=3)
    assert (
        registered_policy("edl", 3, 0.3)
        == registered_policy("edl", 0, 0.3)
        != registered_policy("edl")
    )
    assert registered_policy("jsa_random", 3) != registered_policy("jsa_random")
    assert registered_policy("optimus", 3, 0.3) is registered_policy("optimus")
