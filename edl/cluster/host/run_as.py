"""Become another user with another environment, and run a command: ``python -I run_as.py FD``.

The open file FD has a :class:`UserCommand` as JSON. This program runs as root, so it imports
nothing but Python's own library, and takes nothing from its environment.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple


class UserCommand(NamedTuple):
    words: tuple[str, ...]  # the command line; the first word is the path of the program
    environment: dict[str, str]  # all its environment variables
    user: tuple[int, int, tuple[int, ...]] | None  # user, first group, all groups; or the present


def run_as() -> None:
    with open(int(sys.argv[1]), encoding="utf-8") as file:
        command = UserCommand(*json.load(file))
    if command.user is not None:
        uid, gid, groups = command.user
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    os.execve(command.words[0], command.words, command.environment)


if __name__ == "__main__":
    run_as()
