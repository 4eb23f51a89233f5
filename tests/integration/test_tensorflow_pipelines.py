"""What edl remembers of the tf.data pipelines of an unchanged Horovod script.

The checks run in processes that are forked with TensorFlow in them, for its import takes 4 s.
"""

from __future__ import annotations

import forked
import pytest
from paths import SCRIPTS

pytestmark = pytest.mark.integration

CHECKS = (
    "stages_are_remembered",
    "functions_of_samples_and_of_batches",
    "the_samples_of_all_ranks_are_evaluated",
    "steps_of_an_evaluation_are_those_of_all_ranks",
    "fit_and_evaluate_have_the_steps_of_all_ranks",
    "what_is_not_known_is_named",
    "what_fit_was_given_is_named",
    "data_that_differ_have_another_digest",
    "the_seed_of_rank_0_becomes_that_of_all",
)


@pytest.mark.parametrize("check", CHECKS)
def test_pipelines(check: str) -> None:
    done = forked.python("tensorflow", [SCRIPTS / "input_pipelines.py", check], 120.0)
    assert done.returncode == 0, done.stderr
