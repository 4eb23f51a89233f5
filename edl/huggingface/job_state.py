"""Share the state of a ``Trainer`` with newcomers: steps, logs, best metric, callbacks."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

# Fields of TrainerState that each worker has for itself.
OWN = ("is_local_process_zero", "is_world_process_zero", "stateful_callbacks")
# Those that Trainer computes from the script's arguments: the same on all workers of a start. In a
# resumed job the arguments may be others, such as a larger max_steps.
ARGUMENTS = (
    "max_steps",
    "num_train_epochs",
    "logging_steps",
    "eval_steps",
    "save_steps",
    "train_batch_size",
)
# Attributes of a Trainer that it sets when it begins to train, and that are the job's here.
TOTALS = (
    "_total_loss_scalar",
    "_globalstep_last_logged",
    "_initial_global_step",
    "_initial_num_input_tokens_seen",
)


class TrainerJobState:
    """The part of a `Trainer` that a newcomer must know, as `edl.track` sends it."""

    edl_compared = False  # each worker logs the times that it has measured itself

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._totals: dict[str, Any] = {}

    def state_dict(self) -> dict[str, str]:
        """Return the state as one JSON text; tensors and arrays in it become numbers and lists."""
        now = self._trainer.state
        names = {field.name for field in dataclasses.fields(now)}.difference(OWN, ARGUMENTS)
        state = {
            "state": {name: getattr(now, name) for name in sorted(names)},
            "totals": {name: getattr(self._trainer, name, 0) for name in TOTALS},
            "callbacks": [
                [type(one).__name__, one.state().get("attributes", {})]
                for one in self._exportable()
            ],
        }
        return {"json": json.dumps(state, default=_as_json)}

    def load_state_dict(self, state: dict[str, str]) -> None:
        found = json.loads(state["json"])
        for name in found["state"].keys() - set(ARGUMENTS):  # an earlier edl has saved these too
            setattr(self._trainer.state, name, found["state"][name])
        self._totals = found["totals"]
        # A callback gets the state of the one at its place among those of its class.
        waiting = list(found["callbacks"])
        for one in self._exportable():
            match = next((each for each in waiting if each[0] == type(one).__name__), None)
            if match is not None:
                waiting.remove(match)
                for name, value in match[1].items():
                    setattr(one, name, value)

    def put_totals(self) -> None:
        for name, value in self._totals.items():
            setattr(self._trainer, name, value)
        self._totals = {}

    def _exportable(self) -> list[Any]:
        callbacks = self._trainer.callback_handler.callbacks
        return [one for one in callbacks if hasattr(one, "state") and callable(one.state)]


def _as_json(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)
