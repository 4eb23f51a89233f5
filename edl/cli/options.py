"""Make command line options of `edl run` from the declarations of a job's settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from edl.spec import JobSettings, Sizes

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)|`")


def with_settings(verb: Callable[..., None]) -> Callable[..., None]:
    """Return `verb` with a command line option added for each setting of a job that has one."""
    declared = {
        one.name: _option(one, hints[one.name])
        for kind, hints in ((kind, get_type_hints(kind)) for kind in (Sizes, JobSettings))
        for one in fields(kind)
        if one.metadata.get("option")
    }

    @wraps(verb)
    def run(**values: Any) -> None:
        given = {name: values.pop(name) for name in declared}
        verb(**values, given={name: value for name, value in given.items() if value is not None})

    own = inspect.signature(verb, eval_str=True)
    parameters = [one for one in own.parameters.values() if one.name != "given"]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
        for name, hint in declared.items()
    ]
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    return run


def _option(one: Field[Any], hint: Any) -> Any:
    """Return the command line option for one setting, as a type annotation for typer."""
    about: Mapping[str, Any] = one.metadata
    kind: type = next((one for one in (bool, int, float) if hint in (one, one | None)), str)
    help = _LINK.sub(lambda match: match[1] or "", about["help"])
    if kind is bool and one.default:
        # So such a help is an order, like "fork later workers".
        help = f"do not {help}"
    default = one.default if isinstance(one.default, str) else f"{one.default or 0:g}"
    shown = "" if kind is bool or not one.default else f" Default: {default}."
    return Annotated[
        kind | None,
        typer.Option(
            _declaration(one, kind),
            metavar=about["metavar"] or None,
            help=f"{help[0].upper()}{help[1:]}.{shown}",
            show_default=False,
        ),
    ]


def _declaration(one: Field[Any], kind: type) -> str:
    """Return the words that declare to typer the option of a setting."""
    option: str = one.metadata["option"]
    if kind is not bool:
        return option
    return f" /{option}" if one.default else f"{option}/"
