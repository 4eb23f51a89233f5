"""A minute of the soak of a live cluster; `make cluster-soak` does half an hour."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_soak import soak

pytestmark = [pytest.mark.chaos, pytest.mark.slow]


@pytest.mark.parametrize("seed", [1])
def test_users_and_kills(seed: int, tmp_path: Path) -> None:
    done = soak(tmp_path, minutes=1.0, seed=seed, every_s=1.5)
    assert sum(done["kills"].values()) > 5
