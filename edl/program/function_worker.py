"""Call the function of another program in a worker, and write down its result."""

from __future__ import annotations

import traceback
from pathlib import Path

from edl.binding import process
from edl.program.function_files import Failure, FunctionFiles


def call_function(script: str) -> None:
    files = FunctionFiles(Path(script).absolute().parent)
    function, args, kwargs = files.read_function()
    try:
        result = function(*args, **kwargs)
        if process.is_initialized():  # else the job fails, as one of such a script does
            worker = process.current_worker()
            files.write_result(f"w{worker.id}", worker.rank, result)
    except Exception as error:
        files.write_failure(_failure(error))
        raise
    except SystemExit as error:
        failure = _failure(error)
        if error.code and failure.after_training:  # before, edl may have ended the worker
            files.write_failure(failure)
        raise


def _failure(error: BaseException) -> Failure:
    """Return how the function has failed with `error`, without the lines of this module."""
    begun = process.is_initialized()
    worker = f"w{process.current_worker().id}" if begun else "a worker"
    trace = error.__traceback__ and error.__traceback__.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    return Failure(worker, begun and process.current_worker().finished, text)
