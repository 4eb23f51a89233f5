"""Read the table [learning_rate] of a policy: a schedule by samples, and a scaling by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from edl.core.policy.reading import Lines, is_number, near
from edl.errors import UsageError
from edl.schedules import RULES, Constant, Cosine, Knee, Linear, OneCycle, Scaling, Schedule, Step

TABLE = "learning_rate"
SCHEDULES: Mapping[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "linear": Linear,
    "cosine": Cosine,
    "one-cycle": OneCycle,
    "knee": Knee,
}
OF_SCALING = ("scaling", "batch", "ramp")


@dataclass(frozen=True)
class LearningRate:
    """The schedule and the scaling that a policy sets for a job's learning rate."""

    schedule: Schedule | None  # by trained samples; None: the rate of the script is the base
    scaling: Scaling | None  # by the global batch


def learning_rate(given: Mapping[str, Any], lines: Lines) -> LearningRate:
    """Return the schedule and scaling that the table [learning_rate] of a policy asks for."""
    if "schedule" not in given and "scaling" not in given:
        raise lines.error(
            "",
            TABLE,
            'table [learning_rate] needs a schedule, like schedule = "knee", or a scaling, like '
            'scaling = "linear"',
        )
    return LearningRate(_schedule(given, lines), _scaling(given, lines))


def _schedule(given: Mapping[str, Any], lines: Lines) -> Schedule | None:
    """Return the schedule in the table [learning_rate], or None if the table names none."""
    own = {key: value for key, value in given.items() if key not in OF_SCALING}
    if "schedule" not in own:
        for key in own:
            raise lines.error(TABLE, key, f"{key} is part of a schedule; name that, too")
        return None
    name = own.pop("schedule")
    if not isinstance(name, str) or name not in SCHEDULES:
        what = f"there is no schedule {name!r}{near(str(name), SCHEDULES)}"
        raise lines.error(TABLE, "schedule", what)
    kind = SCHEDULES[name]
    known = {one.name: one for one in fields(kind)}
    for key, value in own.items():
        if key not in known:
            raise lines.error(TABLE, key, f"schedule {name} has no {key!r}{near(key, known)}")
        numbers = value if key == "milestones" and isinstance(value, list) else [value]
        if not all(map(is_number, numbers)) or (key == "milestones") != isinstance(value, list):
            what = "numbers of samples, like [1000, 2000]" if key == "milestones" else "a number"
            raise lines.error(TABLE, key, f"{key} is {value!r}; it must be {what}")
    for key, one in known.items():
        if one.default is MISSING and key not in own:
            raise lines.error(TABLE, "schedule", f"schedule {name} needs {key}")
    found: Schedule = _made(kind, own, "schedule", lines)
    return found


def _scaling(given: Mapping[str, Any], lines: Lines) -> Scaling | None:
    """Return the scaling in the table [learning_rate], or None if the table names none."""
    own = {key: given[key] for key in OF_SCALING if key in given}
    if "scaling" not in own:
        for key in own:
            raise lines.error(TABLE, key, f"{key} is part of a scaling; name that, too")
        return None
    rule = own.pop("scaling")
    if not isinstance(rule, str) or rule not in RULES:
        what = f"there is no scaling {rule!r}{near(str(rule), RULES)}"
        raise lines.error(TABLE, "scaling", what)
    for key, value in own.items():
        if not is_number(value) or (key == "ramp" and not isinstance(value, int)):
            what = "a whole number of updates" if key == "ramp" else "a number of samples"
            raise lines.error(TABLE, key, f"{key} is {value!r}; it must be {what}")
    if "batch" not in own:
        what = "scaling needs batch, the global batch for which the learning rate was chosen"
        raise lines.error(TABLE, "scaling", what)
    found: Scaling = _made(Scaling, {"rule": rule, **own}, "scaling", lines)
    return found


def _made(kind: type[Any], values: Mapping[str, Any], key: str, lines: Lines) -> Any:
    try:
        return kind(**values)
    except UsageError as error:
        raise lines.error(TABLE, key, str(error).partition(": ")[2]) from None
