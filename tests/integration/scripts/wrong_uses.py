"""Run each snippet of a JSON object in a process of its own; print exit codes and standard errors.

The processes are forks of this one, which has imported everything: imports take seconds.
"""

import json
import os
import sys
import tempfile

import torch

import edl.torch as edl
from edl.errors import EdlError

answers = {}
for name, code in json.load(sys.stdin).items():
    with tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stderr.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            model = torch.nn.Linear(1, 1)
            sgd = torch.optim.SGD(model.parameters(), lr=0.1)
            names = {"torch": torch, "edl": edl, "model": model, "sgd": sgd, "data": [0.0, 1.0]}
            try:
                exec(code, names)
            except EdlError:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stderr.seek(0)
        answers[name] = (status, stderr.read().decode())
print(json.dumps(answers))
