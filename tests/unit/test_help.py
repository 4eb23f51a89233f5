"""The help: each command is in one group, with a line and with examples that can be typed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from edl.cli.main import app, invoke
from edl.cli.verbs import LISTED, REMOVED, VERBS, every_verb


def commands(path: str = "", command: Any = None) -> Iterator[tuple[str, Any]]:
    command = command or get_command(app)
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(None):
        yield from commands(f"{path} {name}".strip(), command.get_command(None, name))


def test_each_command_is_in_one_group_and_has_a_line() -> None:
    listed = [verb.name for verbs in LISTED.values() for verb in verbs]
    assert listed == list(VERBS)
    lines = [verb.summary for verb in VERBS.values()]
    assert all(len(line) <= 60 and line.endswith(".") for line in lines)


def test_each_command_has_examples_that_can_be_typed() -> None:
    found = dict(commands())
    examples = {name: [one.split("  # ") for one in verb.examples] for name, verb in every_verb()}
    assert examples.keys() == found.keys()
    for name, command in found.items():
        options = {option for one in command.params for option in one.opts}
        for typed, what in examples[name]:
            assert f"edl {name}" in typed
            words = shlex.split(typed.split(" python ")[0].split(" && ")[0].split(" < ")[0])
            given = {word.partition("=")[0] for word in words if word.startswith("-")}
            assert given <= options | {"--resume", "--job"}, f"{typed}: {given - options}"
            assert len(typed) <= 74
            assert what


def test_each_option_whose_value_is_a_path_or_a_time_says_so() -> None:
    for name, command in commands():
        for one in (each for each in command.params if each.param_type_name == "option"):
            is_path = "path" in one.type.name.lower()
            if is_path or one.name.endswith("_s"):
                assert one.metavar, f"{name} {one.opts[-1]}"
    shown = CliRunner().invoke(app, ["report", "--help"]).output
    assert "-o, --output FILE" in shown


@pytest.mark.parametrize("width", [40, 80])
def test_the_help_has_the_groups_and_fits(width: int) -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": str(width)}).output
    lines = shown.splitlines()
    assert [line for line in lines if line in {f"{title}:" for title in LISTED}] == [
        f"{title}:" for title in LISTED
    ]
    assert all(len(line) <= width for line in lines)


def test_the_help_of_a_command_ends_with_its_examples() -> None:
    shown = CliRunner().invoke(app, ["scale", "--help"]).output
    assert shown.rstrip().endswith("edl scale digits --np 4\n        grow or shrink to 4 workers")


def test_a_group_of_commands_installs_no_completion_of_its_own() -> None:
    root = get_command(app)
    groups = [root, *(root.get_command(None, name) for name in root.list_commands(None))]
    for group in groups:
        assert "--install-completion" not in {name for one in group.params for name in one.opts}


def test_the_help_imports_no_command() -> None:
    code = (
        "import sys\n"
        "from edl.cli.main import invoke\n"
        "assert invoke(['--help']) == 0\n"
        "print([one for one in sys.modules if one.partition('.')[0] in"
        " ('kazoo', 'rich', 'numpy', 'matplotlib', 'yaml')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", REMOVED)
def test_a_verb_of_older_versions_says_what_to_do_instead(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([verb, "anything"]) == 2
    assert REMOVED[verb] in capsys.readouterr().err
