"""Writes what this process has compiled for its dataclasses into the file for the next ones.

It is imported last by processes that tests are forked from.
"""

import marshal
import os
import sys

import kept_dataclasses as kept

if kept.compiled:
    found = kept.read() | {text: kept.codes[text] for text in kept.compiled}
    if len(found) > kept.MOST:
        found = kept.codes
    os.makedirs(kept.PLACE, exist_ok=True)
    whole = f"{kept.FILE}.{os.getpid()}"
    with open(whole, "wb") as file:
        file.write(marshal.dumps((sys.version, found)))
    os.replace(whole, kept.FILE)
