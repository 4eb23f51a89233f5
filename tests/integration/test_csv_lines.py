"""Which lines Keras' CSVLogger has in its file when rank 0 dies, and in a further fit.

The checks run in processes that are forked with TensorFlow in them, for its import takes 4 s.
"""

from __future__ import annotations

import forked
import pytest
from paths import SCRIPTS

pytestmark = pytest.mark.integration

CHECKS = (
    "a_further_fit_has_the_file_that_the_script_says",
    "a_successor_appends_within_a_fit",
    "no_epoch_is_lost_or_written_twice",
)


@pytest.mark.parametrize("check", CHECKS)
def test_csv_lines(check: str) -> None:
    done = forked.python("tensorflow", [SCRIPTS / "csv_lines.py", check], 120.0)
    assert done.returncode == 0, done.stderr
