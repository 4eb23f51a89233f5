"""The files by which a program hands a function to the workers of a job, and gets its results.

In a directory that all hosts share: ``NAME.py`` is the script of each worker; ``function`` the
function and its arguments, pickled by value as far as no installed module has them, ``sys.path``,
and the text of notebook cells for tracebacks and AutoGraph; ``result-wN`` rank and result of worker
N; ``failure-wN`` its traceback. Each file appears complete or not at all, readable by this user
only.
"""

from __future__ import annotations

import io
import linecache
import os
import pickle
import re
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from edl.errors import UsageError

_SCRIPT = '''"""Written by edl.run: a worker that calls a function of another program."""

from edl.program.function_files import call_function

if __name__ == "__main__":  # not in what multiprocessing spawns
    call_function(__file__)
'''
_FUNCTION, _RESULT, _FAILURE = "function", "result-", "failure-"
Cells = dict[str, tuple[int, None, list[str], str]]


@dataclass(frozen=True)
class Failure:
    worker: str  # its name, like "w3"
    after_training: bool  # it had trained to the end
    text: str  # the traceback


class FunctionFiles:
    """The files of one function in `directory`, which exists."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write_function(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Path:
        name = name_of(function)
        try:
            call = _pickled((function, tuple(args), dict(kwargs)), f"the function {name}")
        except UsageError:
            for place, value in (*enumerate(args), *kwargs.items()):  # is it one of these?
                _pickled(value, f"argument {place} of {name}")
            raise
        cells: Cells = {
            file: (len("".join(lines)), None, lines, file)
            for file, entry in list(linecache.cache.items())
            # Not one that is only known by its loader.
            if len(entry) == 4 and (lines := list(entry[2])) and not os.path.exists(file)
        }
        self._write(_FUNCTION, pickle.dumps((list(sys.path), cells, call)))
        script = f"{re.sub('[^A-Za-z0-9_]+', '_', name).strip('_') or 'function'}.py"
        self._write(script, _SCRIPT.encode())
        return self.directory / script

    def read_function(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        # As in the program, so that its modules and the notebook's cells are found.
        path, cells, call = pickle.loads((self.directory / _FUNCTION).read_bytes())
        sys.path[:] = path
        linecache.cache.update(cells)
        function, args, kwargs = pickle.loads(call)
        return function, args, kwargs

    def write_result(self, worker: str, rank: int, result: Any) -> None:
        pickled = _pickled(result, f"the result of {worker}, of type {type(result).__name__},")
        self._write(f"{_RESULT}{worker}", pickle.dumps((rank, pickled)))

    def results(self) -> dict[str, tuple[int, Any]]:
        found = {}
        for path in self.directory.glob(f"{_RESULT}*"):
            rank, pickled = pickle.loads(path.read_bytes())
            found[path.name.removeprefix(_RESULT)] = (rank, pickle.loads(pickled))
        return dict(sorted(found.items(), key=lambda item: (item[1][0], item[0])))

    def has_result(self, worker: str) -> bool:
        return (self.directory / f"{_RESULT}{worker}").exists()

    def write_failure(self, failure: Failure) -> None:
        content = pickle.dumps((failure.after_training, failure.text))
        self._write(f"{_FAILURE}{failure.worker}", content)

    def failures(self) -> list[Failure]:
        paths = sorted(self.directory.glob(f"{_FAILURE}*"), key=lambda path: path.stat().st_mtime)
        return [
            Failure(path.name.removeprefix(_FAILURE), *pickle.loads(path.read_bytes()))
            for path in paths
        ]

    def _write(self, name: str, content: bytes) -> None:
        """Write a file in one step, readable by this user only; one of that name is replaced."""
        partial = self.directory / f".{name}.{os.getpid()}"
        try:
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(content)
            partial.rename(self.directory / name)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]  # it is Any to mypy
    """cloudpickle's pickler, which also keeps in which file, or notebook cell, code stands."""

    # cloudpickle leaves it out: tracebacks show no source, AutoGraph finds none.

    def reducer_override(self, obj: Any) -> Any:
        """Return how to pickle `obj`: code with its file name, all else as cloudpickle does."""
        if not isinstance(obj, types.CodeType):
            return super().reducer_override(obj)
        _, arguments = self.dispatch_table[types.CodeType](obj)
        return _code_in_file, (arguments, obj.co_filename)


def _code_in_file(arguments: tuple[Any, ...], file: str) -> types.CodeType:
    return types.CodeType(*arguments).replace(co_filename=file)


def _pickled(value: Any, name: str) -> bytes:
    try:
        with io.BytesIO() as file:
            _Pickler(file).dump(value)
            return file.getvalue()
    except Exception as error:  # of a __reduce__ of whatever object
        raise UsageError(
            f"{name} cannot be sent to another process: {error}; let the function make such "
            "objects itself, and return plain values"
        ) from error


def name_of(func: Callable[..., Any]) -> str:
    return str(getattr(func, "__name__", type(func).__name__))


# ------------------------------------------------------------
# Call the function in a worker, and write down its result: `call_function`.


def call_function(script: str) -> None:
    from edl.binding import process  # imports NumPy: 0.1 s, and the program does not need it

    def failure_of(error: BaseException) -> Failure:
        begun = process.is_initialized()
        worker = f"w{process.current_worker().id}" if begun else "a worker"
        trace = error.__traceback__ and error.__traceback__.tb_next  # without this line
        text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
        return Failure(worker, begun and process.current_worker().finished, text)

    files = FunctionFiles(Path(script).absolute().parent)
    function, args, kwargs = files.read_function()
    try:
        result = function(*args, **kwargs)
        if process.is_initialized():  # else the job fails, as one of such a script does
            worker = process.current_worker()
            files.write_result(f"w{worker.id}", worker.rank, result)
    except Exception as error:
        files.write_failure(failure_of(error))
        raise
    except SystemExit as error:
        failure = failure_of(error)
        if error.code and failure.after_training:  # before, edl may have ended the worker
            files.write_failure(failure)
        raise
