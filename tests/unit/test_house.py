"""No room of edl/ is larger than house.toml allows, and no chain of imports is longer."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from house import Size, budgets, longest_allowed_chain, measure, sizes
from source_trees import longest_chain


@pytest.mark.parametrize("room", budgets())
def test_a_room_keeps_to_its_budget(room: str) -> None:
    size, budget = sizes()[room], budgets()[room]
    over = any(a > b for a, b in zip(astuple(size), astuple(budget), strict=True))
    assert not over, (
        f"edl/{room} has {size}, and house.toml allows {budget}: look for what goes, or raise the "
        "budget there with a line of reason"
    )


def test_each_kind_of_line_is_counted_as_what_it_is() -> None:
    source = (
        '"""One.\n\nTwo."""\n\n# why\nx = 1  # what\n\n\ndef f():\n    """Do."""\n    return x\n'
    )
    assert measure(source) == Size(files=1, code=3, prose=5)


def test_no_chain_of_imports_is_longer() -> None:
    chain = longest_chain()
    assert len(chain) <= longest_allowed_chain(), " imports ".join(chain)
