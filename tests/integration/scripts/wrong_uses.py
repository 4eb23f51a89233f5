"""Run snippets of code in processes of their own; print exit codes and standard errors as JSON.

Standard input is a JSON object: `imports`, done once, for imports take seconds and the processes
are forks of this one; `setup`, done in each; `snippets`, by name.
"""

import ctypes
import gc
import json
import os
import signal
import sys
import tempfile

PR_SET_PDEATHSIG = 1

order = json.load(sys.stdin)
names = {}
exec(order["imports"], names)
gc.freeze()  # a collection in a fork would copy all these pages
answers = {}
for name, code in order["snippets"].items():
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a snippet may have no end
            os.dup2(stderr.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            try:
                exec(order["setup"], names)
                exec(code, names)
            except Exception:  # noqa: BLE001 - as the interpreter would show it
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stderr.seek(0)
        answers[name] = (status, stderr.read().decode())
print(json.dumps(answers))
