"""Run a Horovod script as one that edl trains elastically: ``python -m edl.transparent train.py``.

`edl run --transparent` puts it before the script of each worker.
"""

from __future__ import annotations

import sys

from edl.binding import process
from edl.errors import UsageError
from edl.host.process import Main, parse_command
from edl.host.template.main import run_as_main
from edl.transparent import import_hook, script


def run_script() -> None:
    command = parse_command([sys.executable, *sys.argv[1:]])
    if command is None or command.main is Main.OTHER or command.options:
        raise UsageError(
            "python -m edl.transparent runs a script: python -m edl.transparent train.py, or "
            "python -m edl.transparent -m package.train"
        )
    process.speak_in_sentences()
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the working directory, which `python -m` puts there, and a script not
    import_hook.replace_horovod()
    script.replace_enumerate()
    run_as_main(command.main, command.target, list(command.arguments))


run_script()
