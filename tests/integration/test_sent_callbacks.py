"""What other processes do with a callback that only rank 0 of a Keras script has.

The checks run in processes that are forked with TensorFlow in them, for its import takes 4 s.
"""

from __future__ import annotations

import forked
import pytest
from paths import SCRIPTS

pytestmark = pytest.mark.integration

CHECKS = (
    "only_rank_0_calls_a_callback_of_the_script",
    "functions_are_those_of_the_script_too",
    "what_each_process_has_runs_in_each",
    "what_keras_has_does_its_usual_work",
    "what_cannot_be_sent_is_refused_in_true_words",
    "a_further_fit_has_the_callbacks_that_rank_0_gives_to_it",
    "a_loop_of_fits_sends_its_callbacks_once",
    "the_callbacks_of_rank_0_outlive_its_process",
)


@pytest.mark.parametrize("check", CHECKS)
def test_sent_callbacks(check: str) -> None:
    done = forked.python("tensorflow", [SCRIPTS / "sent_callbacks.py", check], 120.0)
    assert done.returncode == 0, done.stderr
