"""Parts of edl for TensorFlow that scripts check by themselves, one process for each check.

They are forked with TensorFlow in them, for its import takes 4 s.
"""

from __future__ import annotations

import forked
import pytest
from paths import SCRIPTS

pytestmark = pytest.mark.integration

CHECKS = {
    "csv_lines.py": (
        "a_further_fit_has_the_file_that_the_script_says",
        "a_successor_appends_within_a_fit",
        "no_epoch_is_lost_or_written_twice",
    ),
    "input_pipelines.py": (
        "stages_are_remembered",
        "functions_of_samples_and_of_batches",
        "the_samples_of_all_ranks_are_evaluated",
        "steps_of_an_evaluation_are_those_of_all_ranks",
        "fit_and_evaluate_have_the_steps_of_all_ranks",
        "what_is_not_known_is_named",
        "what_fit_was_given_is_named",
        "data_that_differ_have_another_digest",
        "the_seed_of_rank_0_becomes_that_of_all",
    ),
    "sent_callbacks.py": (
        "only_rank_0_calls_a_callback_of_the_script",
        "functions_are_those_of_the_script_too",
        "what_each_process_has_runs_in_each",
        "what_keras_has_does_its_usual_work",
        "what_cannot_be_sent_is_refused_in_true_words",
        "a_further_fit_has_the_callbacks_that_rank_0_gives_to_it",
        "a_loop_of_fits_sends_its_callbacks_once",
        "the_callbacks_of_rank_0_outlive_its_process",
    ),
    "tf_digests.py": ("eager", "session"),
    "tf_state_types.py": ("",),
}


@pytest.mark.parametrize(
    ("script", "check"), [(script, check) for script, checks in CHECKS.items() for check in checks]
)
def test_check(script: str, check: str) -> None:
    done = forked.python("tensorflow", [SCRIPTS / script, check], 120.0)
    assert done.returncode == 0, done.stderr
